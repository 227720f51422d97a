"""The parts of Python objects: which values have any, which ones these are, and how to get to each.

All code that looks through a user's objects starts here, so that a kind of object is known everywhere or nowhere.
"""

from __future__ import annotations

import argparse
import collections
import dis
import enum
import functools
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

Step = tuple[str, Any]
"""One step from a value to a part of it: ``("item", key)``, ``("attr", name)``, ``("member", n)`` of a set, ``("cell",
n)`` of a function, or ``("call", None)`` of a weak reference.
"""

Steps = tuple[Step, ...]
Part = tuple[Step, Any]

PLAIN = (
    type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), enum.Enum, np.generic, torch.dtype,
    torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Values that their repr describes completely."""

OPAQUE = (
    torch.Generator, torch.jit.ScriptModule, torch.fx.Graph, torch.fx.Node, types.ModuleType, types.BuiltinFunctionType,
)  # fmt: skip
"""Objects whose contents lie outside of Python, or belong to no single model."""

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

WRAPPERS: dict[type, tuple[str, ...]] = {
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
"""What wraps a function, with the attributes that lead to it and to what is bound to it."""

CODE = (types.FunctionType, type, *WRAPPERS)

NO_DATA = (*PLAIN, *OPAQUE, *CODE, torch.nn.Module)
"""Values that hold no arguments or results of a call, so that who looks for these does not enter them."""

LEAVES = (*NO_DATA, torch.Tensor, *SYMBOLS)
"""Values that are no objects with parts of a call: those of :data:`NO_DATA`, and what tracing follows itself."""


# -- the parts of one value


def parts(value: Any) -> list[Part]:
    """Return the parts of a value that Python code can read, each with the step to it.

    Items of dicts, sequences and sets, attributes in ``__dict__`` and slots, cells and defaults of functions, what
    methods and partial functions bind. Plain values, symbolic numbers and :data:`OPAQUE` objects have none.

    Example:
        >>> parts({"a": [1]}), parts(functools.partial(max, 1))[0]
        ([(('item', 'a'), [1])], (('attr', 'func'), <built-in function max>))
    """
    if type(value) in _BUILT_IN or isinstance(value, _NO_PARTS):
        return items(value)
    found = items(value)
    if isinstance(value, types.FunctionType):
        found += [(("cell", number), content) for number, content in cell_contents(value).items()]
        found += [(("attr", name), getattr(value, name)) for name in ("__defaults__", "__kwdefaults__")]
    elif isinstance(value, type):
        found.append((("attr", "__bases__"), value.__bases__))
    elif isinstance(value, weakref.ref):
        found.append((("call", None), value()))
    else:
        names = next((names for kind, names in WRAPPERS.items() if isinstance(value, kind)), ())
        found += [(("attr", name), getattr(value, name)) for name in names]
    return found + [(("attr", name), part) for name, part in attributes(value).items()]


_CONTAINERS = (dict, list, tuple, set, frozenset, collections.deque)
_BUILT_IN = frozenset(_CONTAINERS)
_NO_PARTS = (*PLAIN, *OPAQUE, *SYMBOLS)


def data_parts(value: Any) -> list[Part]:
    """Return the parts of a value that may hold arguments or results of a call, under names that a program can hold.

    Those are the items of mappings and sequences, and the attributes of all other objects.
    """
    if isinstance(value, LEAVES):
        return []
    if isinstance(value, Mapping):
        return [(("item", key), part) for key, part in value.items() if isinstance(key, str | int)]
    if isinstance(value, tuple | list):
        return items(value)
    return [(("attr", name), part) for name, part in attributes(value).items() if name.isidentifier()]


def items(value: Any) -> list[Part]:
    """Return the items of Python's own containers, and of arrays of objects, also of their subclasses."""
    if isinstance(value, dict):
        return [(("item", key), part) for key, part in stored(value).items()]
    if isinstance(value, list | tuple | collections.deque):
        return [(("item", number), part) for number, part in enumerate(value)]
    if isinstance(value, set | frozenset):
        return [(("member", number), part) for number, part in enumerate(value)]
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [(("item", place), value[place]) for place in np.ndindex(value.shape)]
    return []


def stored(value: dict[Any, Any]) -> dict[Any, Any]:
    """Return what a dict holds as a plain dict.

    A subclass may make something else of it when it is read, as tables do whose entries are classes and that return
    instances; an ``OrderedDict`` of this kind does so in ``items()``, too.
    """
    if not reads_differently(value):
        return dict(value)
    return {key: dict.__getitem__(value, key) for key in value}


