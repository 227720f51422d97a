"""Find the numbers in objects that follow from sizes: one size, or a difference or sum of two, in all samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from prepbench.objects.parts import Part, Steps, data_parts, part_at, walk
from prepbench.running.counted_numbers import CountedNumber, Named
from prepbench.running.object_nodes import register_counted
from prepbench.running.tensor_numbers import tensor_numbers

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
