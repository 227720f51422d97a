"""Restore plain Python objects that a model can reach: meters, logs, globals, class attributes.

Traced code sees stand-ins for tensors and numbers, and objects that keep them are broken afterwards. So all state that
a model's code can write to is recorded before and restored: the contents of its modules at any depth, the attributes of
its classes and functions, and the globals that its code names. Installed packages are assumed to keep no state in
globals.
"""

from __future__ import annotations

import argparse
import collections
import dis
import functools
import operator
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prepbench.patching import undoing
from prepbench.running.source_lines import is_user_code, is_user_file

PutBack = Callable[[], None]

_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), torch.Tensor, torch.dtype, torch.device,
    torch.Size, torch.Generator, torch.jit.ScriptModule, torch.fx.Graph, torch.fx.Node, types.ModuleType,
)  # fmt: skip
_COMMON = frozenset({type(None), bool, int, float, str, torch.Tensor, torch.nn.Parameter})
"""The most frequent of them, told apart without asking for every base class."""

_LARGE = 10_000
"""Containers with more items are put back, but not looked into."""

_LARGE_ARRAY = 2**20
"""Arrays of more bytes are left alone."""


def kept(*roots: Any) -> Iterator[PutBack]:
    """Record the objects that can be reached from ``roots``; yield functions that restore one object each.

    Unchanged objects are not written to, because another thread may be running the model.
    """
    seen: set[int] = set()
    atoms = dict.fromkeys(_COMMON, True)
    waiting: list[Any] = list(roots)
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind not in atoms:
            atoms[kind] = issubclass(kind, _ATOMS)
        if atoms[kind] or id(value) in seen:
            continue
        seen.add(id(value))
        put_back, parts = _looked_into(value)
        waiting += parts
        if put_back is not None:
            yield put_back


@contextmanager
def put_back_after(*roots: Any) -> Iterator[None]:
    """Undo the changes that the block makes to plain Python objects that can be reached from ``roots``."""
    with undoing() as undo:
        for step in kept(*roots):
            undo.add(step)
        yield


def _looked_into(value: Any) -> tuple[PutBack | None, list[Any]]:
    """Return how to restore a value if it is mutable, and its contents."""
    if isinstance(value, torch.nn.Module):
        return _module(value)
    if isinstance(value, dict | list | set | collections.deque):
        parts = list(value.values()) if isinstance(value, dict) else list(value)
        # an instance of a subclass may have attributes, too
        return content_kept(value), [*(parts if len(parts) <= _LARGE else ()), *getattr(value, "__dict__", {}).values()]
    if isinstance(value, tuple | frozenset):
        return None, list(value)
    if isinstance(value, np.ndarray):
        return (_array_kept(value) if value.nbytes <= _LARGE_ARRAY else None), []
    if isinstance(value, types.MethodType):
        return None, [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return None, [value.func, value.args, value.keywords]
    if isinstance(value, types.FunctionType):
        return _function(value) if is_own_function(value) else (None, [])
    if isinstance(value, type):
        return _class(value) if is_own_class(value) else (None, [])
    return _object(value)


def _object(value: Any) -> tuple[PutBack | None, list[Any]]:
    kind = type(value)
    if not is_own_object(kind):
        return None, []
    own = getattr(value, "__dict__", None)
    slots = _slots_of(value)
    steps = [attributes_kept(own)] if isinstance(own, dict) else []
    steps += [_slots_kept(value, slots)] if slots else []
    parts = [*(own or {}).values(), *slots.values(), kind]

    def put_back() -> None:
        for step in steps:
            step()

    return put_back, parts


def _module(module: torch.nn.Module) -> tuple[PutBack, list[Any]]:
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

    slots = _slots_of(module)
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

_PLAIN = (types.SimpleNamespace, argparse.Namespace)
_LIBRARIES = ("torch", "builtins", "prepbench", "numpy")
_ABSENT = object()


def slots_of(kind: type) -> list[str]:
    """Return the names of the slots of a class and those above."""
    names: list[str] = []
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        names += [_mangled(one, name) for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _slots_of(value: Any) -> dict[str, Any]:
    """Return the contents of an object's slots."""
    return {name: part for name in slots_of(type(value)) if (part := getattr(value, name, _ABSENT)) is not _ABSENT}


def _mangled(kind: type, name: str) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


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


def _class(kind: type) -> tuple[PutBack | None, list[Any]]:
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

    parts = [getattr(part, "__func__", part) for part in vars(kind).values()]
    properties = [function for part in parts if isinstance(part, property) for function in (part.fget, part.fset)]
    return put_back, [*parts, *properties, *kind.__bases__]


def _function(function: types.FunctionType) -> tuple[PutBack | None, list[Any]]:
    space, cells = function.__globals__, list(function.__closure__ or ())
    written = _names(function.__code__)[1]
    contents = [_content(cell) for cell in cells]
    attributes = attributes_kept(vars(function))
    globals_before = {name: space.get(name, _ABSENT) for name in written}

    def put_back() -> None:
        attributes()
        for cell, content in zip(cells, contents, strict=True):
            if content is not _ABSENT and _content(cell) is not content:
                cell.cell_contents = content
        for name, value in globals_before.items():
            if value is _ABSENT:
                space.pop(name, None)
            elif space.get(name, _ABSENT) is not value:
                space[name] = value

    parts = [value for _, value in named_globals(function)]
    parts += [content for content in contents if content is not _ABSENT]
    return put_back, [*parts, *vars(function).values(), function.__defaults__, function.__kwdefaults__]


def named_globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function's code names, including those of the user's modules that it names."""
    names, space = sorted(_names(function.__code__)[0]), function.__globals__
    found = [(name, value) for name in names if (value := space.get(name)) is not None]
    # metrics.LOG.append(...) names the global of another module
    parts = [*(value for _, value in found), *map(_content, function.__closure__ or ())]
    modules = [part for part in parts if isinstance(part, types.ModuleType) and _is_own_module(part)]
    return found + [
        (name, value) for module in modules for name in names if (value := vars(module).get(name)) is not None
    ]


@functools.lru_cache(maxsize=10_000)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that code reads or writes, including functions inside of it, and the globals that it assigns."""
    read = set(code.co_names)
    written = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _names(constant)
            read |= inner[0]
            written |= inner[1]
    return frozenset(read), frozenset(written)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return _ABSENT


def is_own_function(function: types.FunctionType) -> bool:
    """Return whether a function is the user's, and so may keep state in globals."""
    return is_user_code(function.__code__) and not _is_installed(function.__code__.co_filename)


def is_own_object(kind: type) -> bool:
    """Return whether objects of this class are defined by their attributes; those of torch, NumPy and Python are
    not.
    """
    home = kind.__module__.partition(".")[0]
    return kind in _PLAIN or not (home in _LIBRARIES or home in sys.stdlib_module_names)


def is_own_class(kind: type) -> bool:
    """Return whether a class is the user's, and so may keep state in its attributes."""
    home = kind.__module__.partition(".")[0]
    if home in _LIBRARIES or home in sys.stdlib_module_names:
        return False
    module = sys.modules.get(kind.__module__)
    return module is not None and not _is_installed(getattr(module, "__file__", None) or "")


def _is_own_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and is_user_file(file) and not _is_installed(file) and not file.startswith(_STDLIB)


_STDLIB = sysconfig.get_path("stdlib")


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


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