def reads_differently(value: dict[Any, Any]) -> bool:
    """Return whether the class of a dict has its own way to read an item."""
    return type(value).__getitem__ not in (dict.__getitem__, collections.OrderedDict.__getitem__)


def attributes(value: Any) -> dict[str, Any]:
    """Return the instance attributes of ``value``, including those in ``__slots__``."""
    found = dict(getattr(value, "__dict__", {}))
    for name in slots_of(type(value)):
        if hasattr(value, name):
            found[name] = getattr(value, name)
    return found


def slots_of(kind: type) -> list[str]:
    """Return the names of the slots of a class and those above."""
    names: list[str] = []
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        names += [_mangled(one, name) for name in ([slots] if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _mangled(kind: type, name: str) -> str:
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private else name


def cell_contents(function: Any) -> dict[int, Any]:
    """Return what the cells of a closure hold, by their numbers; empty ones are left out."""
    found = {}
    for number, cell in enumerate(getattr(function, "__closure__", None) or ()):
        try:
            found[number] = cell.cell_contents
        except ValueError:  # an empty cell
            continue
    return found


# -- walks and paths


def walk(
    root: Any, into: Callable[[Any], list[Part]] = parts, *, once: bool = True, deepest: int | None = None
) -> Iterator[tuple[Steps, Any]]:
    """Yield a value and its parts at any depth, each before its own parts, with the steps that lead to it.

    Args:
        root: the value.
        into: the parts of a value that the walk follows.
        once: whether each object is yielded at the first of its places only; plain values are yielded at each place.
            Otherwise only an object inside of itself is left out.
        deepest: the most steps.

    Example:
        >>> [steps for steps, part in walk({"a": [1, 2]}) if part == 2]
        [(('item', 'a'), ('item', 1))]
    """
    # objects that were met, by id, kept alive because an id is valid only as long as its object
    met: dict[int, Any] = {}
    nothing: set[int] = set()
    waiting = [(Steps(), root, nothing)]  # no recursion: models nest deeper than Python's stack
    while waiting:
        steps, value, around = waiting.pop()
        if not isinstance(value, PLAIN):
            known = met if once else around
            if id(value) in known:
                continue
            met[id(value)] = value
        yield steps, value
        if deepest is None or len(steps) < deepest:
            inside = into(value)
            around = {*around, id(value)} if inside and not once else around
            waiting += [((*steps, step), part, around) for step, part in reversed(inside)]


def part_at(value: Any, steps: Steps) -> Any:
    """Return the part of a value at the end of the steps.

    Raises:
        LookupError: there is none.
    """
    for kind, key in steps:
        if kind == "item":
            value = value[key]
        elif kind == "attr":
            held = attributes(value)
            if key in held:
                value = held[key]
            elif isinstance(value, CODE) and hasattr(value, key):
                value = getattr(value, key)
            else:
                raise LookupError(f"no attribute {key!r}")
        elif kind == "call":
            value = value()
        else:
            value = list(value)[key] if kind == "member" else cell_contents(value)[key]
    return value


def set_part(value: Any, step: Step, part: Any) -> None:
    """Put another part into an object or a container; its own ``__setattr__`` and ``__setitem__`` do not run."""
    kind, key = step
    if kind == "attr":
        object.__setattr__(value, key, part)
    elif type(value) in _BUILT_IN:
        value[key] = part
    else:
        base: Any = next(base for base in _INDEXED if isinstance(value, base))
        base.__setitem__(value, key, part)


_INDEXED = (dict, list, collections.deque, np.ndarray)

_WRITTEN: dict[str, Callable[[str, Any], str]] = {
    "item": lambda text, key: f"{text}[{key!r}]",
    "attr": lambda text, name: f"{text}.{name}",
    "member": lambda text, number: f"list({text})[{number}]",
    "cell": lambda text, number: f"{text}.__closure__[{number}].cell_contents",
    "call": lambda text, _: f"{text}()",
}


def expression(root: str, steps: Steps) -> str:
    """Return the Python expression of a part of what is called ``root``, such as ``"past.layers[0].keys"``."""
    for kind, key in steps:
        root = _WRITTEN[kind](root, key)
    return root


# -- functions, and what the code of a model can reach


def functions_in(value: Any) -> Iterator[types.FunctionType]:
    """Yield the functions that a member of a class, or a decorated function, consists of."""
    return (part for _, part in walk(value, _towards_functions) if isinstance(part, types.FunctionType))


def _towards_functions(value: Any) -> list[Part]:
    if isinstance(value, types.FunctionType):
        cells = [(("cell", number), content) for number, content in cell_contents(value).items()]
        inside = [*cells, (("attr", "__wrapped__"), vars(value).get("__wrapped__"))]
        return [(step, part) for step, part in inside if isinstance(part, (types.FunctionType, *WRAPPERS))]
    if isinstance(value, (*_NO_PARTS, *_CONTAINERS, np.ndarray, torch.Tensor, torch.nn.Module, type)):
        return []
    return [(step, part) for step, part in parts(value) if step[1] in _TO_FUNCTIONS]


_TO_FUNCTIONS = frozenset({"__func__", "__wrapped__", "func", "fget", "fset", "fdel"})


def reached(value: Any) -> list[Part]:
    """Return the parts of a value that a model's code can read or write, also outside of the model.

    Of the user's objects also their class, of the user's functions the globals that they name. Functions, classes and
    objects of libraries are assumed to keep no state there.
    """
    kind = type(value)
    if kind in _BUILT_IN:
        return items(value)
    if isinstance(value, types.FunctionType):
        if not is_own_function(value):
            return []
        return [*((("global", name), part) for name, part in named_globals(value)), *parts(value)]
    if isinstance(value, type):
        return parts(value) if is_own_class(value) else []
    if isinstance(value, torch.nn.Module) or is_own_object(kind):
        return [*parts(value), (("attr", "__class__"), kind)]
    return parts(value) if isinstance(value, (*_CONTAINERS, *WRAPPERS, weakref.ref)) else []


_MEMBERS = (types.SimpleNamespace, argparse.Namespace)
_LIBRARIES = frozenset({"torch", "builtins", "prepbench", "numpy", *sys.stdlib_module_names})


def is_library(module: str | None) -> bool:
    """Return whether a module of this name is part of Python, torch, NumPy or prepbench."""
    return (module or "").partition(".")[0] in _LIBRARIES


def named_globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return the globals that a function's code names, including those of the user's modules that it names."""
    names, space = sorted(names_in(function.__code__)[0]), function.__globals__
    found = [(name, value) for name in names if (value := space.get(name)) is not None]
    # metrics.LOG.append(...) names the global of another module
    held = [*(value for _, value in found), *cell_contents(function).values()]
    modules = [part for part in held if isinstance(part, types.ModuleType) and _is_own_module(part)]
    return found + [
        (name, value) for module in modules for name in names if (value := vars(module).get(name)) is not None
    ]


@functools.lru_cache(maxsize=10_000)
def names_in(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that code reads or writes, including functions inside of it, and the globals that it assigns."""
    read = set(code.co_names)
    written = {i.argval for i in dis.get_instructions(code) if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_in(constant)
            read |= inner[0]
            written |= inner[1]
    return frozenset(read), frozenset(written)


def is_own_function(function: types.FunctionType) -> bool:
    """Return whether a function is the user's, and so may keep state in globals."""
    return is_user_code(function.__code__) and not _is_installed(function.__code__.co_filename)


def is_own_object(kind: type) -> bool:
    """Return whether attributes define objects of this class; they do not in those of torch, NumPy and Python."""
    return kind in _MEMBERS or not is_library(kind.__module__)


def is_own_class(kind: type) -> bool:
    """Return whether a class is the user's, and so may keep state in its attributes."""
    if is_library(kind.__module__):
        return False
    module = sys.modules.get(kind.__module__)
    return module is not None and not _is_installed(getattr(module, "__file__", None) or "")


def _is_own_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and is_user_file(file) and not _is_installed(file) and not file.startswith(_STDLIB)


_STDLIB = sysconfig.get_path("stdlib")


def _is_installed(file: str) -> bool:
    return "/site-packages/" in file or "/dist-packages/" in file


# Frames in these files run the capture, not the model.
_LIBRARY_ROOTS = tuple(
    str(Path(root).resolve()) + ("/" if Path(root).is_dir() else "")
    for root in (
        Path(torch.__file__).parent,
        Path(__file__).parent.parent,
        *(Path(_STDLIB) / name for name in ("contextlib.py", "importlib", "functools.py", "copy.py")),
    )
)


def is_user_code(code: types.CodeType) -> bool:
    """Return whether this code belongs to the user's model rather than to torch, prepbench or the import machinery."""
    return is_user_file(code.co_filename)


@functools.lru_cache(maxsize=10_000)
def is_user_file(file: str) -> bool:
    if file.startswith("<"):
        # notebook cells and exec'd code keep their text in linecache; frozen imports and FX's code are not the user's
        return not file.startswith(("<frozen", "<eval_with_key", "<string>", "<__array_function__"))
    resolved = str(Path(file).resolve())
    if "/torchao/" in resolved or "/executorch/" in resolved:
        return False
    return not resolved.startswith(_LIBRARY_ROOTS)
