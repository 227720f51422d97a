"""The state in Python that a run of a model changes: attributes, and what lies outside of the model."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.tensors import version_of
from prepbench.objects.parts import CODE, PLAIN, SYMBOLS, Part, is_own_function, reached

_OF_MODULES = frozenset(vars(torch.nn.Module()))
_NOT_FOLLOWED = ("_parameters", "_buffers")
"""Tensors of the graph, which changes them as the model does."""

_CONTAINERS = (dict, list, set, collections.deque)
_LARGE = 10_000
"""Containers with more items, and arrays of more numbers, are not looked into."""


@dataclass(frozen=True)
class Place:
    """Where a model keeps something.

    Attributes:
        text: the place in words, such as ``"the attribute 1.calls"`` or ``"the global COUNTS"``.
        name: how code calls it.
        fqn: the module that leads to it.
        is_attribute: whether it is an attribute of this module, and not of what lies behind it or outside of the model.
    """

    text: str
    name: str
    fqn: str
    is_attribute: bool = False

    def of_part(self, step: tuple[str, Any]) -> Place:
        """Return the place of a part of what is here."""
        kind, key = step
        if kind == "attr" and not key.startswith("__"):
            return Place(f"{self.text}.{key}", key, self.fqn)
        if kind == "item" and isinstance(key, str):
            return Place(f"{self.text}[{key!r}]", self.name, self.fqn)
        return Place(self.text, self.name, self.fqn)


class ReachedState:
    """What a model can reach in Python, as it was when this was made.

    Args:
        model: the callee.
        with_tensors: whether to note tensors, too, other than parameters and buffers.

    Example:
        >>> class Counts(torch.nn.Module):
        ...     calls = 0
        ...     def forward(self, x):
        ...         self.calls += 1
        ...         return x
        >>> model = Counts()
        >>> noted = ReachedState(model)
        >>> _ = model(torch.ones(1))
        >>> [place.text for place in noted.changed()]
        ['the attribute calls']
    """

    def __init__(self, model: torch.nn.Module, *, with_tensors: bool = False) -> None:
        self._names = {id(module): fqn for fqn, module in model.named_modules()}
        self._noted: dict[int, tuple[Place, Any, Any]] = {}
        waiting: list[tuple[Place, Any]] = [(Place("the model", "", ""), model)]
        while waiting:
            place, value = waiting.pop()
            if with_tensors and isinstance(value, torch.Tensor):
                self._noted.setdefault(id(value), (place, value, version_of(value)))
            if isinstance(value, _WITHOUT_PARTS) or id(value) in self._noted:
                continue
            self._noted[id(value)] = place, value, _content(value)
            waiting += reversed(list(self._parts(place, value)))

    def changed(self) -> tuple[Place, ...]:
        """Return the places that hold something else now, each once."""
        found: dict[Place, None] = {}
        for place, value, before in self._noted.values():
            now = _content(value)
            if not isinstance(before, dict):
                found.update({} if _is_same(before, now) else {place: None})
                continue
            steps = [
                step for step in {**before, **now} if not _is_same(before.get(step, _ABSENT), now.get(step, _ABSENT))
            ]
            if isinstance(value, _CONTAINERS):
                found.update({place: None} if steps else {})
            else:
                found.update((self._place(place, value, step), None) for step in steps)
        return tuple(found)

    def noted_tensors(self) -> list[tuple[Place, torch.Tensor, int]]:
        """Return the tensors that were noted, with their places and counts of changes."""
        return [one for one in self._noted.values() if isinstance(one[1], torch.Tensor)]

    def codes(self) -> list[types.CodeType]:
        """Return the code of the user's functions that the model can reach."""
        values = (value for _, value, _ in self._noted.values())
        return [each.__code__ for each in values if isinstance(each, types.FunctionType) and is_own_function(each)]

    def _parts(self, place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
        if isinstance(value, _CONTAINERS) and len(value) > _LARGE:
            return
        for step, part in reached(value):
            if isinstance(value, torch.nn.Module) and step[1] in _OF_MODULES:
                inside = part.values() if isinstance(part, dict) and step[1] not in _NOT_FOLLOWED else ()
                hook = Place(f"a hook of {self._names.get(id(value)) or 'the model'}", "", place.fqn)
                yield from ((hook, each) for each in inside)
            else:
                yield self._place(place, value, step), part

    def _place(self, place: Place, value: Any, step: tuple[str, Any]) -> Place:
        kind, key = step
        if isinstance(value, torch.nn.Module) and kind == "attr":
            fqn = self._names.get(id(value), place.fqn)
            return Place(f"the attribute {fqn}.{key}" if fqn else f"the attribute {key}", key, fqn, is_attribute=True)
        if kind == "global":
            return Place(f"the global {key}", key, place.fqn)
        if isinstance(value, type) and kind == "attr":
            return Place(f"the class attribute {value.__qualname__}.{key}", key, place.fqn)
        if isinstance(value, types.FunctionType):
            name = value.__code__.co_freevars[key] if kind == "cell" else key
            is_default = key in ("__defaults__", "__kwdefaults__")
            text = (
                f"a default argument of {value.__qualname__}"
                if is_default
                else f"the variable {name} of {value.__qualname__}"
            )
            return Place(text, name, place.fqn)
        return place.of_part(step)


def written_tensors(model: torch.nn.Module, run: Callable[[], object]) -> tuple[Place, ...]:
    """Return where the tensors are that a run writes into, other than parameters and buffers; they stay as they were.

    Args:
        model: what can reach them.
        run: runs it.
    """
    noted = ReachedState(model, with_tensors=True).noted_tensors()
    before = [(tensor, tensor.detach().clone()) for _, tensor, _ in noted]
    try:
        run()
        written = [place for place, tensor, count in noted if version_of(tensor) != count]
    finally:
        with torch.no_grad():
            for tensor, value in before:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)
    return tuple(dict.fromkeys(written))


_WITHOUT_PARTS = (*PLAIN, *SYMBOLS, torch.Tensor)
_ABSENT = object()


def _content(value: Any) -> Any:
    """Return what a run may change in a value: its parts, or a copy where the order of parts says nothing."""
    if isinstance(value, torch.Tensor):
        return version_of(value)
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.size <= _LARGE and not value.dtype.hasobject else None
    if isinstance(value, set):
        return value.copy()
    if isinstance(value, _CONTAINERS) and len(value) > _LARGE:
        return len(value)
    return {step: part for step, part in reached(value) if _is_content(value, (step, part))}


def _is_content(value: Any, part: Part) -> bool:
    (_, key), _ = part
    if isinstance(value, torch.nn.Module):
        return key not in _OF_MODULES
    return not (isinstance(value, CODE) and isinstance(key, str) and key.startswith("__"))


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # tensors and arrays
        return False
