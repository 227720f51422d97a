"""Numbers that objects among the arguments count, such as the tokens in a cache, as sums of sizes.

A number in an object is a constant of a graph. But where it follows from the sizes of tensors of the same call, it can
be computed from them, and the graph holds for other numbers too.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.objects.caches.transformers import tensor_numbers
from prepbench.objects.flatten import (
    collect,
    is_nothing,
    is_value,
    map_values,
    marks_in,
    register_counted,
    register_nodes,
)
from prepbench.objects.parts import NO_DATA, Part, Steps, attributes, data_parts, expression, part_at, walk

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
    """Yield sizes, their differences and sums, with their values in all samples; sizes have their first name."""
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


# Give empty caches the pytree structure of filled ones, with tensors of length 0.


Call = tuple[tuple[Any, ...], dict[str, Any]]


# A cache creates its tensors at the first write. So an empty one has None or no entries where a filled one has keys and
# values, and only filled ones of other calls tell the missing tensors.


class _Unknown(Exception):
    """Raised if nothing tells the size of a missing tensor."""


def with_empty_caches_filled(calls: Sequence[Call]) -> list[Call]:
    """Return the calls, with tensors added to objects that lack them but have them in other calls.

    The new tensors have the call's batch size and the length 0; they are along the dims that vary among the filled
    ones, or dim 2 of 4 as in keys and values. A length that objects of this kind have as a number, as static caches do,
    is taken from there. Where that does not say it, as for states of a fixed size, a call stays as it is. The objects
    that were given are not changed.

    Example:
        >>> class Cache:
        ...     keys = None
        >>> full, empty = Cache(), Cache()
        >>> full.keys, empty.keys = torch.ones(2, 4, 7, 8), None
        >>> calls = [((torch.ones(2, 1), full), {}), ((torch.ones(3, 1), empty), {})]
        >>> with_empty_caches_filled(calls)[1][0][1].keys.shape
        torch.Size([3, 4, 0, 8])
    """
    register_nodes(calls)  # an object of a registered class may hold one of an unregistered class
    held = [collect(call) for call in calls]
    most = max(map(len, held), default=0)
    full = [index for index, tensors in enumerate(held) if len(tensors) == most]
    if len(full) == len(calls) and not any(map(_has_flat_nothing, held)):
        return list(calls)
    full = [index for index in full if not _has_flat_nothing(held[index])] or full
    template, shapes = calls[full[0]], {}
    for place, tensor in enumerate(held[full[0]]):
        shapes[id(tensor)] = [tuple(getattr(held[index][place], "shape", ())) for index in full]
    batches, noted = [_batch(calls[index]) for index in full], noted_sizes([calls[index] for index in full])

    def alike(call: Call) -> Call:
        try:
            made: Call = _filled(call, template, _Make(shapes, batches, noted, _batch(call)), False)
        except _Unknown:
            return call
        return made

    return [call if index in full else alike(call) for index, call in enumerate(calls)]


def _has_flat_nothing(tensors: Sequence[Any]) -> bool:
    return any(map(is_nothing, tensors))


def _batch(call: Call) -> int | None:
    """Return the first size of the first tensor argument."""
    values = [*call[0], *call[1].values()]
    return next((int(value.shape[0]) for value in values if isinstance(value, torch.Tensor) and value.dim()), None)


@dataclass(frozen=True)
class _Make:
    """Makes the tensors of a filled cache for another call.

    Attributes:
        shapes: of each tensor of the filled cache, by id, in all filled ones.
        batches: of their calls.
        noted: names of numbers that are sizes of a tensor, by its id and then by dim.
        batch: of the call.
    """

    shapes: Mapping[int, Sequence[tuple[int, ...]]]
    batches: Sequence[int | None]
    noted: Mapping[int, Mapping[int, str]]
    batch: int | None

    def __call__(self, tensor: torch.Tensor, owner: Mapping[str, Any] | None = None) -> torch.Tensor:
        """Return a tensor of length 0, or of the lengths that its owner's attributes give."""
        sizes, shapes = list(tensor.shape), self.shapes[id(tensor)]
        alike = [shape[:1] == (size,) for shape, size in zip(shapes, self.batches, strict=True)]
        # the model itself reports a call with inconsistent parts later
        is_misfit = any(alike) and len({shape[:1] for shape in shapes}) > 1
        is_batched = self.batch is not None and (all(alike) or is_misfit)
        growing = [dim for dim in range(is_batched, len(sizes)) if len({shape[dim : dim + 1] for shape in shapes}) > 1]
        if not growing and len(sizes) == 4:
            growing = [2]
        if not growing or any(len(shape) != len(sizes) for shape in shapes):
            raise _Unknown
        if is_batched:
            assert self.batch is not None
            sizes[0] = self.batch
        known = {dim: (owner or {}).get(name) for dim, name in self.noted.get(id(tensor), {}).items()}
        return tensor.new_zeros([int(known.get(dim) or 0) if dim in growing else n for dim, n in enumerate(sizes)])


def _filled(value: Any, template: Any, make: _Make, is_inside: bool, owner: Mapping[str, Any] | None = None) -> Any:
    """Return ``value`` with the missing parts of ``template`` made anew; ``is_inside`` tells that it is part of an
    object.

    ``owner`` has the attributes of that object, if it holds the value itself.
    """
    if is_value(template):
        return make(template, owner) if is_inside and is_nothing(value) else value
    if type(value) is not type(template) or isinstance(template, NO_DATA) or not collect(template):
        return value
    if isinstance(template, list | tuple):
        parts = [_filled(one, other, make, is_inside) for one, other in zip(value, template, strict=False)]
        parts += [map_values(other, make) for other in template[len(parts) :]] if is_inside else value[len(parts) :]
        return type(template)(parts) if not hasattr(template, "_fields") else type(template)(*parts)
    if isinstance(template, Mapping):
        known = {key: _filled(part, template[key], make, is_inside) for key, part in value.items() if key in template}
        further = {key: map_values(part, make) for key, part in template.items() if key not in value and is_inside}
        return value if type(value) is not dict else {**value, **known, **further}
    return _filled_object(value, template, make)


def _filled_object(value: Any, template: Any, make: _Make) -> Any:
    mine, theirs = attributes(value), attributes(template)
    made = {name: _filled(mine.get(name), part, make, True, mine) for name, part in theirs.items() if collect(part)}
    made = {name: part for name, part in made.items() if part is not mine.get(name)}
    if not any(is_value(part) for part in made.values()):
        changes = made
    else:  # it is like one that was written to
        flags = {name: part for name, part in theirs.items() if name not in mine or isinstance(part, bool)}
        for name, part in made.items():
            flags |= {
                note: part.shape[dim] for dim, note in make.noted.get(id(theirs[name]), {}).items() if note in flags
            }
        changes = {**flags, **made}
    if not changes:
        return value
    for name, part in theirs.items():
        before = mine.get(name, part)
        if isinstance(part, dict) and not collect(part) and part.keys() != before.keys():
            raise _Unknown  # it counts or marks what is there
        if marks_in(part) != marks_in(before):
            raise _Unknown
    clone = copy.copy(value)
    for name, part in changes.items():
        object.__setattr__(clone, name, part)
    return clone
