"""Several graphs of one model, if the sizes of samples take both sides of a branch, and the samples of each graph."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from prepbench._torch_compat.programs import without_guards
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.export_program import SpecialisedSize
from prepbench.capture.aten.holds_where import paths_of, sizes_by_place, trials_beside, with_conditions_checked
from prepbench.capture.aten.trial_calls import Trial, breaks
from prepbench.capture.failures.describe import WrongProgram, unequal
from prepbench.capture.sizes.axis import Axis, with_symbols
from prepbench.capture.sizes.conditions import Asked, SizeCondition
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, SizesDecide, size_key
from prepbench.capture.sizes.resizing import sizes_in, with_sizes
from prepbench.document.model import Failure, SourceLine
from prepbench.errors import CaptureError
from prepbench.inputs import Sample

_OF_SIZES = frozenset(kind.__name__ for kind in (SizesDecide, SpecialisedSize, WrongProgram))

CaptureSome = Callable[[Sequence[Sample], DynamicAxes], Captured]


# how many graphs a compile makes unless it is told otherwise
DEFAULT_VARIANTS = 4


def sizes_may_decide(failures: Sequence[Failure]) -> bool:
    """Return whether diverging branches on sizes of samples may be the only obstacle to one graph."""
    return bool(failures) and {failure.exception_type for failure in failures} <= _OF_SIZES


def captured_variants(
    capture_some: CaptureSome, model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes, limit: int
) -> tuple[Captured, ...]:
    """Return one graph per path of the samples, in the order in which a call looks for one whose conditions it meets.

    Raises:
        CaptureError: there would be more; no conditions on sizes tell the samples apart; or each graph would take
            one size of an axis only.
    """
    found: list[Captured] = []
    left = list(samples)
    while left:
        if len(found) == limit:
            raise CaptureError(_too_many(found, left))
        found.append(_first_variant(capture_some, model, left, samples, axes))
        taken = {id(sample) for sample in found[-1].samples}
        left = [sample for sample in left if id(sample) not in taken]
    for axis in axes.dynamic:
        place = (axis.path, axis.dim)
        if not any(place in {(other.path, other.dim) for other in one.axes.dynamic} for one in found):
            raise CaptureError(
                f"Each size of {axis.path}.shape[{axis.dim}] in the samples would need a graph of its own, and none "
                "would take another size. Give samples of further sizes, or make this axis static with dynamic_axes=."
            )
    return tuple(found)


def _first_variant(
    capture_some: CaptureSome,
    model: torch.nn.Module,
    left: Sequence[Sample],
    samples: Sequence[Sample],
    axes: DynamicAxes,
) -> Captured:
    """Return the graph captured from the first of these samples, for all samples that take the same path."""
    alone, fixed = _captured_alone(capture_some, model, left[0], _axes_of(left[:1], samples, axes), samples)
    found = _with_conditions(alone, fixed)

    def of(same: Sequence[Sample]) -> Captured:
        of_same = _axes_of(same, samples, _as_in(axes, alone.axes))
        try:
            variant = found if len(same) == 1 else _with_conditions(capture_some(same, of_same), fixed)
        except CaptureError:  # torch's guards for either traced sample make no difference
            variant = _of_all(found, model, same, of_same)
        taken = {id(sample) for sample in variant.samples}
        told = _told_apart(variant, model, [sample for sample in left if id(sample) not in taken])
        return _with_conditions(told, _only_empty(told, model, samples))

    same = [
        sample for sample in left if sample is left[0] or _takes(found, model, sample, found.holds_where.firm, samples)
    ]
    try:
        return of(same)
    except CaptureError:  # then torch's guards distinguish the samples, so those that break one belong to another graph
        fewer = [
            sample for sample in same if sample is left[0] or _takes(found, model, sample, found.conditions, samples)
        ]
        if len(fewer) == len(same):
            raise
        return of(fewer)


def _of_all(captured: Captured, model: torch.nn.Module, same: Sequence[Sample], axes: DynamicAxes) -> Captured:
    """Return the graph of one sample for the others that it is right for, without guards that they disprove.

    The graph stays that of one sample if it refuses the others because of its traced sizes.
    """
    where, paths = captured.holds_where, paths_of(captured.program, model)
    trials = [Trial(sample, sizes_by_place(model, paths, sample), equal=True) for sample in same]

    def met(conditions: Sequence[SizeCondition]) -> tuple[SizeCondition, ...]:
        return tuple(one for one in conditions if not any(breaks(trial.sizes, one) for trial in trials))

    told = replace(where, doubtful=met(where.doubtful), edges=met(where.edges), trials=(*where.trials, *trials))
    disproved = [one for one in (*where.doubtful, *where.edges) if one not in (*told.doubtful, *told.edges)]
    further = trials_beside(captured.program, model, same, axes, told.firm, disproved)
    told = replace(told, trials=(*told.trials, *further))
    program = with_conditions_checked(without_guards(captured.program), told.conditions())
    if unequal(program.module(), model, same) is not None:
        return captured
    return replace(captured, program=program, samples=tuple(same), axes=axes, holds_where=told)


def _captured_alone(
    capture_some: CaptureSome,
    model: torch.nn.Module,
    sample: Sample,
    axes: DynamicAxes,
    others: Sequence[Sample],
) -> tuple[Captured, list[SizeCondition]]:
    """Return the graph of one sample, with as few static axes as possible, and conditions for these.

    Tracing takes sizes of 0 and 1 for others, and makes a constant of a size that the model compares with ``==``.
    """
    sizes = sizes_in(model, sample)
    small = {axis.symbol for axis in axes.dynamic if sizes[axis.path, axis.dim] < 2}
    fixed: dict[str, SourceLine | None] = {}

    def captured(symbols: Collection[str]) -> Captured:
        program = capture_some([sample], _fixed(axes, symbols))
        if not small <= set(symbols) and not _takes(program, model, sample, (), others):
            raise CaptureError("The graph agrees with the model by chance, on the values of this sample alone.")
        return program

    while True:
        try:
            found = captured(fixed)
            break
        except CaptureError as error:
            failures: Sequence[Failure] = getattr(error, "failures", ())
            further = _named(failures, axes, fixed) or {symbol: None for symbol in small if symbol not in fixed}
            if not further:  # other failures may come from assuming 2 for a size of 0 or 1
                raise
            fixed |= further
    for symbol in [symbol for symbol, source in fixed.items() if source is None and len(fixed) > 1]:
        fewer = {other: source for other, source in fixed.items() if other != symbol}
        with contextlib.suppress(CaptureError):
            found, fixed = captured(fewer), fewer
    paths = paths_of(found.program, found.model)
    places = [(axis, fixed[axis.symbol]) for axis in axes.dynamic if axis.symbol in fixed]
    return found, [_condition(paths, axis, sympy.Eq, sizes[axis.path, axis.dim], source) for axis, source in places]


def _named(failures: Sequence[Failure], axes: DynamicAxes, fixed: Collection[str]) -> dict[str, SourceLine | None]:
    """Return the axes that tracing specialises, and the lines that cause it."""
    found = specialised(failures, axes)
    return {axis.symbol: failure.source for axis, failure in found if axis.symbol not in fixed}


def specialised(failures: Sequence[Failure], axes: DynamicAxes) -> Iterator[tuple[Axis, Failure]]:
    """Yield the dynamic axes whose size the model fixes, and the failures that say so."""
    for failure in failures:
        if failure.exception_type == SpecialisedSize.__name__:
            keys = [size_key(name) for name in re.findall(r"\S+\.shape\[\d+\]", failure.message)]
            yield from ((axis, failure) for axis in axes.dynamic if size_key(f"{axis.path}.shape[{axis.dim}]") in keys)


def _fixed(axes: DynamicAxes, symbols: Collection[str]) -> DynamicAxes:
    """Return the axes, with those of these symbols static."""
    made = [replace(axis, dynamic=False) if axis.symbol in symbols else axis for axis in axes.axes]
    return DynamicAxes(with_symbols(made), axes.samples)


def _as_in(axes: DynamicAxes, other: DynamicAxes) -> DynamicAxes:
    """Return the axes, dynamic where others are."""
    dynamic = {(axis.path, axis.dim) for axis in other.dynamic}
    return _fixed(axes, {axis.symbol for axis in axes.dynamic if (axis.path, axis.dim) not in dynamic})


def _axes_of(some: Sequence[Sample], samples: Sequence[Sample], axes: DynamicAxes) -> DynamicAxes:
    """Return the axes with the sizes of some samples first; all samples decide which sizes belong together."""
    order = [index for index, sample in enumerate(samples) if any(sample is one for one in some)]
    order += [index for index in range(len(samples)) if index not in order]
    made = [
        replace(axis, sizes=tuple(axis.sizes[index] for index in order)) if len(axis.sizes) == len(samples) else axis
        for axis in axes.axes
    ]
    return DynamicAxes(tuple(made), tuple(some))


def _takes(
    captured: Captured,
    model: torch.nn.Module,
    sample: Sample,
    asked: Sequence[SizeCondition],
    others: Sequence[Sample],
) -> bool:
    """Return whether a sample meets the conditions, and the graph agrees with the model on it."""
    sizes = sizes_by_place(model, paths_of(captured.program, model), sample)
    if any(breaks(sizes, condition) for condition in asked):
        return False
    graph = captured.program.module(check_guards=False)
    if unequal(graph, model, [sample]) is not None:
        return False
    # a few entries may be equal by chance: the same sizes with the values of other samples tell, too
    wanted = sizes_in(model, sample)
    for other in others:
        made = with_sizes(model, other, wanted)
        if other is not sample and sizes_in(model, made) == wanted:
            with contextlib.suppress(Exception):  # values that belong to other sizes need not fit
                if unequal(graph, model, [made]) is not None:
                    return False
    return True


def _with_conditions(captured: Captured, firm: Sequence[SizeCondition]) -> Captured:
    """Return the variant with further conditions: the sizes that it alone has static."""
    where = captured.holds_where
    return replace(captured, holds_where=replace(where, firm=(*where.firm, *firm))) if firm else captured


def _condition(paths: Sequence[str], axis: Axis, relation: Any, size: int, source: SourceLine | None) -> SizeCondition:
    """Return the condition that a size must be, or must not be, a number."""
    name, symbol = f"{axis.path}.shape[{axis.dim}]", sympy.Symbol("s", integer=True, positive=True)
    asked = Asked(relation(symbol, size, evaluate=False), {symbol: name}, source, is_own=True)
    condition = asked.condition({size_key(name): (paths.index(axis.path), axis.dim)})
    return replace(condition, text=f"{name} must {'be' if relation is sympy.Eq else 'not be'} {size}")


def _told_apart(variant: Captured, model: torch.nn.Module, left: Sequence[Sample]) -> Captured:
    """Return the variant with conditions, such that each sample of other variants breaks one.

    Raises:
        CaptureError: a sample breaks none of them.
    """
    paths = paths_of(variant.program, variant.model)
    others = [Trial(sample, sizes_by_place(model, paths, sample), equal=False) for sample in left]
    where = variant.holds_where
    told = replace(variant, holds_where=replace(where, trials=(*where.trials, *others)))
    for trial in others:
        if any(breaks(trial.sizes, condition) for condition in told.conditions):
            continue
        if (condition := _only_here(variant, model, trial.sample)) is not None:
            told = _with_conditions(told, [condition])
        else:
            first = variant.samples[0].index
            raise CaptureError(
                f"inputs[{trial.sample.index}] takes another way than inputs[{first}], and no condition on sizes that "
                "is known tells them apart."
            )
    return told


def _only_empty(variant: Captured, model: torch.nn.Module, samples: Sequence[Sample]) -> list[SizeCondition]:
    """Return the conditions that sizes are 0 which are 0 in all samples of a variant, and larger in others.

    Results without entries are equal whatever the graph computes, and no trial call can be made from them.
    """
    seen = [sizes_in(model, one) for one in variant.samples]
    everywhere = [sizes_in(model, one) for one in samples]
    paths = paths_of(variant.program, variant.model)
    return [
        _condition(paths, axis, sympy.Eq, 0, None)
        for axis in variant.axes.dynamic
        if all(sizes[axis.path, axis.dim] == 0 for sizes in seen)
        and any(sizes.get((axis.path, axis.dim)) for sizes in everywhere)
    ]


def _only_here(variant: Captured, model: torch.nn.Module, sample: Sample) -> SizeCondition | None:
    """Return the unguarded condition that a size is not 0 or 1, if a sample has it and none of the variant."""
    sizes = sizes_in(model, sample)
    seen = [sizes_in(model, one) for one in variant.samples]
    for axis in variant.axes.dynamic:
        place = (axis.path, axis.dim)
        if (size := sizes[place]) < 2 and all(one[place] != size for one in seen):
            return _condition(paths_of(variant.program, variant.model), axis, sympy.Ne, size, None)
    return None


def _too_many(found: Sequence[Captured], left: Sequence[Sample]) -> str:
    asked = {condition.source for one in found for condition in one.conditions}
    places = sorted((one.file, one.line, one.code) for one in asked if one is not None)
    lines = [f"{file}:{line}: {code}" for file, line, code in places]
    ways = "; ".join(_indices(one.samples) for one in found)
    return (
        f"The sizes of the samples lead more ways than the {len(found)} graphs that variants={len(found)} allows. A "
        f"graph each takes {ways}, and {_indices(left)} need others. "
        + (f"What decides is asked at {', '.join(lines)}. " if lines else "")
        + "Raise variants=, or leave out samples."
    )


def _indices(samples: Sequence[Sample]) -> str:
    return ", ".join(f"inputs[{sample.index}]" for sample in samples)
