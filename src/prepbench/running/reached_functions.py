"""The functions that calls of a model can reach, as far as names tell: those that a saved model may ask for by name."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from prepbench.objects.parts import NO_DATA, Part, functions_in, is_own_object, is_user_file, items, parts, walk
from prepbench.running.code_objects import nested_codes

_DEEPEST = 4


def reached_functions(model: torch.nn.Module) -> Iterator[types.FunctionType]:
    """Yield the user's functions that the forwards of a model's modules name, and those that these name.

    Methods are looked for in the classes of the model's modules and of the objects that these hold, functions among
    the globals and closures of those that name them. A method that nothing names on the way from a forward, such as
    one that loads or saves, is not among them.
    For a ``Net`` whose forward calls a method and a function: ``Net.forward``, ``Net.attention``, ``limited``.
    """
    methods = _methods(model)
    waiting = list(_first(model))
    seen: set[int] = set()
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        if is_user_file(function.__code__.co_filename):
            yield function
            waiting += _named(function, methods)


def reached_texts(model: torch.nn.Module, functions: Iterable[types.FunctionType]) -> set[str]:
    """Return the texts that stand in functions, and that modules of a model have as attributes."""
    found: set[str] = set()
    for function in functions:
        for code in _codes(function.__code__):
            found.update(_texts(code.co_consts))
        found.update(_texts((function.__defaults__, function.__kwdefaults__)))
    for module in model.modules():
        found.update(_texts(vars(module)))
    return found


def _texts(value: Any) -> Iterator[str]:
    return (part for _, part in walk(value, _items_and_keys, deepest=_DEEPEST) if isinstance(part, str))


def _items_and_keys(value: Any) -> list[Part]:
    keys = [(("member", number), key) for number, key in enumerate(value)] if isinstance(value, dict) else []
    return [*keys, *items(value)]


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(inner for _, inner in nested_codes(code))]


def _first(model: torch.nn.Module) -> Iterator[types.FunctionType]:
    for module in model.modules():
        for name in ("forward", "__call__"):
            yield from functions_in(vars(module).get(name))
            for kind in type(module).__mro__:
                yield from functions_in(vars(kind).get(name))
        for table in ("_forward_hooks", "_forward_pre_hooks"):
            for hook in vars(module).get(table, {}).values():
                yield from functions_in(hook)


def _methods(model: torch.nn.Module) -> dict[str, list[types.FunctionType]]:
    found: dict[str, list[types.FunctionType]] = {}
    kinds: dict[type, None] = {}
    for module in model.modules():
        kinds[type(module)] = None
        for value in _objects(vars(module)):
            kinds[type(value)] = None
    for base in dict.fromkeys(base for kind in kinds for base in kind.__mro__):
        for name, member in vars(base).items():
            functions = [each for each in functions_in(member) if is_user_file(each.__code__.co_filename)]
            if functions:
                found.setdefault(name, []).extend(functions)
    return found


def _objects(value: Any) -> Iterator[Any]:
    """Yield the user's plain objects inside of containers and of other objects."""
    for _, part in walk(value, _held, deepest=_DEEPEST):
        if isinstance(part, types.MethodType):
            yield part.__self__
        elif not isinstance(part, _NO_OBJECTS) and is_own_object(type(part)):
            yield part


def _held(value: Any) -> list[Part]:
    if isinstance(value, (dict, list, tuple, set)):
        return items(value)
    is_object = not isinstance(value, _NO_OBJECTS) and not callable(value) and is_own_object(type(value))
    return parts(value) if is_object else []


_NO_OBJECTS = (*NO_DATA, torch.Tensor, dict, list, tuple, set)


def _named(function: types.FunctionType, methods: dict[str, list[types.FunctionType]]) -> Iterator[types.FunctionType]:
    """Yield the values that the names in a function may refer to."""
    codes = _codes(function.__code__)
    for name in dict.fromkeys(name for code in codes for name in (*code.co_names, *code.co_freevars)):
        yield from methods.get(name, ())
        value = function.__globals__.get(name)
        yield from functions_in(value)
        if isinstance(value, type) and issubclass(value, torch.autograd.Function):
            for member in vars(value).values():
                yield from functions_in(member)
