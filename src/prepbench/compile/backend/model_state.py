"""Parameters and buffers of a model, and whether they were written to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import TensorWeakRef

from prepbench._torch_compat.tensors import version_of


def named_state(root: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers by FQN; a tied one under each of its names."""
    yield from root.named_parameters(remove_duplicate=False)
    yield from root.named_buffers(remove_duplicate=False)


def state_tensors(root: nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers, and plain tensor attributes of modules."""
    plain = [value for module in root.modules() for value in vars(module).values() if is_tensor(value)]
    return [*(tensor for _, tensor in named_state(root)), *plain]


class TensorVersions:
    """Records tensors at their current version, by weak reference."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[TensorWeakRef, int]] = {}

    def remember(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record these tensors as well, or again."""
        alive = {key: known for key, known in self._versions.items() if known[0]() is not None}
        self._versions = {**alive, **{id(tensor): (TensorWeakRef(tensor), version_of(tensor)) for tensor in tensors}}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Return whether this very tensor is recorded, and unchanged since."""
        reference, version = self._versions.get(id(tensor), (None, 0))
        return reference is not None and reference() is tensor and version == version_of(tensor)

    def __bool__(self) -> bool:
        return bool(self._versions)


def is_tensor(value: Any) -> bool:
    """Return whether ``value`` is a tensor."""
    return isinstance(value, torch.Tensor)


def are_identical(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether the tensors of two lists are equal, with NaN at the same places; other values are not compared."""
    return len(one) == len(other) and all(
        (a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
        if is_tensor(a) and is_tensor(b)
        else is_tensor(a) == is_tensor(b)
        for a, b in zip(one, other, strict=True)
    )
