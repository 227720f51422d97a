"""Nested values: find, replace and restore the tensors inside of anything that a forward takes or returns.

Pytrees cover tuples, dicts and registered classes. Models also pass caches, dataclasses and their own objects around;
those are walked through their attributes, and copied only along the way to a tensor: everything else stays shared.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.objects.parts import NO_DATA, SYMBOLS, Steps, attributes, data_parts, items, walk


@dataclass(frozen=True)
class Slot:
    """The place of the ``index``-th traced value in a structure."""

    index: int


_VALUES = (torch.Tensor, *SYMBOLS, Slot)


def is_value(value: Any) -> bool:
    """Return whether tracing follows this value itself: a tensor, or a symbolic number."""
    return isinstance(value, _VALUES)


def map_values(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``value`` with ``function`` applied to every tensor and symbolic number in it; unchanged parts stay
    shared.
    """
    return Mapper(function).visit(value)


def collect(value: Any) -> list[Any]:
    """Return the tensors and symbolic numbers inside ``value``, in the order of :func:`map_values`."""
    found: list[Any] = []

    def keep(leaf: Any) -> Any:
        found.append(leaf)
        return leaf

    map_values(value, keep)
    return found


class Mapper:
    """Copies a value with ``function`` applied to some of its parts; unchanged parts stay shared."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.done: dict[int, Any] = {}
        self.keep: list[Any] = []

    def visit(self, value: Any) -> Any:
        if isinstance(value, _VALUES):
            return self.function(value)
        # one level, so that each part that is a tuple of a class of its own is looked at by itself
        leaves, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
        if len(leaves) == 1 and leaves[0] is value:
            return self._object(value)
        changed = [self.visit(leaf) for leaf in leaves]
        if all(new is old for new, old in zip(changed, leaves, strict=True)):
            return value
        if hasattr(value, "_fields") and all(old is part for old, part in zip(leaves, value, strict=False)):
            # classes such as PackedSequence look at what they are made of, which need not be tensors here
            return tuple.__new__(type(value), changed)
        return pytree.tree_unflatten(changed, spec)

    def _object(self, value: Any) -> Any:
        if isinstance(value, torch.Size):  # a plain value, but its sizes may be symbolic
            sizes = [self.visit(size) for size in value]
            return value if all(a is b for a, b in zip(sizes, value, strict=True)) else tuple(sizes)
        if isinstance(value, NO_DATA):
            return value
        if id(value) not in self.done:
            self.done[id(value)] = value  # a cycle meets the original
            self.keep.append(value)
            self.done[id(value)] = self._copied(value)
        return self.done[id(value)]

    def _copied(self, value: Any) -> Any:
        held = items(value) if isinstance(value, dict | list) else []
        held += [(("attr", name), part) for name, part in attributes(value).items()]
        changed = [(step, new) for step, part in held if (new := self.visit(part)) is not part]
        if not changed:
            return value
        clone = copy.copy(value)
        for (kind, key), new in changed:
            if kind == "attr":
                object.__setattr__(clone, key, new)
            else:
                (dict if isinstance(clone, dict) else list).__setitem__(clone, key, new)
        return clone


_DEEPEST_PATH = 9


def paths(value: Any) -> list[tuple[Steps, Any]]:
    """Return each tensor and symbolic number in ``value`` with the steps that lead to it at run time: ``("tensor", n)``
    where no path can be written.
    """
    found = walk(value, lambda part: [] if is_value(part) else data_parts(part), once=False, deepest=_DEEPEST_PATH)
    readable = {id(leaf): steps for steps, leaf in found if is_value(leaf)}
    return [(readable.get(id(leaf), (("tensor", index),)), leaf) for index, leaf in enumerate(collect(value))]


def tensor_at(value: Any, index: int) -> Any:
    """Return the ``index``-th tensor or symbolic number in ``value``; generated code calls it where there is no
    path.
    """
    return collect(value)[index]


class Rebuild:
    """Builds a value like ``template`` with other tensors; generated code calls it to return caches and objects.

    Example:
        >>> make, values = Rebuild.of({"logits": torch.ones(2)})
        >>> make(*values)
        {'logits': tensor([1., 1.])}
    """

    def __init__(self, template: Any, name: str) -> None:
        self.template = template
        # FX writes a call by the name of its target
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    @classmethod
    def of(cls, value: Any) -> tuple[Rebuild, list[Any]]:
        """Return the recipe for ``value``, and the tensors to call it with."""
        values: list[Any] = []

        def slot(leaf: Any) -> Slot:
            values.append(leaf)
            return Slot(len(values) - 1)

        return cls(map_values(value, slot), f"make_{type(value).__name__}"), values

    def __call__(self, *values: Any) -> Any:
        return map_values(self.template, lambda slot: values[slot.index] if isinstance(slot, Slot) else slot)

    def __repr__(self) -> str:
        return f"Rebuild({self.__name__})"


class Applied:
    """A call of a custom ``torch.autograd.Function``; the target of its node in a graph."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.__name__ = self.__qualname__ = kind.__name__
        self.__module__ = kind.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.apply(*args, **kwargs)


# Numbers in objects that graphs take and return as tensors, because no size determines them and each call changes
# them.
#
# A static cache of a sliding window counts its seen tokens in a Python integer, because its code branches on whether
# the window is full. ``capture/sizes/library_caches`` has that code without the branch.


_NUMBERS = {"transformers.cache_utils.StaticSlidingWindowLayer": frozenset({"cumulative_length_int"})}


def tensor_numbers(kind: Any) -> frozenset[str]:
    """Return the attributes of a class that hold such a number."""
    return _of_bases(kind)


@functools.cache
def _of_bases(kind: Any) -> frozenset[str]:
    bases = [f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__]
    return frozenset().union(*(_NUMBERS[base] for base in bases if base in _NUMBERS))


def as_tensor(number: Any) -> Any:
    """Return an integer as a tensor without dims; other values unchanged."""
    return torch.tensor(number) if type(number) is int else number


def as_number(value: Any) -> Any:
    """Return the integer in a tensor that holds data; other values, such as traced tensors, unchanged."""
    is_plain = type(value) is torch.Tensor and not value.is_meta and value.numel() == 1
    return int(value) if is_plain else value


def parts_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, with such numbers as tensors."""
    parts, numbers = attributes(value), tensor_numbers(type(value))
    return {name: as_tensor(part) if name in numbers else part for name, part in parts.items()} if numbers else parts
