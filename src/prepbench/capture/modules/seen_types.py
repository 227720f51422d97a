"""Eager types for ``type(x)`` and ``isinstance(x, ...)`` in a model's code, where tensors and sizes are stand-ins."""

from __future__ import annotations

import inspect
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.fake_tensors import is_fake
from prepbench.patching import patched_item

_NUMBERS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The eager types of sizes and numbers."""

_REPLACED = frozenset({"type", "isinstance"})
_LIBRARIES = frozenset({"torch", "builtins", "prepbench", "numpy", *sys.stdlib_module_names})


@contextmanager
def types_as_in_eager(code: Iterable[Any]) -> Iterator[None]:
    """Give traced tensors and sizes their eager types during the block.

    This replaces ``type`` and ``isinstance`` in these classes and functions, and in functions that they name. Only
    files whose code uses them get the replacement, which behaves as the original for all other values.
    """
    spaces: dict[tuple[int, str], dict[str, Any]] = {}
    for function in _functions(code):
        for name in _REPLACED & _names(function.__code__):
            spaces[id(function.__globals__), name] = function.__globals__
    asked = _isinstance(threading.get_ident())
    with ExitStack() as stack:
        for (_, name), space in spaces.items():
            if name not in space:  # a model may have a name of its own
                stack.enter_context(patched_item(space, name, asked if name == "isinstance" else _Type))
        yield


def code_held_by(root: torch.nn.Module) -> list[Any]:
    """Return the classes of the modules, and the functions that modules hold as attributes."""
    classes: dict[type, None] = {}
    functions: list[Any] = []
    for module in root.modules():
        classes[type(module)] = None
        functions += [value for value in vars(module).values() if type(value) in _FUNCTIONS]
    return [*classes, *functions]


_FUNCTIONS = (types.FunctionType, types.MethodType)


def _functions(code: Iterable[Any]) -> list[types.FunctionType]:
    """Return the functions of classes and objects, and those that their code names, except those of libraries."""
    found: dict[int, types.FunctionType] = {}
    waiting = [function for part in code for function in _own_functions(part)]
    while waiting:
        function = inspect.unwrap(waiting.pop())
        if not isinstance(function, types.FunctionType) or id(function) in found:
            continue
        if (function.__module__ or "").partition(".")[0] in _LIBRARIES:
            continue
        found[id(function)] = function
        names = _names(function.__code__)
        for value in map(function.__globals__.get, names):
            if isinstance(value, types.FunctionType):
                waiting.append(value)
            elif isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES:
                waiting += [part for part in map(vars(value).get, names) if isinstance(part, types.FunctionType)]
    return list(found.values())


def _own_functions(part: Any) -> Iterator[Any]:
    if inspect.isroutine(part):
        yield getattr(part, "__func__", part)
        return
    kind = part if inspect.isclass(part) else type(part)
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            for value in vars(base).values():
                plain = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if callable(plain):
                    yield plain


def _names(code: types.CodeType) -> set[str]:
    """Return the names that a function's code calls, also in nested functions."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _isinstance(here: int) -> Any:
    """Return an ``isinstance`` for which sizes and numbers are int and float in the tracing thread."""

    def isinstance(value: Any, kinds: Any, /) -> bool:
        number = _NUMBERS.get(type(value))
        if number is not None and threading.get_ident() == here and issubclass(number, kinds):
            return True
        return _for_user(value, kinds)

    return isinstance


def _for_user(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds)


def asks_for_user(code: types.CodeType) -> bool:
    """Return whether library code checks a type on behalf of the user's code."""
    return code is _for_user.__code__


def _type_of_proxy(proxy: fx.Proxy) -> type:
    if proxy.node.op != "get_attr":
        return torch.Tensor
    path, _, name = str(proxy.node.target).rpartition(".")
    root: Any = proxy.tracer.root  # type: ignore[attr-defined]
    # not by getattr, which gives the proxy again
    return type(root.get_submodule(path)._parameters.get(name, torch.empty(0)))


class _LikeType(type):
    """Makes a class that stands in for ``type`` itself."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs:
            seen = args[0]
            if is_fake(seen):
                return torch.nn.Parameter if isinstance(seen, torch.nn.Parameter) else torch.Tensor
            if type(seen) in _NUMBERS:
                return _NUMBERS[type(seen)]
            if issubclass(type(seen), fx.Proxy):
                return _type_of_proxy(seen)
        return type(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, type)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


class _Type(type, metaclass=_LikeType):
    pass
