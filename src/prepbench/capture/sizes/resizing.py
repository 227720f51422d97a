"""Samples of other sizes, made from the user's along dynamic axes, with values that stay valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.inputs import Sample, arguments_by_name, named_leaves
from prepbench.objects.caches.counted import count_from_sizes
from prepbench.running.unchanged import run

Groups = Mapping[str, Sequence[Axis]]


def linked_axes(axes: DynamicAxes) -> dict[str, list[Axis]]:
    """Return the dynamic axes by symbol, where axes whose sizes always change by the same amount count as one.

    A cache of length ``n`` with a mask of length ``n + 1`` can only change together.
    """
    groups: dict[Any, list[Axis]] = {}
    for axis in axes.dynamic:
        steps = tuple(size - axis.sizes[0] for size in axis.sizes)
        groups.setdefault(steps if any(steps) else axis.symbol, []).append(axis)
    return {group[0].symbol: group for group in groups.values()}


def resized(
    function: Callable[..., Any],
    sample: Sample,
    changes: Mapping[str, int],
    groups: Groups,
    samples: Sequence[Sample] = (),
) -> Sample:
    """Return ``sample`` with the axes of each symbol in ``changes`` longer (or shorter) by the given number of entries.

    Values stay valid, as ``samples`` tell (:func:`with_sizes`).
    """
    before = sizes_in(function, sample)
    places = [((axis.path, axis.dim), change) for symbol, change in changes.items() for axis in groups[symbol]]
    sizes = {place: before[place] + change for place, change in places if place in before}
    return with_sizes(function, sample, sizes, samples)


def with_sums(changes: Mapping[str, int], groups: Groups, sizes: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """Return ``changes`` with implied ones, where a size is the sum of two others in all samples.

    A mask over a cache of length ``n`` and ``t`` new tokens has the length ``n + t``. Samples may have such sums by
    chance, so the model may refuse what this gives.

    Args:
        sizes: of the sample that is changed, by path and dim.
    """
    result = dict(changes)
    for total, (first, second) in _sums(groups):
        parts = result.get(first, 0) + result.get(second, 0)
        if parts and total not in result:
            result[total] = parts
        elif not parts and total in result:
            # what has no entries cannot get longer by repeating them
            longer = first if all(sizes[axis.path, axis.dim] for axis in groups[first]) else second
            result[longer] = result[total]
    return result


def _sums(groups: Groups) -> list[tuple[str, tuple[str, str]]]:
    """Return the symbols whose sizes are the exact sum of two others in all samples."""
    found = []
    for total, axes in groups.items():
        wanted = {axis.sizes for axis in axes}
        for first, second in combinations([symbol for symbol in groups if symbol != total], 2):
            made = {
                tuple(one + other for one, other in zip(a.sizes, b.sizes, strict=True))
                for a in groups[first]
                for b in groups[second]
            }
            if wanted & made:
                found.append((total, (first, second)))
                break
    return found


def resized_to_fit(
    model: torch.nn.Module,
    sample: Sample,
    changes: Mapping[str, int],
    groups: Groups,
    samples: Sequence[Sample] = (),
) -> Sample:
    """Return :func:`resized` with implied sums; without them if the model rejects that."""
    following = with_sums(changes, groups, sizes_in(model, sample))
    if following != changes:
        made = resized(model, sample, following, groups, samples)
        if _runs(model, made):
            return made
    return resized(model, sample, changes, groups, samples)


def sizes_in(function: Callable[..., Any], sample: Sample) -> dict[tuple[str, int], int]:
    """Return the sizes of all tensors of a sample, by path and dim."""
    tensors = [(path, leaf) for path, leaf in named_leaves(function, sample) if isinstance(leaf, torch.Tensor)]
    return {(path, dim): int(size) for path, leaf in tensors for dim, size in enumerate(leaf.shape)}


def _runs(model: torch.nn.Module, sample: Sample) -> bool:
    try:
        run(model, sample, model)
    except Exception:
        return False
    return True


def with_sizes(
    function: Callable[..., Any],
    sample: Sample,
    sizes: Mapping[tuple[str, int], int],
    samples: Sequence[Sample] = (),
) -> Sample:
    """Return ``sample`` with other sizes, by path and dim.

    Entries are repeated from the start or cut at the end, and what makes values valid is kept
    (:func:`prepbench.capture.sizes.resizing.valid_values`). A dim of size 0 stays as it is, because there is
    nothing to repeat.
    """
    paths = [path for path, _ in named_leaves(function, sample)]
    leaves, spec = pytree.tree_flatten((sample.args, sample.kwargs))
    before = list(leaves)
    for (path, dim), size in sizes.items():
        index = paths.index(path)
        leaves[index] = _with_size(leaves[index], dim, size)
    seen = [pytree.tree_leaves((one.args, one.kwargs)) for one in samples]
    leaves = valid_values(before, leaves, [before, *seen])
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    count_from_sizes(sample.counted, arguments_by_name(function, args, kwargs))
    return replace(sample, args=args, kwargs=kwargs)


def _with_size(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    length = tensor.shape[dim]
    if size < 0 or length == 0:
        return tensor
    index = torch.arange(size, device=tensor.device) % length
    # the order of the dims in memory stays, because a model may ask for it
    order = (
        sorted(range(tensor.dim()), key=tensor.stride, reverse=True) if _is_dense(tensor) else [*range(tensor.dim())]
    )
    picked = tensor.detach().permute(order).index_select(order.index(dim), index)
    return picked.permute([order.index(axis) for axis in range(tensor.dim())])


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and all(tensor.stride())


def base_sample(model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes) -> Sample:
    """Return the sample to trace with: every dynamic size is at least 2, made by repeating if no sample is like that.

    Sizes 0 and 1 broadcast, so a graph that is traced with them holds for nothing else.
    """
    groups = linked_axes(axes)

    def shortest(position: int) -> int:
        leaves = dict(named_leaves(model, samples[position]))
        return min((leaves[axis.path].shape[axis.dim] for axis in axes.dynamic), default=2)

    best = max(range(len(samples)), key=lambda position: min(shortest(position), 2))
    leaves = dict(named_leaves(model, samples[best]))
    changes = {}
    for symbol, group in groups.items():
        size = min(leaves[axis.path].shape[axis.dim] for axis in group)
        if size < 2:
            seen = [other - axis.sizes[0] for axis in group[:1] for other in axis.sizes]
            # a size that some sample has is known to be good, and is of the right kind (a multiple of a patch, say)
            start = group[0].sizes[0]
            larger = [start + step for step in seen if start + step >= 2]
            changes[symbol] = (min(larger) if larger else 2) - leaves[group[0].path].shape[group[0].dim]
            changes[symbol] = max(changes[symbol], 2 - size)
    return resized_to_fit(model, samples[best], changes, groups, samples) if changes else samples[best]


def varied(model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes) -> list[Sample]:
    """Return further samples in which one symbol varies, to trace a size to one axis. Some may not run."""
    groups = linked_axes(axes)
    first = base_sample(model, samples, axes)
    sizes = sizes_in(model, first)
    changes: list[dict[str, int]] = [{symbol: step} for symbol in groups for step in (1, 3)]
    following = [with_sums(change, groups, sizes) for change in changes]
    changes += [change for change in following if change not in changes]
    made = [resized(model, first, change, groups, samples) for change in changes]
    return [replace(sample, index=len(samples) + index) for index, sample in enumerate(made)]


# Resized samples keep the properties of their values: indices, offsets, lengths, masks, positions, sorted values.
#
# What a tensor must be is learned from the samples: what holds in all of them is kept. A rule that holds by chance does
# no harm, because the values it gives are possible ones, too.


_LARGEST = 1_000_000
"""Tensors of more entries are data, whose order nothing asks for."""


def valid_values(before: Sequence[Any], after: Sequence[Any], seen: Sequence[Sequence[Any]]) -> list[Any]:
    """Return ``after`` with valid values, by rules that hold in the samples.

    - A sequence of one step, such as positions, goes on; a permutation gets the numbers that are missing.
    - Sorted values stay sorted, and stay different where they are in all samples.
    - A triangle, such as a causal mask, is one of the new size.
    - Integers below a size of another tensor in all samples (indices, lengths) stay below it; what is equal to one (the
      last offset, a length, a sum of lengths) stays equal to it.

    All else, such as masks and constants, is left as it is: repeated entries are valid ones.

    Args:
        before: the leaves of a sample.
        after: the same leaves with entries repeated or cut.
        seen: the leaves of samples from which rules are learned.

    Example:
        >>> offsets = torch.tensor([0, 3, 5])
        >>> valid_values([offsets], [offsets[[0, 1, 2, 0]]], [[offsets]])[0].tolist()
        [0, 3, 5, 6]
    """
    samples = [[*leaves] for leaves in seen if len(leaves) == len(before)] or [[*before]]
    result = list(after)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        known = [leaves[index] for leaves in samples]
        if all(_is_plain(leaf) and leaf.dim() == old.dim() for leaf in (old, new, *known)):
            with torch.no_grad():
                result[index] = _Leaf(index, samples, result).valid(old, new, known)
    return result


def _is_plain(leaf: Any) -> bool:
    is_tensor = type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided
    return is_tensor and not leaf.is_meta and not leaf.is_complex() and 0 < leaf.numel() <= _LARGEST


class _Leaf:
    """Makes the values of one leaf valid, by the leaves of each sample and those of the new one."""

    def __init__(self, index: int, samples: Sequence[Sequence[Any]], after: Sequence[Any]) -> None:
        self._sizes = [list(_sizes(leaves, index)) for leaves in samples]
        self._new_sizes = list(_sizes(after, index))

    def valid(self, old: torch.Tensor, new: torch.Tensor, known: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the new values of the leaf."""
        limit = self._limit(known)
        values = _triangle(new, known) if old.shape != new.shape else None
        if values is None:
            values = old
            for dim, size in enumerate(new.shape):
                if size != values.shape[dim]:
                    values = _along(values, dim, size, [one.movedim(dim, -1) for one in known], limit)
        if _is_integer(values):
            values = self._with_ties(values, known)
            if limit is not None and int(values.max()) > limit:
                is_sorted = any(_is_sorted(known, dim) for dim in range(values.dim()))
                above = values.clamp(max=limit) if is_sorted or limit < 1 else values.remainder(limit + 1)
                values = torch.where(values > limit, above, values)
        if values.shape == new.shape and torch.equal(_comparable(values), _comparable(new)):
            return new
        made = new.clone()  # which has the order of dims in memory
        return made.copy_(values)

    def _limit(self, known: Sequence[torch.Tensor]) -> int | None:
        """Return the largest value that sizes of other leaves allow."""
        if not _is_integer(known[0]):
            return None
        tops = [int(one.max()) for one in known]
        limits = []
        for place, size in enumerate(self._new_sizes):
            old = self._old(place)
            if len(old) == len(tops) and all(top <= bound for top, bound in zip(tops, old, strict=True)):
                is_below = all(top < bound for top, bound in zip(tops, old, strict=True))
                limits.append(size - is_below)
        return min((limit for limit in limits if limit >= 0), default=None)

    def _old(self, place: int) -> list[int]:
        return [sizes[place] for sizes in self._sizes if place < len(sizes)]

    def _with_ties(self, values: torch.Tensor, known: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return values whose largest, or sum, equals a size of another leaf, if so in all samples."""
        if values.dim() > 1:
            return values
        tops, sums = [int(one.max()) for one in known], [int(one.sum()) for one in known]
        begins_at_zero = values.dim() == 1 and _is_sorted(known, 0) and all(int(one[0]) == 0 for one in known)
        for place, size in enumerate(self._new_sizes):
            old = self._old(place)
            if len(old) < len(known):
                continue
            is_told = len(set(old)) > 1  # not by chance
            for less in (0, 1):
                if all(top == bound - less for top, bound in zip(tops, old, strict=True)) and (
                    is_told or (begins_at_zero and not less and len(known[0]) > 1)
                ):
                    return torch.where(values == values.max(), size - less, values.clamp(max=size - less))
            is_split = values.dim() == 1 and sums == old and any(len(one) > 1 for one in known)
            if is_split and not begins_at_zero:
                return _with_sum(values, size, min(int(one.min()) for one in known))
        return values


def _sizes(leaves: Sequence[Any], but: int) -> Iterator[int]:
    """Yield the sizes of all leaves but one."""
    for index, leaf in enumerate(leaves):
        if index != but and isinstance(leaf, torch.Tensor):
            yield from map(int, leaf.shape)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and tensor.dtype != torch.bool


def _with_sum(values: torch.Tensor, total: int, least: int) -> torch.Tensor:
    """Return the values with another sum: the last ones absorb the difference."""
    made = values.tolist()
    made[-1] += max(0, total - sum(made))
    for index in reversed(range(len(made))):
        made[index] -= min(made[index] - min(least, made[index]), max(0, sum(made) - total))
    return values.new_tensor(made)


def _triangle(new: torch.Tensor, known: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a triangle of the new size, where all samples hold one of the same two values."""
    if new.dim() < 2 or new.shape[-1] != new.shape[-2]:
        return None
    if any(one.shape[-1] != one.shape[-2] or one.shape[-1] < 2 for one in known):
        return None
    first = known[0].reshape(-1, *known[0].shape[-2:])[0]
    low, high = first[-1, 0], first[0, -1]
    for lower in (True, False):
        inside, outside = (low, high) if lower else (high, low)
        if bool(inside == outside):
            return None
        made = [torch.where(_half(one.shape[-1], lower, one.device), inside, outside).expand_as(one) for one in known]
        if all(torch.equal(one, same) for one, same in zip(known, made, strict=True)):
            return torch.where(_half(new.shape[-1], lower, new.device), inside, outside).expand_as(new)
    return None


def _half(size: int, lower: bool, device: torch.device) -> torch.Tensor:
    ones = torch.ones(size, size, dtype=torch.bool, device=device)
    return ones.tril() if lower else ones.triu()


def _along(values: torch.Tensor, dim: int, size: int, known: Sequence[torch.Tensor], limit: int | None) -> torch.Tensor:
    """Return ``values`` with ``size`` entries along ``dim``; ``known`` has that dim last."""
    rows = values.detach().movedim(dim, -1)
    count = rows.shape[-1]
    repeated = rows.index_select(-1, torch.arange(size, device=rows.device) % max(count, 1))
    long = [one for one in known if one.shape[-1] > 1]
    if not long or size == 0 or count == 0:
        return repeated.movedim(-1, dim)
    made = _sequence(rows, size, long)
    if made is None:
        made = _permuted(rows, size, known)
    if made is None:
        made = _sorted(rows, repeated, size, long, limit)
    return made.movedim(-1, dim)


def _sequence(rows: torch.Tensor, size: int, known: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return an arithmetic sequence, if all samples have the same non-zero step."""
    if rows.dtype == torch.bool:
        return None
    steps = torch.cat([_steps(one, falls=False) for one in known])
    step = steps[0]
    if not bool(step != 0) or not torch.allclose(steps.double(), step.double(), rtol=1e-4, atol=0):
        return None
    numbers = torch.arange(size, device=rows.device)
    if bool(step > 0):
        return rows[..., :1] + step * numbers
    return rows[..., -1:] - step * numbers.flip(0)


def _permuted(rows: torch.Tensor, size: int, known: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a permutation of the numbers from 0 on."""
    if not _is_integer(rows):
        return None
    if not all(torch.equal(one.sort(-1).values, _numbers(one).expand_as(one)) for one in known):
        return None
    further = torch.arange(rows.shape[-1], max(size, rows.shape[-1]), dtype=rows.dtype, device=rows.device)
    longer = torch.cat([rows, further.expand(*rows.shape[:-1], -1)], -1)
    return longer[longer < size].reshape(*rows.shape[:-1], size)


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.arange(tensor.shape[-1], dtype=tensor.dtype, device=tensor.device)


def _sorted(
    rows: torch.Tensor, repeated: torch.Tensor, size: int, known: Sequence[torch.Tensor], limit: int | None
) -> torch.Tensor:
    """Return sorted values sorted; all others repeated."""
    for falls in (False, True):
        steps = torch.cat([_steps(one, falls=falls) for one in known])
        if not bool((steps >= 0).all()) or not bool((steps > 0).any()):
            continue
        is_strict = bool((steps > 0).all())
        if size <= rows.shape[-1]:
            return repeated
        if is_strict and rows.dtype != torch.bool:
            ordered = rows.flip(-1) if falls else rows
            made = _further(ordered, size, limit) if _is_integer(rows) else _between(ordered, size)
            return made.flip(-1) if falls else made
        return repeated.sort(-1, descending=falls).values
    return repeated


def _steps(tensor: torch.Tensor, *, falls: bool) -> torch.Tensor:
    """Return the differences of neighbours; booleans have some, too."""
    wide = tensor.double() if tensor.is_floating_point() else tensor.long()
    # an infinity minus itself is no number, and no step
    steps = torch.where(wide[..., 1:] == wide[..., :-1], 0, wide.diff(dim=-1)).reshape(-1)
    return -steps if falls else steps


def _is_sorted(known: Sequence[torch.Tensor], dim: int) -> bool:
    rows = [one.movedim(dim, -1) for one in known]
    return any(all(bool((_steps(one, falls=falls) >= 0).all()) for one in rows) for falls in (False, True))


def _further(rows: torch.Tensor, size: int, limit: int | None) -> torch.Tensor:
    """Return increasing integers: further ones up to the limit, then those skipped in between."""
    made = []
    for row in rows.reshape(-1, rows.shape[-1]).tolist():
        need, last = size - len(row), row[-1]
        end = last + need if limit is None else min(limit, last + need)
        free = [*range(last + 1, end + 1), *sorted({*range(row[0], last)} - {*row})][:need]
        short = need - len(free)  # there are not as many: the last is repeated
        made.append(sorted([*row, *free, *[max([last, *free])] * short]))
    return rows.new_tensor(made).reshape(*rows.shape[:-1], size)


def _between(rows: torch.Tensor, size: int) -> torch.Tensor:
    """Return as many evenly spaced values between the first and the last."""
    places = torch.linspace(0, rows.shape[-1] - 1, size, dtype=torch.float64, device=rows.device)
    below = places.floor().long().clamp(max=max(rows.shape[-1] - 2, 0))
    above = (below + 1).clamp(max=rows.shape[-1] - 1)
    return torch.lerp(rows[..., below].double(), rows[..., above].double(), places - below).to(rows.dtype)


def _comparable(value: torch.Tensor) -> torch.Tensor:
    """Return the values in a type that torch compares; it does not compare 8-bit floats."""
    return value.float() if value.is_floating_point() and value.element_size() == 1 else value
