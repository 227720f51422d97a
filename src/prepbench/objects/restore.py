"""Restore what a run leaves behind: the state of modules, and plain Python objects that a model can reach.

Traced code sees stand-ins for tensors and numbers, and objects that keep them are broken afterwards. So all state that
a model's code can write to is recorded before and restored: the contents of its modules at any depth, the attributes of
its classes and functions, and the globals that its code names. Installed packages are assumed to keep no state in
globals.
"""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakIdKeyDictionary

from prepbench._torch_compat import pytree
from prepbench._torch_compat.modes import OperatorMode
from prepbench._torch_compat.operators import schema_of
from prepbench.objects.parts import (
    OPAQUE,
    PLAIN,
    cell_contents,
    is_own_class,
    is_own_function,
    is_own_object,
    names_in,
    reached,
    slots_of,
    stored,
)
from prepbench.patching import undoing

PutBack = Callable[[], None]

_COMMON = frozenset({type(None), bool, int, float, str, torch.Tensor, torch.nn.Parameter})
"""The most frequent values that keep nothing, told apart without asking for every base class."""

_CONTAINERS = (dict, list, set, collections.deque)

_LARGE = 10_000
"""Containers with more items are put back, but not looked into."""

_LARGE_ARRAY = 2**20
"""Arrays of more bytes are left alone."""


def kept(*roots: Any) -> Iterator[PutBack]:
    """Record the objects that can be reached from ``roots``; yield functions that restore one object each.

    Unchanged objects are not written to, because another thread may be running the model.
    """
    seen: set[int] = set()
    keep_nothing = dict.fromkeys(_COMMON, True)
    slot_names: Callable[[Any], list[str]] = functools.cache(slots_of)
    waiting: list[Any] = list(roots)
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind not in keep_nothing:
            keep_nothing[kind] = issubclass(kind, (*PLAIN, *OPAQUE, torch.Tensor))
        if keep_nothing[kind] or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            restore, parts = _module(value, slot_names(kind))
            waiting += parts
            yield restore
            continue
        is_large = isinstance(value, _CONTAINERS) and len(value) > _LARGE
        waiting += getattr(value, "__dict__", {}).values() if is_large else [part for _, part in reached(value)]
        if (put_back := _put_back(value)) is not None:
            yield put_back


@contextmanager
def put_back_after(*roots: Any) -> Iterator[None]:
    """Undo the changes that the block makes to plain Python objects that can be reached from ``roots``."""
    with undoing() as undo:
        undo.add_all(kept(*roots))
        yield


def _put_back(value: Any) -> PutBack | None:
    """Return how to restore a value; None if nothing can be written to it, or it is a library's."""
    if isinstance(value, _CONTAINERS):
        return content_kept(value)
    if isinstance(value, np.ndarray):
        return _array_kept(value) if value.nbytes <= _LARGE_ARRAY else None
    if isinstance(value, types.FunctionType):
        return _function(value) if is_own_function(value) else None
    if isinstance(value, type):
        return _class(value) if is_own_class(value) else None
    return _object(value, slots_of(type(value))) if is_own_object(type(value)) else None


def _object(value: Any, slot_names: list[str]) -> PutBack:
    own = getattr(value, "__dict__", None)
    steps = [attributes_kept(own)] if isinstance(own, dict) else []
    if slot_names:
        write, remove = (functools.partial(change, value) for change in (object.__setattr__, object.__delattr__))
        steps.append(_names_kept(functools.partial(_held, value, slot_names), write, remove))
    return _all(steps)


def _all(steps: list[PutBack]) -> PutBack:
    if len(steps) == 1:
        return steps[0]

    def put_back() -> None:
        for step in steps:
            step()

    return put_back


def _module(module: torch.nn.Module, slot_names: list[str]) -> tuple[PutBack, list[Any]]:
    """Return how to restore a module, and the parts to look into: most are flags and empty tables, which are not."""
    restore = _object(module, slot_names)
    empty: list[Any] = []
    parts: list[Any] = [type(module), *_held(module, slot_names).values()]
    for value in vars(module).values():
        kind = type(value)
        if kind in _TABLES and not value:
            empty.append(value)
        elif kind not in _COMMON:
            parts.append(value)

    def put_back() -> None:
        restore()
        for table in empty:
            if table:
                table.clear()

    return put_back, parts


