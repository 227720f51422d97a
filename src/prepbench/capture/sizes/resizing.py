"""Samples of other sizes, made from the user's along dynamic axes, with values that stay valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.valid_values import valid_values
from prepbench.inputs import Sample, arguments_by_name, named_leaves
from prepbench.running.counted_numbers import count_from_sizes
from prepbench.running.outcomes import run

Groups = Mapping[str, Sequence[Axis]]


def linked_axes(axes: DynamicAxes) -> dict[str, list[Axis]]:
    """The dynamic axes by symbol, where axes whose sizes always change by the same amount count as one.

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
    """``sample`` with the axes of each symbol in ``changes`` longer (or shorter) by the given number of entries.

    Values stay valid, as ``samples`` tell (:func:`with_sizes`).
    """
    before = sizes_in(function, sample)
    places = [((axis.path, axis.dim), change) for symbol, change in changes.items() for axis in groups[symbol]]
    sizes = {place: before[place] + change for place, change in places if place in before}
    return with_sizes(function, sample, sizes, samples)


def with_sums(changes: Mapping[str, int], groups: Groups, sizes: Mapping[tuple[str, int], int]) -> dict[str, int]:
    """``changes`` with those that follow, where a size is the sum of two others in all samples.

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
    """The symbols whose sizes are the sum of those of two others, exactly and in all samples."""
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
    """:func:`resized`, with the sizes that are sums of the changed ones; without them if the model refuses that."""
    following = with_sums(changes, groups, sizes_in(model, sample))
    if following != changes:
        made = resized(model, sample, following, groups, samples)
        if _runs(model, made):
            return made
    return resized(model, sample, changes, groups, samples)


def sizes_in(function: Callable[..., Any], sample: Sample) -> dict[tuple[str, int], int]:
    """The sizes of all tensors of a sample, by path and dim."""
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
    """``sample`` with other sizes, by path and dim.

    Entries are repeated from the start or cut at the end, and what makes values valid is kept
    (:func:`prepbench.capture.sizes.valid_values.valid_values`). A dim of size 0 stays as it is, because there is
    nothing to repeat.

    Args:
        function: what is called with the sample.
        sample: the sample.
        sizes: the new sizes.
        samples: all samples, of which ``sample`` is one, or was made: they tell what makes values valid.
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
    """The sample to trace with: every dynamic size is at least 2, made by repeating if no sample is like that.

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
    """Further samples in which one symbol varies, so that a size is traced back to one axis. Some may not run."""
    groups = linked_axes(axes)
    first = base_sample(model, samples, axes)
    sizes = sizes_in(model, first)
    changes: list[dict[str, int]] = [{symbol: step} for symbol in groups for step in (1, 3)]
    following = [with_sums(change, groups, sizes) for change in changes]
    changes += [change for change in following if change not in changes]
    made = [resized(model, first, change, groups, samples) for change in changes]
    return [replace(sample, index=len(samples) + index) for index, sample in enumerate(made)]
