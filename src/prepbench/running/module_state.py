"""The state that a forward leaves on its modules while it is traced, and how to restore it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import undoing
from prepbench.running.plain_state import PutBack, kept
from prepbench.running.written_parameters import is_written


@contextmanager
def restored(root: torch.nn.Module, function: Any = None) -> Iterator[dict[str, torch.Tensor]]:
    """Undo what the block does to ``root`` and its submodules: attributes, tensors, ``requires_grad``, ``.data``.

    Plain Python objects that they reach are restored too (see :mod:`prepbench.running.plain_state`), and the values of
    tensors that are counted up in place. What has not changed is not written to, because another thread may be running
    the model. Yields the buffers as they were, by name.

    Args:
        root: the model.
        function: the callee, if that is not the model itself.
    """
    buffers = dict(root.named_buffers())
    with undoing() as undo:
        undo.add_all(tensors_kept(root, *tensors_of(root), function))
        yield buffers


def tensors_kept(
    root: torch.nn.Module,
    parameters: list[torch.nn.Parameter],
    others: list[torch.Tensor],
    function: Any = None,
) -> Iterator[PutBack]:
    """Perform the restoring of :func:`restored` step by step, for callers that have :func:`tensors_of` the model
    already.
    """
    yield from map(_value_kept, others)
    yield _parameters_kept(parameters)
    yield from kept(root, function)


def tensors_of(root: torch.nn.Module) -> tuple[list[torch.nn.Parameter], list[torch.Tensor]]:
    """Return the tensors of a model that runs may write to: parameters, buffers, other tensors of modules.

    In one pass, because asking torch for each kind by itself takes longer than tracing a small layer.
    """
    parameters: dict[int, Any] = {}
    others: dict[int, torch.Tensor] = {}
    for module in root.modules():
        parameters.update((id(value), value) for value in module._parameters.values() if value is not None)
        others.update((id(value), value) for value in module._buffers.values() if value is not None)
        others.update((id(value), value) for value in vars(module).values() if _is_tensor(value))
    written = filter(is_written, parameters.values())
    return list(parameters.values()), [*others.values(), *written]


def _is_tensor(value: Any) -> bool:
    # isinstance() is slowest when the answer is no
    return type(value) not in _NO_TENSORS and isinstance(value, torch.Tensor)


_NO_TENSORS = frozenset({bool, int, float, str, tuple, list, dict, set, OrderedDict, type(None)})


def _parameters_kept(parameters: list[torch.nn.Parameter]) -> PutBack:
    before = [(parameter, parameter.requires_grad, parameter.data) for parameter in parameters]

    def put_back() -> None:
        for parameter, flag, data in before:
            if not _is_same_memory(parameter.data, data):
                parameter.data = data
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)

    return put_back


def _is_same_memory(now: torch.Tensor, before: torch.Tensor) -> bool:
    if (now.device, now.dtype, now.layout) != (before.device, before.dtype, before.layout):
        return False
    plain = type(before) is torch.Tensor and before.layout is torch.strided and before.device.type != "meta"
    return now.is_set_to(before) if plain else now.shape == before.shape


def _value_kept(tensor: torch.Tensor) -> PutBack:
    value = tensor.detach().clone()

    def put_back() -> None:
        # batch norm writes its statistics without raising their version
        if not same_bits(tensor, value):
            with torch.no_grad():
                tensor.copy_(value)

    return put_back


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors of one shape and dtype hold the same numbers, including NaN at the same places."""
    if one.device.type == "meta":
        return True
    try:
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())
    except RuntimeError:  # dtypes that torch stores but cannot compare
        return False


def replaced_buffers(root: torch.nn.Module, before: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return buffers that a forward reassigned, as (old, new), such as ``self.steps = self.steps + 1``."""
    now = dict(root.named_buffers())
    return [
        (old, now[name])
        for name, old in before.items()
        if name in now and now[name] is not old and now[name].shape == old.shape and now[name].dtype == old.dtype
    ]


def state_bytes(module: torch.nn.Module) -> int:
    """Return the bytes of the parameters and buffers of a module; shared ones count once."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*module.parameters(), *module.buffers()))
