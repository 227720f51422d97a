"""The state that a forward leaves on its modules while it is traced, and how to restore it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from prepbench._torch_compat import pytree
from prepbench._torch_compat.modes import OperatorMode
from prepbench._torch_compat.operators import schema_of
from prepbench.patching import undoing
from prepbench.running.plain_state import PutBack, kept


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


# Parameters that a model's forward writes to, as ``nn.Embedding(max_norm=...)`` does, found by one watched run.
#
# A twin shares the parameters of the user's model, because copies would cost the memory of another model. Those that a
# run writes to are the exception: a twin has copies of them, and each run of a twin starts with their values.


# parameter -> whether a watched run wrote to it
_seen: WeakIdKeyDictionary = WeakIdKeyDictionary()


def is_written(parameter: torch.nn.Parameter) -> bool:
    """Return whether a watched run wrote to this parameter."""
    return bool(_seen.get(parameter, False))


def own_copy_of(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """Return a copy of a parameter that is written to, for a twin."""
    copied = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
    _seen[copied] = True
    return copied


def is_known(model: torch.nn.Module) -> bool:
    """Return whether a run of a model with these parameters was watched."""
    return all(parameter in _seen for parameter in model.parameters() if _can_be_watched(parameter))


@contextmanager
def writes_watched(model: torch.nn.Module) -> Iterator[None]:
    """Restore parameters that the block writes to, and record which ones; does nothing if that is known.

    For one run of a twin that shares the parameters of the user's model.

    Args:
        model: whose forward runs in the block.
    """
    if is_known(model):
        yield
        return
    parameters = [parameter for parameter in model.parameters() if _can_be_watched(parameter)]
    before = [(parameter, parameter.data) for parameter in parameters]
    with undoing() as undo, _Writes(parameters) as writes:
        undo.add(writes.put_back)
        yield
        for parameter, data in before:
            _seen[parameter] = is_written(parameter) or writes.reached(data) or not parameter.is_set_to(data)


def _can_be_watched(parameter: torch.nn.Parameter) -> bool:
    plain = parameter.layout is torch.strided and parameter.device.type != "meta"
    return plain and type(parameter) is torch.nn.Parameter


class _Writes(OperatorMode):
    """Saves the values of parameters before the first operation that writes to their memory."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owners: dict[int, list[torch.Tensor]] = {}
        for parameter in parameters:
            self._owners.setdefault(_memory(parameter), []).append(parameter.data)
        self._values: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = schema_of(func)
        if schema is None or schema.is_mutable:  # what functions do that an operator runs is not seen here
            for leaf in pytree.tree_leaves((args, kwargs)):
                if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided:
                    self._note(_memory(leaf))
        return func(*args, **kwargs)

    def reached(self, data: torch.Tensor) -> bool:
        """Return whether this memory may have been written to."""
        return any(not torch.equal(now, value) for now, value in self._values.get(_memory(data), ()))

    def put_back(self) -> None:
        """Restore the saved values."""
        for saved in self._values.values():
            for now, value in saved:
                now.copy_(value)

    def _note(self, memory: int) -> None:
        if memory in self._owners and memory not in self._values:
            self._values[memory] = [(data, data.clone()) for data in self._owners[memory]]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
