"""Give empty caches the pytree structure of filled ones, with tensors of length 0.

A cache creates its tensors at the first write. So an empty one has ``None`` or no entries where a filled one has keys
and values, and only filled ones of other calls tell the missing tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.objects.caches.counted import noted_sizes
from prepbench.objects.flatten import collect, is_nothing, is_value, map_values, marks_in, register_nodes
from prepbench.objects.parts import NO_DATA, attributes

Call = tuple[tuple[Any, ...], dict[str, Any]]


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
