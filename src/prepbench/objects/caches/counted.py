"""Numbers that objects among the arguments count, such as the tokens in a cache, as sums of sizes.

A number in an object is a constant of a graph. But where it follows from the sizes of tensors of the same call, it can
be computed from them, and the graph holds for other numbers too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.objects.caches.transformers import tensor_numbers
from prepbench.objects.flatten import register_counted
from prepbench.objects.parts import Part, Steps, data_parts, expression, part_at, walk

Named = Mapping[str, Any]
"""The arguments of a call by name."""


@dataclass(frozen=True)
class CountedNumber:
    """A number in an object that is a sum or difference of sizes in all samples.

    Attributes:
        steps: from the arguments by name to the number.
        terms: for each size the steps to the tensor, the dim, and 1 or -1.
    """

    steps: Steps
    terms: tuple[tuple[Steps, int, int], ...]

    @property
    def path(self) -> str:
        """The path of the number as shown to users, e.g. ``"past.seen"``."""
        return path_text(self.steps)

    @property
    def formula(self) -> str:
        """The formula of the number, e.g. ``"mask.shape[1] - ids.shape[1]"``."""
        (first, dim, _), *rest = self.terms
        parts = [f" {'+' if sign > 0 else '-'} {path_text(steps)}.shape[{dim}]" for steps, dim, sign in rest]
        return "".join([f"{path_text(first)}.shape[{dim}]", *parts])

    def value(self, named: Named) -> Any:
        """Return the value of the number for the sizes of these arguments, which may be symbols.

        Raises:
            LookupError: an argument lacks one of the tensors.
        """
        total: Any = 0
        for steps, dim, sign in self.terms:
            size = part_at(named, steps).shape[dim]
            total = total + size if sign > 0 else total - size
        return total

    def to_list(self) -> list[Any]:
        """Return JSON-ready data."""
        return [_listed(self.steps), [[_listed(steps), dim, sign] for steps, dim, sign in self.terms]]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> CountedNumber:
        """Read the data that :meth:`to_list` wrote."""
        steps, terms = data
        return cls(_steps(steps), tuple((_steps(of), int(dim), int(sign)) for of, dim, sign in terms))


def count_from_sizes(numbers: Sequence[CountedNumber], named: Named) -> None:
    """Set the numbers in the objects among these arguments to the values that follow from their sizes."""
    for number in numbers:
        object.__setattr__(part_at(named, number.steps[:-1]), number.steps[-1][1], number.value(named))


def path_text(steps: Steps) -> str:
    """Return steps as shown to users, e.g. ``"past.layers[0].keys"``."""
    return expression(str(steps[0][1]), steps[1:])


def _listed(steps: Steps) -> list[Any]:
    return [list(step) for step in steps]


def _steps(data: Any) -> Steps:
    return tuple((str(kind), key) for kind, key in data)


# -- finding them

_DEEPEST = 9


def counted_numbers(calls: Sequence[Named]) -> tuple[CountedNumber, ...]:
    """Return the numbers in objects that differ between the calls and follow from sizes in all of them.

    A size itself comes before a difference of two, and a difference before a sum; sizes of tensor arguments come before
    those in objects, because an object may hold only the last of the entries that it counts.

    Example:
        >>> class Cache:
        ...     def __init__(self, seen):
        ...         self.seen = seen
        >>> sizes = (3, 2), (5, 1)
        >>> calls = [{"mask": torch.ones(1, n + m), "x": torch.ones(1, m), "cache": Cache(n)} for n, m in sizes]
        >>> [(number.path, number.formula) for number in counted_numbers(calls)]
        [('cache.seen', 'mask.shape[1] - x.shape[1]')]
    """
    found = [dict(_parts(call)) for call in calls]
    numbers = _varying([{steps: part for steps, part in parts.items() if _is_count(steps, part)} for parts in found])
    if not numbers:
        return ()
    sizes = _varying([_sizes(parts) for parts in found])
    made = []
    for steps, values in numbers.items():
        terms = next((terms for terms, sums in _sums(sizes) if sums == values), None)
        if terms is not None:
            made.append(CountedNumber(steps, terms))
            register_counted(type(part_at(calls[0], steps[:-1])), str(steps[-1][1]))
    return tuple(made)


def noted_sizes(calls: Sequence[Any]) -> dict[int, dict[int, str]]:
    """Return the numbers in objects that are a size of a tensor beside them, in all of these calls.

    If sizes are equal, the first number is matched with the first dim, the next one with the next.

    Args:
        calls: their arguments, nested alike.

    Returns:
        For each tensor of the first call, by id: the name of the number, by dim.

    Example:
        >>> class Cache:
        ...     def __init__(self, length):
        ...         self.length, self.keys = length, torch.zeros(2, length)
        >>> caches = [Cache(7), Cache(9)]
        >>> noted_sizes(caches)[id(caches[0].keys)]
        {1: 'length'}
    """
    found = [dict(_parts(call)) for call in calls]
    made: dict[int, dict[int, str]] = {}
    for steps, number in found[0].items():
        if not _is_count(steps, number):
            continue
        for place, tensor in found[0].items():
            if place[:-1] != steps[:-1] or not isinstance(tensor, torch.Tensor):
                continue
            names = made.setdefault(id(tensor), {})
            for dim in sorted(set(range(tensor.dim())) - set(names)):
                if all(_size(parts.get(place), dim) == parts.get(steps, -1) for parts in found):
                    names[dim] = str(steps[-1][1])
                    break
    return made


def _size(tensor: Any, dim: int) -> int | None:
    return tensor.shape[dim] if isinstance(tensor, torch.Tensor) and dim < tensor.dim() else None


def _parts(value: Any) -> Iterator[tuple[Steps, Any]]:
    """Yield the tensors and integers in a value with the steps that lead to them."""
    found = walk(value, _inside, once=False, deepest=_DEEPEST)
    return ((steps, part) for steps, part in found if isinstance(part, torch.Tensor) or type(part) is int)


def _inside(value: Any) -> list[Part]:
    kind = type(value)
    numbers = tensor_numbers(kind)
    return [(step, part) for step, part in data_parts(value) if step[0] == "item" or step[1] not in numbers]


def _is_count(steps: Steps, part: Any) -> bool:
    return type(part) is int and steps[-1][0] == "attr"


def _sizes(parts: Mapping[Steps, Any]) -> dict[tuple[Steps, int], int]:
    tensors = {steps: part for steps, part in parts.items() if isinstance(part, torch.Tensor)}
    ordered = sorted(tensors, key=lambda steps: any(kind == "attr" for kind, _ in steps))
    return {(steps, dim): int(size) for steps in ordered for dim, size in enumerate(tensors[steps].shape)}


def _varying(rows: Sequence[Mapping[Any, int]]) -> dict[Any, tuple[int, ...]]:
    """Return the entries that all rows have and that vary, with their values."""
    values = {key: tuple(row[key] for row in rows) for key in rows[0] if all(key in row for row in rows)}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def _sums(sizes: Mapping[tuple[Steps, int], tuple[int, ...]]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Yield sizes, their differences and sums, with the values in all samples; each size is named by its first
    place.
    """
    first: dict[tuple[int, ...], tuple[Steps, int]] = {}
    for place, values in sizes.items():
        first.setdefault(values, place)
    plain = {values: place for values, place in first.items() if all(kind == "item" for kind, _ in place[0])}
    for group in (plain, first):
        for values, place in group.items():
            yield ((*place, 1),), values
        pairs = list(itertools.permutations(group.items(), 2))
        for (one, here), (other, there) in pairs:
            yield ((*here, 1), (*there, -1)), tuple(a - b for a, b in zip(one, other, strict=True))
        for (one, here), (other, there) in pairs:
            yield ((*here, 1), (*there, 1)), tuple(a + b for a, b in zip(one, other, strict=True))
