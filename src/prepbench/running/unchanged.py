"""Run a model without side effects: state, random numbers and the caller's tensors are restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.patching import undoing
from prepbench.running.module_state import tensors_kept, tensors_of
from prepbench.running.object_nodes import register_nodes
from prepbench.running.random_numbers import numbers_kept


class NotedState:
    """The state of a model, recorded once and restored after each of several runs.

    For a model that no other code changes between these runs, such as a twin.

    Args:
        model: whose forward will run.

    Example:
        >>> model, samples = nn.BatchNorm1d(4).train(), [pb.Sample((torch.ones(n, 4),)) for n in (2, 3)]
        >>> noted = NotedState(model)
        >>> for sample in samples:
        ...     with noted.unchanged():
        ...         _ = sample.call(model)
        >>> int(model.num_batches_tracked)
        0
    """

    def __init__(self, model: torch.nn.Module) -> None:
        parameters, others = tensors_of(model)
        _check_materialised(model, [*parameters, *others])
        self._devices = sorted({tensor.device.index for tensor in parameters if tensor.is_cuda})
        self._steps = tuple(tensors_kept(model, parameters, others))

    @contextmanager
    def unchanged(self, *, seed: int | None = None) -> Iterator[None]:
        """Restore attributes, buffer values, the training flags and every random number generator after the block.

        Args:
            seed: the seed of torch's random numbers inside the block.
        """
        with undoing() as undo:
            undo.add_all(self._steps)
            with numbers_kept(self._devices, seed=seed):
                yield


@contextmanager
def unchanged(model: torch.nn.Module, *, seed: int | None = None) -> Iterator[None]:
    """Restore the model's state and random numbers after the block, by :class:`NotedState`.

    Args:
        model: whose forward runs in the block.
        seed: the seed of torch's random numbers inside the block.
    """
    with NotedState(model).unchanged(seed=seed):
        yield


def _check_materialised(model: torch.nn.Module, tensors: list[torch.Tensor]) -> None:
    if not any(map(torch.nn.parameter.is_lazy, tensors)):
        return
    for fqn, parameter in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(parameter):
            raise InputError(
                f"{fqn} has no size yet, because its lazy module has never run, and running it would change the model. "
                "Call the model once on a sample input first."
            )


def own_copy(sample: Sample) -> Sample:
    """Return the sample with cloned tensors, so that operations in place do not reach the caller's; strides stay the
    same.

    Objects that hold tensors are copied as well, because the model may put others into them.
    """
    register_nodes((sample.args, sample.kwargs))
    return sample.map(lambda leaf: _clone(leaf, _with_strides) if isinstance(leaf, torch.Tensor) else leaf)


def dense_copy(sample: Sample) -> Sample:
    """Return the sample with cloned tensors that are dense, without gaps as in a slice of a larger tensor."""
    return sample.map(lambda leaf: _clone(leaf, torch.clone) if isinstance(leaf, torch.Tensor) else leaf)


def detached_copy(value: Any) -> Any:
    """Return ``value`` with cloned tensors that have no gradients."""
    return pytree.tree_map(lambda leaf: leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _clone(tensor: torch.Tensor, copied: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        # an integer tensor cannot require gradients
        return copied(tensor.detach()).requires_grad_(tensor.requires_grad)


def _with_strides(tensor: torch.Tensor) -> torch.Tensor:
    copied = tensor.clone()
    if tensor.layout is not torch.strided or copied.stride() == tensor.stride() or _overlaps(tensor):
        return copied
    same = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return same.copy_(tensor)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Return whether two entries may share memory, as those of an expanded tensor do."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
