"""Verify a captured graph at sizes that no sample has."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import torch

from prepbench.capture.aten.export_program import Program, axis_sizes, export_program
from prepbench.capture.aten.holds_where import paths_of, sizes_by_place
from prepbench.capture.aten.leaf_operators import KeepAlive
from prepbench.capture.aten.trial_calls import breaks
from prepbench.capture.sizes.axis import Axis, counted_places, pattern_of
from prepbench.capture.sizes.conditions import CONDITIONS, SizeCondition, SizeConditions, strongest
from prepbench.capture.sizes.dynamic_axes import DynamicAxes, size_key
from prepbench.capture.sizes.resizing import base_sample, linked_axes, resized_to_fit
from prepbench.document.model import SourceLine
from prepbench.errors import ConditionError
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import ROUNDED, Difference, Outcome, difference
from prepbench.objects.copy import Twin
from prepbench.running.first_calls import built_buffers, fill_caches_
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import outcome, repeated_outcome


@dataclass(frozen=True)
class AxisResult:
    """The behaviour of one dynamic axis at sizes that no sample has.

    Attributes:
        status: ``"holds"``; ``"specialised"`` (takes one size only); ``"bounded"`` (refuses sizes that the model
            takes); ``"wrong"`` (runs, but differs from the model); ``"untried"`` (the model takes no other size).
        held: sizes at which the graph equals the model.
        refused: sizes that the model takes and the graph does not.
        range: the sizes that the graph was made for; ``None`` for no upper bound.
        reason: the refusal of the first refused size.
        conditions: the graph's conditions on this size, in words, with the line of each.
        wrong: sizes at which the graph runs and differs from the model.
    """

    path: str
    dim: int
    symbol: str
    status: Literal["holds", "specialised", "bounded", "wrong", "untried"]
    held: tuple[int, ...] = ()
    refused: tuple[int, ...] = ()
    range: tuple[int, int | None] | None = None
    reason: str = ""
    conditions: tuple[SizeCondition, ...] = ()
    wrong: tuple[int, ...] = ()


@dataclass(frozen=True)
class AxesReport:
    """The comparison of a captured graph with its model, on the samples and on other sizes.

    ``largest_difference`` is over all outputs of all runs that succeeded.
    """

    axes: tuple[AxisResult, ...]
    samples: int
    largest_difference: float
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the graph equals the model on all samples and every dynamic axis holds."""
        return not self.problems and all(axis.status in ("holds", "untried") for axis in self.axes)

    def __repr__(self) -> str:
        lines = [
            f"{'Verified' if self.passed else 'Not verified'}: {self.samples} samples, largest difference to eager "
            f"{self.largest_difference:.2g}"
        ]
        lines += [f"  {problem}" for problem in self.problems]
        explained = {axis.symbol for axis in self.axes if axis.conditions and not axis.wrong}
        lines += axes_lines(self.axes, lambda axis: _axis_text(axis, explained=axis.symbol in explained))
        return "\n".join(lines)


def _axis_text(axis: AxisResult, *, explained: bool) -> str:
    tried = f"sizes tried: {', '.join(map(str, axis.held)) or 'none'}"
    if axis.status == "holds":
        return f"holds ({tried})"
    if axis.status == "untried":
        return "not tried, because the model itself takes no other size"
    refused = f"not {', '.join(map(str, axis.refused))}, which the model takes" if axis.refused else ""
    wrong = f"differs from the model at {', '.join(map(str, axis.wrong))}" if axis.wrong else ""
    bounds = f"made for {_range_text(axis.range)}" if axis.range else ""
    reason = "" if explained and not axis.wrong else axis.reason
    return f"{axis.status}: " + "; ".join(text for text in (bounds, tried, refused, wrong, reason) if text)


