"""Find where a model holds functions and objects, each with the expression that reads it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_MOST_PLACES = 20_000


@dataclass(frozen=True)
class Place:
    """A function or object that a model holds.

    Attributes:
        where: the expression that reads it.
        value: the function or object.
        is_registered: whether it is in ``model.modules()``.
        owner: the expression of a tuple that it is a part of; "" for others.
        index: which part.
    """

    where: str
    value: Any
    is_registered: bool = False
    owner: str = ""
    index: int = 0

    def set_to(self, image: str) -> str:
        """Return the line that assigns a replacement."""
        if not self.owner:
            return f"{self.where} = {image}"
        return f"{self.owner} = ({self.owner}[:{self.index}] + ({image},) + {self.owner}[{self.index + 1}:])"


def places_of(model: torch.nn.Module) -> list[Place]:
    """Return the functions and objects of classes that a model called ``model`` holds, modules first."""
    found = [Place(f"model.get_submodule({fqn!r})" if fqn else "model", m, True) for fqn, m in model.named_modules()]
    seen = {id(place.value) for place in found}
    inside = [each for place in found for each in _of_object(place.value, place.where, seen)]
    return [*found, *inside][:_MOST_PLACES]


def functions_in(value: Any, seen: set[int] | None = None) -> Iterator[types.FunctionType]:
    """Yield the functions that a member of a class, or a decorated function, consists of."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        yield value
        parts = [*_cell_contents(value).values(), getattr(value, "__wrapped__", None)]
        yield from (f for part in parts if isinstance(part, types.FunctionType) for f in functions_in(part, seen))
    elif isinstance(value, property):
        yield from (f for part in (value.fget, value.fset, value.fdel) for f in functions_in(part, seen))
    elif not isinstance(value, type | torch.nn.Module | torch.Tensor):
        for name in ("__func__", "__wrapped__", "func"):
            part = _attribute(value, name)
            if callable(part):
                yield from functions_in(part, seen)


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute that exists without running code of the class."""
    own = getattr(value, "__dict__", {})
    if name in own:
        return own[name]
    kinds = (staticmethod, classmethod, types.MethodType)
    has_slot = isinstance(value, kinds) or type(value).__module__ in ("functools", "_functools")
    return getattr(value, name, None) if has_slot else None


def _cell_contents(function: types.FunctionType) -> dict[int, Any]:
    found = {}
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            found[index] = cell.cell_contents
        except ValueError:  # an empty cell
            continue
    return found


def _of_object(value: Any, where: str, seen: set[int]) -> Iterator[Place]:
    for name, part in list(vars(value).items()):
        if name in _TABLES and isinstance(value, torch.nn.Module):
            continue
        yield from _of_value(part, f"{where}.{name}", seen, is_hooks=name.endswith("_hooks"))
    if isinstance(value, torch.nn.Module):
        for name, part in value._modules.items():
            yield from _of_value(part, f"{where}.get_submodule({name!r})", seen)


def _of_value(value: Any, where: str, seen: set[int], *, is_hooks: bool = False) -> Iterator[Place]:
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.Tensor | type | types.ModuleType):
        return
    if isinstance(value, types.FunctionType | types.MethodType) or type(value).__module__ in (
        "functools",
        "_functools",
    ):
        # several places may hold one function, and all of them are to be changed
        yield Place(where, value)
        yield from _of_callable(value, where, seen)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for number, (key, part) in enumerate(list(value.items())):
            if is_hooks:  # their numbers differ from run to run
                yield from _of_value(part, f"{where}[list({where})[{number}]]", seen)
            elif isinstance(key, str | int):
                yield from _of_value(part, f"{where}[{key!r}]", seen)
    elif type(value) in (list, tuple):
        for number, part in enumerate(value):
            for place in _of_value(part, f"{where}[{number}]", seen):
                is_part = type(value) is tuple and place.value is part
                yield Place(place.where, part, False, where, number) if is_part else place
    elif hasattr(value, "__dict__"):
        yield Place(where, value)
        yield from _of_object(value, where, seen)


def _of_callable(value: Any, where: str, seen: set[int]) -> Iterator[Place]:
    if id(value) in seen:
        return
    if not isinstance(value, types.MethodType):  # each access makes a new one
        seen.add(id(value))
    if isinstance(value, types.FunctionType):
        for index, part in _cell_contents(value).items():
            yield from _of_value(part, f"{where}.__closure__[{index}].cell_contents", seen)
    elif isinstance(value, types.MethodType):
        yield from _of_value(value.__self__, f"{where}.__self__", seen)
