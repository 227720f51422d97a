"""Restore plain Python objects that a model can reach: meters, logs, globals, class attributes.

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
        for step in kept(*roots):
            undo.add(step)
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
    return _object(value) if is_own_object(type(value)) else None


def _object(value: Any) -> PutBack:
    own = getattr(value, "__dict__", None)
    slots = _held(value, slots_of(type(value)))
    steps = [attributes_kept(own)] if isinstance(own, dict) else []
    steps += [_slots_kept(value, slots)] if slots else []

    def put_back() -> None:
        for step in steps:
            step()

    return put_back


def _module(module: torch.nn.Module, slot_names: list[str]) -> tuple[PutBack, list[Any]]:
    """Return how to restore a module, whose attributes are mostly flags and empty tables of hooks, which need no
    copy.
    """
    attributes = attributes_kept(vars(module))
    empty: list[Any] = []
    parts: list[Any] = [type(module)]
    for value in vars(module).values():
        kind = type(value)
        if kind in _TABLES and not value:
            empty.append(value)
        elif kind not in _COMMON:
            parts.append(value)

    slots = _held(module, slot_names)
    parts += slots.values()

    def put_back() -> None:
        attributes()
        if slots:
            _slots_kept(module, slots)()
        for table in empty:
            if table:
                table.clear()

    return put_back, parts


_TABLES = frozenset({dict, collections.OrderedDict, list, set})

_ABSENT = object()


def _held(value: Any, names: list[str]) -> dict[str, Any]:
    """Return the contents of an object's slots."""
    return {name: part for name in names if (part := getattr(value, name, _ABSENT)) is not _ABSENT}


def _slots_kept(value: Any, before: dict[str, Any]) -> PutBack:
    def put_back() -> None:
        for name in slots_of(type(value)):
            now = getattr(value, name, _ABSENT)
            if name not in before and now is not _ABSENT:
                object.__delattr__(value, name)
            elif name in before and now is not before[name]:
                object.__setattr__(value, name, before[name])

    return put_back


def _array_kept(array: np.ndarray[Any, Any]) -> PutBack:
    before = array.copy()

    def put_back() -> None:
        if array.flags.writeable and array.tobytes() != before.tobytes():
            array[...] = before

    return put_back


# -- classes, functions and the globals that they name


def _class(kind: type) -> PutBack:
    def now() -> dict[str, Any]:
        # Python keeps notes of its own in names with underscores
        return {name: value for name, value in vars(kind).items() if not name.startswith("__")}

    before = now()

    def put_back() -> None:
        changed = now()
        for name in [name for name in before if changed.get(name, _ABSENT) is not before[name]]:
            type.__setattr__(kind, name, before[name])
        for name in [name for name in changed if name not in before]:
            type.__delattr__(kind, name)

    return put_back


def _function(function: types.FunctionType) -> PutBack:
    space, cells = function.__globals__, function.__closure__ or ()
    written = names_in(function.__code__)[1]
    contents = cell_contents(function)
    attributes = attributes_kept(vars(function))
    globals_before = {name: space.get(name, _ABSENT) for name in written}

    def put_back() -> None:
        attributes()
        now = cell_contents(function)
        for number, content in contents.items():
            if now.get(number, _ABSENT) is not content:
                cells[number].cell_contents = content
        for name, value in globals_before.items():
            if value is _ABSENT:
                space.pop(name, None)
            elif space.get(name, _ABSENT) is not value:
                space[name] = value

    return put_back


# -- attributes and containers


def attributes_kept(live: dict[str, Any]) -> PutBack:
    """Return a function that restores the attributes of an object."""
    before = dict(live)

    def put_back() -> None:
        if not _same_items(live.values(), before.values()) or list(live) != list(before):
            _refill(live, before)

    return put_back


def content_kept(container: Any) -> PutBack:
    """Return a function that restores the contents of a list, dict, set or deque."""
    before = container.copy()

    def put_back() -> None:
        if isinstance(container, dict):
            if list(container) != list(before) or not _same_items(container.values(), before.values()):
                _refill(container, before)
        elif isinstance(container, set):
            if container != before:
                container.clear()
                container.update(before)
        elif isinstance(container, list):
            if not _same_items(container, before):
                container[:] = before
        elif not _same_items(container, before):
            container.clear()
            container.extend(before)

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