def _range_text(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{low} only" if low == high else f"{low} and more" if high is None else f"{low} to {high}"


class ChosenGraph(torch.nn.Module):
    """The graphs of several variants; runs the first whose conditions the sizes of a call meet."""

    def __init__(self, model: torch.nn.Module, graphs: Sequence[tuple[Program, Sequence[SizeCondition]]]) -> None:
        super().__init__()
        self.graphs = torch.nn.ModuleList(program.module(check_guards=False) for program, _ in graphs)
        self._asked = [(paths_of(program, model), conditions) for program, conditions in graphs]
        self._model = (model,)  # in a tuple, because its parameters are not those of this module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call, or raise ``ConditionError``."""
        sample = Sample(args, kwargs)
        for graph, (paths, conditions) in zip(self.graphs, self._asked, strict=True):
            sizes = sizes_by_place(self._model[0], paths, sample)
            if not any(breaks(sizes, condition) for condition in conditions):
                return graph(*args, **kwargs)
        raise ConditionError("No variant takes a call of these sizes. Capture with samples of such sizes, too.")


def verify_variants(
    graphs: Sequence[tuple[Program, Sequence[SizeCondition]]],
    model: torch.nn.Module,
    samples: Sequence[Sample],
    axes: DynamicAxes,
) -> AxesReport:
    """:func:`verify_axes` for several graphs, each with its conditions: a call that one refuses may suit another."""
    twin, module = Twin((model, ChosenGraph(model, graphs))).model
    return _verified([program for program, _ in graphs], module, twin, samples, axes)


def verify_axes(program: Program, model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes) -> AxesReport:
    """Run ``program`` and ``model`` on the samples, and with each axis at sizes that no sample has."""
    twin, module = Twin((model, program.module())).model
    if built_buffers(dict(model.named_buffers()), dict(program.named_buffers())):
        fill_caches_(twin, samples)
    leaves: KeepAlive | None = program.graph_module.meta.get("prepbench_keep_alive")
    with nullcontext() if leaves is None else leaves.running_on(twin):
        return _verified([program], module, twin, samples, axes)


def _verified(
    programs: Sequence[Program],
    module: torch.nn.Module,
    model: torch.nn.Module,
    samples: Sequence[Sample],
    axes: DynamicAxes,
) -> AxesReport:
    pair = _Pair(module, model, tuple(samples))
    problems, largest = [], 0.0
    for sample in samples:
        found = pair.compare(sample, outcome(model, sample, model))
        if not found.equal:
            problems.append(f"sample {sample.index}: {found.text}")
        largest = max(largest, found.largest)
    results: list[AxisResult] = []
    # the ranges of several graphs say nothing about all of them
    sizes = axis_sizes(programs[0], model, axes) if len(programs) == 1 else {}
    asked = _Questions(model, samples, axes)
    for symbol, group in linked_axes(axes).items():
        wanted = [size for size in _fresh_sizes(group[0].sizes) if all(axis.allows(size) for axis in group)]
        tried = [(size, pair.at_size(samples[0], axes, symbol, size)) for size in wanted]
        empty = pair.at_size(samples[0], axes, symbol, 0) if _may_be_empty(group) else None
        if empty is not None and not empty.equal and not isinstance(empty, _Refused):
            tried.append((0, empty))
        largest = max([largest, *(found.largest for _, found in tried if found is not None and found.equal)])
        for axis in group:
            offset = axis.sizes[0] - group[0].sizes[0]
            bounds = _bounds(programs[0], sizes.get((axis.path, axis.dim)))
            result = _result(axis.path, axis.dim, axis.symbol, tried, offset, bounds)
            missed = (*result.wrong, *result.refused)
            told = programs if missed or len(programs) == 1 else []
            conditions = tuple(dict.fromkeys(one for each in told for one in _conditions(each, axis, missed)))
            conditions = conditions or asked.about(axis, result.wrong)
            results.append(replace(result, conditions=conditions))
    return AxesReport(tuple(results), len(samples), largest, tuple(problems))


class _Refused(Difference):
    """A call that raised."""

    @property
    def text(self) -> str:
        return self.got


@dataclass(frozen=True)
class _Pair:
    """A program as a module, the model that it must equal, and the samples that are resized."""

    module: torch.nn.Module
    model: torch.nn.Module
    samples: tuple[Sample, ...]

    def at_size(self, sample: Sample, axes: DynamicAxes, symbol: str, size: int) -> Difference | None:
        """Return the difference on a sample resized to this size of an axis; ``None`` if the model itself rejects it.

        Calls on which the model is not deterministic are skipped: memory that it reads outside of its tensors is
        undefined.
        """
        groups = linked_axes(axes)
        change = {symbol: size - groups[symbol][0].sizes[0]}
        made = resized_to_fit(self.model, sample, change, groups, self.samples)
        try:
            expected = repeated_outcome(self.model, made, self.model)
        except Exception as error:
            raise_if_internal(error)
            return None
        return None if expected is None else self.compare(made, expected)

    def compare(self, sample: Sample, expected: Outcome) -> Difference:
        """Return the difference on one sample; an error of the program counts as one."""
        try:
            actual = outcome(self.module, sample, self.model)
        except Exception as error:
            raise_if_internal(error)
            return _Refused("call", "a result", f"refused: {_first_line(error)}")
        return difference(expected, actual, ROUNDED)


def _conditions(program: Program, axis: Axis, missed: Sequence[int]) -> tuple[SizeCondition, ...]:
    """Return the assumptions of tracing about an axis; else those that a failed size breaks."""
    conditions: SizeConditions = program.graph_module.meta.get(CONDITIONS) or SizeConditions()
    place = f"{axis.path}.shape[{axis.dim}]"
    found = [one for one in conditions.in_words() if size_key(place) in map(size_key, one.sizes)]
    found = found or [one for size in missed for one in conditions.broken_by(place, size)]
    return tuple(dict.fromkeys(found))


class _Questions:
    """The model's guards on sizes of 0 and 1, which tracing considers impossible."""

    def __init__(self, model: torch.nn.Module, samples: Sequence[Sample], axes: DynamicAxes) -> None:
        self._model, self._samples, self._axes = model, samples, axes

    def about(self, axis: Axis, sizes: Sequence[int]) -> tuple[SizeCondition, ...]:
        """Return the model's guards on an axis that are false at one of these sizes, with the line that makes them."""
        return tuple(
            dict.fromkeys(
                condition
                for size in sizes
                for condition in self._noted.broken_by(f"{axis.path}.shape[{axis.dim}]", size)
            )
        )

    @functools.cached_property
    def _noted(self) -> SizeConditions:
        base = base_sample(self._model, self._samples, self._axes)
        try:
            with tracing():
                program = export_program(self._model, base, self._axes, exact=True)
        except Exception:  # without these assumptions capture may fail; then its guards are unknown
            return SizeConditions()
        noted: SizeConditions = program.graph_module.meta[CONDITIONS]
        return noted


def _fresh_sizes(seen: tuple[int, ...]) -> list[int]:
    """Return the sizes to try: small ones, odd ones, and multiples of seen ones (for axes that must be divisible)."""
    top, low = max(seen), min(seen)
    step = math.gcd(*(size - low for size in seen))
    wanted = [1, top + 1, low + 1, 2 * low, top + step, 2 * top, 2, 3, 5, 3 * low, top + 2, top + 3]
    # large inputs are slow to run: stay within a few times what the user showed
    fresh = [size for size in dict.fromkeys(wanted) if size not in seen and 0 < size <= max(3 * top, 8)]
    return fresh[:9]


def _may_be_empty(group: Sequence[Axis]) -> bool:
    """Return whether to try a size of 0, which is reported only if the graph is wrong there."""
    return not any(0 in axis.sizes for axis in group) and all(axis.allows(0) for axis in group)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _bounds(program: Program, size: Any) -> tuple[int, int | None] | None:
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    bounds = program.range_constraints.get(size)
    if bounds is None:
        return None
    upper = bounds.upper
    high = int(upper) if getattr(upper, "is_Integer", isinstance(upper, int)) and upper < 2**40 else None
    # export starts its ranges at 2 and runs the graph at 0 and 1 all the same
    return (0 if bounds.lower <= 2 else int(bounds.lower)), high


def _result(
    path: str,
    dim: int,
    symbol: str,
    tried: list[tuple[int, Difference | None]],
    offset: int,
    bounds: tuple[int, int | None] | None,
) -> AxisResult:
    ran = [(size + offset, found) for size, found in tried if found is not None]
    held = tuple(sorted(size for size, found in ran if found.equal))
    failed = [(size, found) for size, found in ran if not found.equal]
    refused = tuple(sorted(size for size, found in failed if isinstance(found, _Refused)))
    reason = failed[0][1].text if failed else ""
    if not ran:
        return AxisResult(path, dim, symbol, "untried", range=bounds)
    if bounds is not None and bounds[0] == bounds[1]:
        return AxisResult(path, dim, symbol, "specialised", held, refused, bounds, reason)
    if len(failed) > len(refused):
        differing = {size: found.text for size, found in failed if not isinstance(found, _Refused)}
        reason = next(iter(differing.values()))
        wrong = tuple(sorted(differing))
        return AxisResult(path, dim, symbol, "wrong", held, refused, bounds, reason, wrong=wrong)
    status: Literal["holds", "bounded"] = "bounded" if refused else "holds"
    return AxisResult(path, dim, symbol, status, held, refused, bounds, reason)


# Verification results in few lines: axes with equal results are one line, and each reason is printed once.


class AxisFindings(Protocol):
    """The findings on one axis."""

    @property
    def path(self) -> str:
        """The path of the argument."""

    @property
    def dim(self) -> int:
        """The dim."""

    @property
    def symbol(self) -> str:
        """The name of the size."""

    @property
    def conditions(self) -> tuple[SizeCondition, ...]:
        """The conditions of the graph on the axis."""


A = TypeVar("A", bound=AxisFindings)


def axes_lines(axes: Iterable[A], text: Callable[[A], str]) -> list[str]:
    """Return one line for all axes of a symbol with the same ``text``, and below it each distinct reason."""
    alike: dict[tuple[str, str], list[A]] = {}
    for axis in axes:
        alike.setdefault((axis.symbol, text(axis)), []).append(axis)
    lines: list[str] = []
    told: set[str] = set()
    places_of = {f"{axis.path}.shape[{axis.dim}]": axis.symbol for members in alike.values() for axis in members}
    for (symbol, said), members in alike.items():
        places = ", ".join(counted_places((f"{axis.path}.shape[{axis.dim}]" for axis in members), places_of))
        lines.append(f"  {places} ({symbol}): {said}")
        asked = [condition for axis in members for condition in axis.conditions]
        reasons = condition_lines(list(_told_by_role(asked, places_of, is_fulfilled=said.startswith("holds"))))
        lines += [f"    {reason}" for reason in reasons if reason not in told]
        told.update(reasons)
    return lines


def _told_by_role(
    conditions: Iterable[SizeCondition], symbols: Mapping[str, str], *, is_fulfilled: bool
) -> Iterator[SizeCondition]:
    for condition in conditions:
        told = by_role(condition, symbols)
        if not _says_nothing(told.text):
            yield told
        elif not is_fulfilled:
            yield condition


def by_role(condition: SizeCondition, symbols: Mapping[str, str]) -> SizeCondition:
    """Return a condition with symbols in place of the dims of tensors in objects, which often agree.

    Args:
        condition: on sizes, e.g. ``past[0].key.shape[2] + x.shape[1] <= mask.shape[1]``.
        symbols: by size, e.g. ``{"past[0].key.shape[2]": "past"}``.
    """
    known = [place for place in symbols if place in condition.text and symbols[place]]
    if not any(re.search(r"[.\[]", place.rpartition(".shape")[0]) for place in known):
        return condition
    text = condition.text
    for place in sorted(known, key=len, reverse=True):
        text = text.replace(place, symbols[place])
    return replace(condition, text=_with_plain_sides(text))


_SUM = re.compile(r"-?\w+( [+-] \w+)*")
_RELATION = re.compile(r" (<=|>=|<|>|==|always equals) ")


def _with_plain_sides(text: str) -> str:
    """Return ``"-total + past + new <= 0"`` as ``"past + new <= total"``; other conditions unchanged."""
    parts = _RELATION.split(text)
    if len(parts) != 3 or not (_SUM.fullmatch(parts[0]) and _SUM.fullmatch(parts[2])):
        return text
    left, right = _terms(parts[0]), _terms(parts[2])
    one = [*(term for sign, term in left if sign == "+"), *(term for sign, term in right if sign == "-")]
    other = [*(term for sign, term in right if sign == "+"), *(term for sign, term in left if sign == "-")]
    one, other = (sorted(term for term in side if term != "0") or ["0"] for side in (one, other))
    return f"{' + '.join(one)} {parts[1]} {' + '.join(other)}"


def _terms(side: str) -> list[tuple[str, str]]:
    return [(sign or "+", term) for sign, term in re.findall(r"([+-]?) ?(\w+)", side)]


def _says_nothing(text: str) -> bool:
    """Return whether both sides of a condition are the same, because sizes of one symbol always agree."""
    parts = _RELATION.split(text)
    return len(parts) == 3 and parts[0] == parts[2] and parts[1] in ("==", "<=", ">=", "always equals")


def condition_lines(conditions: Sequence[SizeCondition]) -> list[str]:
    """Return each reason once; those of one line of code that differ in indices only are one, with a count. Of several
    bounds of one size, the narrowest is said.
    """
    alike: dict[object, list[SizeCondition]] = {}
    for condition in dict.fromkeys(strongest(conditions)):
        alike.setdefault((condition.source, _shape_of(condition.text)), []).append(condition)
    lines = []
    for first, *others in alike.values():
        if others:
            text = str(first).replace(first.text, pattern_of(first.text), 1)
            lines.append(f"{text}, {1 + len(others)} times")
        else:
            lines.append(str(first))
    return lines


def conditions_text(conditions: Sequence[SizeCondition]) -> str:
    """Return conditions as one text, in which each line of code stands once, behind what it asks."""
    asked: dict[SourceLine | None, list[SizeCondition]] = {}
    for condition in strongest(conditions):
        asked.setdefault(condition.source, []).append(replace(condition, source=None))
    parts = []
    for source, some in asked.items():
        code = f" ({source.file}:{source.line}: {source.code})" if source else ""
        parts.append(" and ".join(condition_lines(some)) + code)
    return " and ".join(parts)


def _shape_of(text: str) -> tuple[str, ...]:
    """Return the words of a condition without indices, sorted, because torch reorders sums and comparisons."""
    return tuple(sorted(pattern_of(text).split()))


def dynamic_text(axes: Iterable[Axis]) -> str:
    """Return the dynamic axes by symbol, e.g. ``"batch (x.shape[0]), past (past[*].key.shape[2] (6))"``."""
    places: dict[str, list[str]] = {}
    for axis in axes:
        places.setdefault(axis.symbol, []).append(f"{axis.path}.shape[{axis.dim}]")
    every = [path for paths in places.values() for path in paths]
    texts = [f"{', '.join(counted_places(paths, every))} ({symbol})" for symbol, paths in places.items()]
    return ("; " if any(len(paths) > 1 for paths in places.values()) else ", ").join(texts)
