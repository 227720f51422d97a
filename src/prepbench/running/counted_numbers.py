"""Numbers that objects among the arguments count, such as how many tokens a cache has seen, as sums of sizes.

A number in an object is a constant of a graph. But where it follows from the sizes of tensors of the same call, it can
be computed from them, and the graph holds for other numbers too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.running.nested_values import Step, attributes, has_no_parts
from prepbench.running.object_nodes import register_counted

Steps = tuple[Step, ...]
Named = Mapping[str, Any]
"""The arguments of a call by name."""

_DEEPEST = 8


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
        """The number as people read it, e.g. ``"past.seen"``."""
        return path_text(self.steps)

    @property
    def formula(self) -> str:
        """What it is, e.g. ``"mask.shape[1] - ids.shape[1]"``."""
        (first, dim, _), *rest = self.terms
        parts = [f" {'+' if sign > 0 else '-'} {path_text(steps)}.shape[{dim}]" for steps, dim, sign in rest]
        return "".join([f"{path_text(first)}.shape[{dim}]", *parts])

    def value(self, named: Named) -> Any:
        """What it is for the sizes of these arguments, which may be symbols.

        Raises:
            LookupError: an argument lacks one of the tensors.
        """
        total: Any = 0
        for steps, dim, sign in self.terms:
            size = part_at(named, steps).shape[dim]
            total = total + size if sign > 0 else total - size
        return total

    def to_list(self) -> list[Any]:
        """JSON-ready data."""
        return [_listed(self.steps), [[_listed(steps), dim, sign] for steps, dim, sign in self.terms]]

    @classmethod
    def from_list(cls, data: Sequence[Any]) -> CountedNumber:
        """Read what :meth:`to_list` wrote."""
        steps, terms = data
        return cls(_steps(steps), tuple((_steps(of), int(dim), int(sign)) for of, dim, sign in terms))


def counted_numbers(calls: Sequence[Named]) -> tuple[CountedNumber, ...]:
    """The numbers in objects that differ between the calls and follow from sizes in all of them.

    A size itself comes before a difference of two, and a difference before a sum; sizes of arguments that are tensors
    come before those in objects, because what an object keeps may be only the last of what it counts.

    Example:
        >>> class Cache:
        ...     def __init__(self, seen):
        ...         self.seen = seen
        >>> calls = [{"mask": torch.ones(1, n + 2), "x": torch.ones(1, 2), "cache": Cache(n)} for n in (3, 5)]
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


def count_from_sizes(numbers: Sequence[CountedNumber], named: Named) -> None:
    """Set the numbers in the objects among these arguments to what their sizes say."""
    for number in numbers:
        object.__setattr__(part_at(named, number.steps[:-1]), number.steps[-1][1], number.value(named))


def part_at(value: Any, steps: Steps) -> Any:
    """The part of a value to which the steps lead.

    Raises:
        LookupError: there is none.
    """
    for kind, key in steps:
        if kind == "item":
            value = value[key]
        else:
            held = attributes(value)
            if key not in held:
                raise LookupError(f"no attribute {key!r}")
            value = held[key]
    return value


def path_text(steps: Steps) -> str:
    """Steps as people read them, e.g. ``"past.layers[0].keys"``."""
    (_, name), *rest = steps
    return str(name) + "".join(f".{key}" if kind == "attr" else f"[{key!r}]" for kind, key in rest)


def _parts(value: Any, steps: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """The tensors and integers in a value with the steps that lead to them."""
    if isinstance(value, torch.Tensor) or type(value) is int:
        yield steps, value
    elif has_no_parts(value) or len(steps) > _DEEPEST:
        return
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if isinstance(key, str | int):
                yield from _parts(part, (*steps, ("item", key)))
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _parts(part, (*steps, ("item", index)))
    elif type(value) not in pytree.SUPPORTED_NODES or type(value).__module__ != "builtins":
        for name, part in attributes(value).items():
            yield from _parts(part, (*steps, ("attr", name)))


def _is_count(steps: Steps, part: Any) -> bool:
    return type(part) is int and steps[-1][0] == "attr"


def _sizes(parts: Mapping[Steps, Any]) -> dict[tuple[Steps, int], int]:
    tensors = {steps: part for steps, part in parts.items() if isinstance(part, torch.Tensor)}
    ordered = sorted(tensors, key=lambda steps: any(kind == "attr" for kind, _ in steps))
    return {(steps, dim): int(size) for steps in ordered for dim, size in enumerate(tensors[steps].shape)}


def _varying(rows: Sequence[Mapping[Any, int]]) -> dict[Any, tuple[int, ...]]:
    """What all rows have and not all have alike, with its values."""
    values = {key: tuple(row[key] for row in rows) for key in rows[0] if all(key in row for row in rows)}
    return {key: found for key, found in values.items() if len(set(found)) > 1}


def _sums(sizes: Mapping[tuple[Steps, int], tuple[int, ...]]) -> Iterator[tuple[Any, tuple[int, ...]]]:
    """Sizes, their differences and sums, with the values in all samples; each size is named by its first place."""
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


def _listed(steps: Steps) -> list[Any]:
    return [list(step) for step in steps]


def _steps(data: Any) -> Steps:
    return tuple((str(kind), key) for kind, key in data)
