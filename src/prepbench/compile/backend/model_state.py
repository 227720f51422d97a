"""Parameters and buffers of a model, and whether somebody wrote to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from prepbench._torch_compat.tensors import version_of


def named_state(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers by FQN; a tied one under each of its names."""
    yield from root.named_parameters(remove_duplicate=False)
    yield from root.named_buffers(remove_duplicate=False)


def state_tensors(root: nn.Module) -> list[torch.Tensor]:
    """Parameters, buffers, and tensors that are plain attributes of modules."""
    plain = [value for module in root.modules() for value in vars(module).values() if is_tensor(value)]
    return [*(tensor for _, tensor in named_state(root)), *plain]


class TensorVersions:
    """Remembers tensors with the values that they have now, without keeping the tensors alive."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[TensorWeakRef, int]] = {}

    def remember(self, tensors: Iterable[torch.Tensor]) -> None:
        """Remember these tensors, too, or again."""
        alive = {key: known for key, known in self._versions.items() if known[0]() is not None}
        self._versions = {**alive, **{id(tensor): (TensorWeakRef(tensor), version_of(tensor)) for tensor in tensors}}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether this very tensor is remembered, and nobody wrote to it since."""
        reference, version = self._versions.get(id(tensor), (None, 0))
        return reference is not None and reference() is tensor and version == version_of(tensor)

    def __bool__(self) -> bool:
        return bool(self._versions)


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a tensor."""
    return isinstance(value, torch.Tensor)


def are_identical(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the tensors of two lists are equal, and NaN at the same places; other values are not compared."""
    return len(one) == len(other) and all(
        (a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
        if is_tensor(a) and is_tensor(b)
        else is_tensor(a) == is_tensor(b)
        for a, b in zip(one, other, strict=True)
    )