_TABLES = frozenset({dict, collections.OrderedDict, list, set})

_ABSENT = object()


def _held(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the contents of an object's slots."""
    return {name: part for name in names if (part := getattr(value, name, _ABSENT)) is not _ABSENT}


def _names_kept(
    read: Callable[[], dict[Any, Any]], write: Callable[[Any, Any], Any], remove: Callable[[Any], Any]
) -> PutBack:
    """Return how to restore named values that are no dict: slots, cells, globals, and attributes of classes."""
    before = read()

    def put_back() -> None:
        now = read()
        for name, value in before.items():
            if now.get(name, _ABSENT) is not value:
                write(name, value)
        for name in now.keys() - before.keys():
            remove(name)

    return put_back


def _array_kept(array: np.ndarray[Any, Any]) -> PutBack:
    before = array.copy()

    def put_back() -> None:
        if array.flags.writeable and array.tobytes() != before.tobytes():
            array[...] = before

    return put_back


def _class(kind: type) -> PutBack:
    def read() -> dict[str, Any]:
        # Python keeps notes of its own in names with underscores
        return {name: value for name, value in vars(kind).items() if not name.startswith("__")}

    return _names_kept(read, functools.partial(type.__setattr__, kind), functools.partial(type.__delattr__, kind))


def _function(function: types.FunctionType) -> PutBack:
    space, cells = function.__globals__, function.__closure__ or ()
    written = names_in(function.__code__)[1]

    def globals_now() -> dict[str, Any]:
        return {name: space[name] for name in written if name in space}

    def fill(number: int, content: Any) -> None:
        cells[number].cell_contents = content

    def empty(number: int) -> None:
        del cells[number].cell_contents

    return _all(
        [
            attributes_kept(vars(function)),
            _names_kept(functools.partial(cell_contents, function), fill, empty),
            _names_kept(globals_now, space.__setitem__, space.pop),
        ]
    )


# -- attributes and containers


def attributes_kept(live: dict[Any, Any]) -> PutBack:
    """Return a function that restores the attributes of an object, or the items of a dict."""
    before = stored(live)

    def put_back() -> None:
        if not _same_items(stored(live).values(), before.values()) or list(live) != list(before):
            _refill(live, before)

    return put_back


def content_kept(container: Any) -> PutBack:
    """Return a function that restores the contents of a list, dict, set or deque."""
    if isinstance(container, dict):
        return attributes_kept(container)
    before = container.copy()

    def put_back() -> None:
        if container == before if isinstance(container, set) else _same_items(container, before):
            return
        if isinstance(container, list):
            container[:] = before
        else:
            container.clear()
            (container.update if isinstance(container, set) else container.extend)(before)

    return put_back


def _same_items(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _refill(live: dict[Any, Any], before: dict[Any, Any]) -> None:
    # never empty in between: another thread may be reading, and an interrupt would leave it so
    live.update({name: value for name, value in before.items() if live.get(name, live) is not value})
    for name in [name for name in live if name not in before]:
        del live[name]
    _reorder(live, list(before))


def _reorder(live: dict[Any, Any], wanted: list[Any]) -> None:
    """Reorder keys; those in place already are not touched."""
    right = 0
    for name, other in zip(list(live), wanted, strict=True):
        if name is not other and name != other:
            break
        right += 1
    for name in wanted[right:]:
        live[name] = live.pop(name)


# The state of modules: attributes, buffers, parameters.


@contextmanager
def restored(root: torch.nn.Module, function: Any = None) -> Iterator[dict[str, torch.Tensor]]:
    """Undo what the block does to ``root`` and its submodules: attributes, tensors, ``requires_grad``, ``.data``.

    Plain Python objects that they reach are restored too (see :func:`kept`), and the values of tensors that are counted
    up in place. What has not changed is not written to, because another thread may be running the model. Yields the
    buffers as they were, by name.

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
    """Do as :func:`restored`, step by step, for callers that have :func:`tensors_of` the model already."""
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


_NO_TENSORS = frozenset({bool, int, float, str, type(None), tuple, *_TABLES})


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
