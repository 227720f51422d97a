"""Search on the bench for the best settings within a budget, and what was found: candidates as text, their places in a
chart, and the best for each stop of a slider.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prepbench.bench.cards import WHOLE_AGAIN
from prepbench.bench.compiling import check_sizes
from prepbench.bench.layer_costs import wanted_settings
from prepbench.bench.queue import QueuedRun, SharedParts
from prepbench.bench.runs import OTHER_VALUES
from prepbench.bench.state import EVERYTHING, FLOAT, BenchState
from prepbench.bench.status import SEARCHING
from prepbench.bench.summary import BudgetStop, FoundSettings, SearchNow, SearchSummary
from prepbench.checks import check_function, check_progress, check_type, described
from prepbench.document.bench import Chart
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.jobs import Job, ProgressCallback, check_cancelled, report_nothing
from prepbench.measure.comparison import megabytes, milliseconds, number
from prepbench.measure.generation import Generation
from prepbench.measure.metrics import Metric
from prepbench.quantize.insert import NothingQuantizedError
from prepbench.running.metric_scores import metric_name
from prepbench.search.candidates import name_of_settings
from prepbench.search.mixtures import FLOAT as IN_FLOAT
from prepbench.search.noise import EqualizableCandidates
from prepbench.search.objective import OBJECTIVES, Budget, costs_besides_drop
from prepbench.search.scoring import is_higher_better
from prepbench.search.search import search
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.settings import ExplainedLayer
from prepbench.targets import target_for
from prepbench.targets.base import unsupported
from prepbench.views.bench_chart import ChartRun, bench_chart

STOPS = 12
_KEPT = 3  # layers in float that are named
_COMPARED = 2  # candidates that are named beside the best
_BOUNDS = {
    "max_drop": ("a drop of at most", "{:.3g}"),
    "min_metric": ("at least", "{:.3g}"),
    "max_latency_ms": ("at most", "{:.3g} ms"),
    "max_size_mb": ("at most", "{:.3g} MB"),
}
"""Quantities a slider may move, in words, and how a place is written; the first that a budget bounds is moved."""

_NOT_WHOLE = "A search needs the model as one graph: keep nothing in PyTorch."


@dataclass(frozen=True)
class Stop:
    """A budget and the best candidate within it."""

    budget: Budget
    best: str
    why: str


@dataclass(frozen=True)
class Found:
    """The known results of a search.

    Attributes:
        budget: the budget of the search; None before the first search.
        metric: the metric's name, "" before one was measured.
        unit: ``"dB"`` for SQNR.
        higher_is_better: direction of the metric.
        candidates: the measured and predicted candidates, by id, in order of arrival.
        stops: places of the slider.
        why: how the search ended; "" before its end.
        notes: remarks.
    """

    budget: Budget | None = None
    metric: str = ""
    unit: str = ""
    higher_is_better: bool = True
    candidates: Mapping[str, SearchCandidate] = field(default_factory=dict)
    stops: tuple[Stop, ...] = ()
    why: str = ""
    notes: tuple[str, ...] = ()

    def with_candidate(self, candidate: SearchCandidate) -> Found:
        """Return a copy with a newly measured candidate."""
        return replace(self, candidates={**self.candidates, id_of(candidate): candidate})

    @property
    def placed(self) -> dict[str, SearchCandidate]:
        """The candidates that have a place in the chart, by id."""
        goal = axis_of(self.budget)
        return {
            key: each
            for key, each in self.candidates.items()
            if 0 < each.value(goal) < math.inf and not math.isnan(score_of(each))
        }


def id_of(candidate: SearchCandidate) -> str:
    """Return a stable id of (target, settings of each layer)."""
    text = "\n".join([candidate.target, *(f"{fqn} {name}" for fqn, name in candidate.layers.items())])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def solved(result: SearchResult) -> Found:
    """Return all results of a search, with the best for each slider stop, without measuring."""
    moved = _moved(result.budget)
    results = []
    for value in _values(result, moved):
        check_cancelled("solving for other budgets")
        results.append(result if _is_own(result, moved, value) else _at(result, moved, value))
    candidates: dict[str, SearchCandidate] = {}
    for each in sorted(result.candidates, key=lambda one: not one.measured):
        if each.measured or each in result.front:
            candidates.setdefault(id_of(each), each)
    for one in results:
        candidates.setdefault(id_of(one.best), one.best)
    predicted = 0
    for key, each in candidates.items():
        if each.ms is None:
            predicted += 1
            candidates[key] = replace(each, name=f"predicted {predicted}")
    stops = [Stop(one.budget, id_of(one.best), _why(one, candidates)) for one in results]
    return Found(
        result.budget,
        result.metric,
        result.unit,
        result.higher_is_better,
        candidates,
        tuple(stops),
        result.why,
        result.notes,
    )


def _moved(budget: Budget) -> str:
    return next(name for name in _BOUNDS if getattr(budget, name) is not None)


def _is_own(result: SearchResult, moved: str, value: float) -> bool:
    return bool(getattr(result.budget, moved) == value)


def _at(result: SearchResult, moved: str, value: float) -> SearchResult:
    changes: dict[str, Any] = {moved: value}
    return result.with_budget(replace(result.budget, **changes))


def _why(result: SearchResult, candidates: Mapping[str, SearchCandidate]) -> str:
    """Return how the best of a search is known, and what it was compared with."""
    if not result.reached:
        return result.why[:1].upper() + result.why[1:]
    key, goal = id_of(result.best), result.budget.minimize
    how = "measured" if result.best.measured else "predicted, not measured"
    others = [each for other, each in candidates.items() if each.measured and other != key]
    others.sort(key=lambda each: each.value(goal))
    said = "; ".join(_compared(each, result.unit) for each in others[:_COMPARED])
    more = f"; and {len(others) - _COMPARED} more" if len(others) > _COMPARED else ""
    beside = f" Measured beside it: {said}{more}." if said else ""
    return f"{OBJECTIVES[goal].best.capitalize()} is {candidates[key].name} ({how}).{beside}"


def _compared(each: SearchCandidate, unit: str) -> str:
    texts = _texts("", each, unit)
    drop = "" if texts.drop == "–" else f", drop {texts.drop}"
    return f"{each.name} {texts.score}{drop}, {texts.latency} ms, {texts.size} MB"


def _values(result: SearchResult, moved: str) -> list[float]:
    """Return the budgets at which the best changes: the front's values, rounded so that they hold them."""
    own = float(getattr(result.budget, moved))
    found = {own}
    for each in result.front:
        if moved == "min_metric":
            value, up = score_of(each), False
        else:
            objective = next(one for one in OBJECTIVES.values() if moved in one.bounds)
            value, up = objective.value(each) / objective.per_unit, True
        if moved == "max_drop":
            value = max(value, 0.0)
        if math.isfinite(value) and (value > 0 or moved in ("max_drop", "min_metric")):
            found.add(_rounded(value, up=up))
    values = sorted(found)
    while len(values) > STOPS:  # those that are nearest to their neighbours say least
        gaps = [values[at + 1] - values[at - 1] for at in range(1, len(values) - 1)]
        at = min((at for at in range(len(gaps)) if values[at + 1] != own), key=lambda at: gaps[at])
        del values[at + 1]
    return values


def _rounded(value: float, *, up: bool) -> float:
    """Round to three significant digits."""
    if value == 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{(math.ceil if up else math.floor)(value / step * (1 - 1e-12 if up else 1 + 1e-12)) * step:.3g}")


def axis_of(budget: Budget | None) -> str:
    """Return the objective that the chart draws against the score: one that the budget is about, or the first."""
    costs = costs_besides_drop()
    named = (one.name for one in costs if budget and (budget.minimize == one.name or one.bound(budget) is not None))
    return next(named, costs[0].name)


def score_of(candidate: SearchCandidate) -> float:
    """Return the measured or else predicted metric; NaN where neither is known."""
    found = candidate.metric if candidate.metric is not None else candidate.predicted_metric
    return math.nan if found is None else found


def texts_of(found: Found) -> tuple[FoundSettings, ...]:
    """Return the candidates in the chart as text."""
    return tuple(_texts(key, each, found.unit) for key, each in found.placed.items())


def _texts(key: str, each: SearchCandidate, unit: str) -> FoundSettings:
    size = each.value("size")
    drop = each.drop if each.metric is not None else each.predicted_drop
    return FoundSettings(
        id=key,
        name=each.name,
        target=each.target,
        measured=each.measured,
        score=number(score_of(each), unit) + (f" {unit}" if unit else ""),
        drop="–" if drop is None else number(drop, unit),
        latency=milliseconds(each.value("latency")),
        size=megabytes(round(size) if math.isfinite(size) else None),
        kept=_kept(each),
    )


def _kept(each: SearchCandidate) -> str:
    kept, count = each.float_layers, len(each.layers)
    if not kept:
        return "none"
    if len(kept) == count:
        return "all"
    rest = len(kept) - _KEPT
    named = ", ".join(name or "the model itself" for name in kept[:_KEPT])
    return f"{len(kept)} of {count}: {named}{f' and {rest} more' if rest > 0 else ''}"


def chart_of(found: Found) -> Chart:
    """Return the chart of the score against the objective; predicted candidates are hollow."""
    goal = axis_of(found.budget)
    points = [_point(each, goal, found.unit) for each in found.placed.values()]
    if not points:
        return Chart()
    chart = bench_chart(points, found.metric, found.unit, found.higher_is_better)
    measured = sum(each.measured for each in found.placed.values())
    title = f"{found.metric} against {goal} of {len(points)} settings, {measured} of them measured."
    log = ", log scale" if "log scale" in chart.x_title else ""
    return replace(chart, title=title, x_title=OBJECTIVES[goal].title + log)


def _point(each: SearchCandidate, goal: str, unit: str) -> ChartRun:
    kind: Literal["float", "run", "elsewhere"] = "run" if each.measured else "elsewhere"
    if set(each.layers.values()) == {IN_FLOAT}:
        kind = "float"
    texts = _texts("", each, unit)
    at = each.value(goal) / OBJECTIVES[goal].per_unit
    note = f"{texts.score}, {texts.latency} ms, {texts.size} MB, {'measured' if each.measured else 'predicted'}"
    return ChartRun(each.name, note, kind, score_of(each), at, at, each.spread)


def stops_of(found: Found) -> tuple[str, tuple[BudgetStop, ...], int]:
    """Return the quantity that the slider changes, its stops, and the stop that was searched for."""
    if found.budget is None or not found.stops:
        return "", (), 0
    moved = _moved(found.budget)
    words, form = _BOUNDS[moved]
    keys = {key: at for at, key in enumerate(found.placed)}
    unit = " dB" if moved == "min_metric" and found.unit == "dB" else ""
    stops = tuple(
        BudgetStop(form.format(getattr(stop.budget, moved)) + unit, keys.get(stop.best, -1), stop.why)
        for stop in found.stops
    )
    own = next(at for at, stop in enumerate(found.stops) if stop.budget == found.budget)
    best = OBJECTIVES[found.budget.minimize].best
    return f"{best.capitalize()} with {words}", stops, own


# Search on the bench.


@dataclass(eq=False)
class Search(SharedParts):
    """Searches for the best settings within a budget, and keeps what was found; see :class:`prepbench.Bench`."""

    result: SearchResult | None = None
    asked: Budget | None = field(default=None, init=False)
    """What :meth:`start_search` was last asked for."""
    _found: Found = field(default_factory=Found, init=False)
    _shown: tuple[Found, SearchSummary] | None = field(default=None, init=False)
    _searched: tuple[BenchState, Hashable] | None = field(default=None, init=False)

    @property
    def is_searching(self) -> bool:
        """Whether a search is running or queued."""
        return self.jobs.has(None, "search")

    def search(self, budget: Budget, progress: ProgressCallback = report_nothing) -> SearchResult:
        """Find the settings of each layer that are best within a budget, as :func:`prepbench.search` does.

        Each layer may take any settings that are planned for some layer now, or stay in float; integers also with
        equalized channels, where that is at least 1 dB quieter. Candidates are scored on the data of the bench, for
        each chosen target. Once the bench is saved, measurements go to its journal and are not repeated.

        Args:
            budget: the limits, and the objective.
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop. What was measured by then
                stays in :meth:`summary`.

        Returns:
            The result, also in :attr:`search_result`. :meth:`use_candidate` makes one of its candidates the choices.

        Raises:
            SettingsError: there are no calibration inputs, no layers, or leaves, which a search cannot keep.
            InputError: samples have a size that the axes do not allow.
            PrepbenchError: :func:`prepbench.search` failed.

        Example:
            >>> bench.use_candidate(bench.search(pb.Budget(min_metric=30)).best)
        """
        check_type("budget", budget, Budget, "Write pb.Budget(min_metric=30).")
        check_progress(progress)
        self._check_searchable()
        return self._search(budget, self.choices.state, self.choices.explained, progress)

    def start_search(
        self,
        budget: Budget,
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[SearchResult]:
        """Run :meth:`search` in a background thread with the current choices, after the running and waiting work.

        Args:
            budget: the limits, and the objective.
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job, which can be waited for or cancelled.
        """
        check_type("budget", budget, Budget, "Write pb.Budget(min_metric=30).")
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        self.asked = budget
        self._check_searchable()
        state, explained = self.choices.state, self.choices.explained
        run = QueuedRun.other("search", f"search {budget}", state, self.choices.planned)
        return self.jobs.add(
            run,
            lambda step: self._search(budget, state, explained, step),
            progress,
            on_end,
            said=lambda: self.result.caption if self.result is not None else "",
            stages=SEARCHING,
        )

    def use_candidate(self, candidate: SearchCandidate | str) -> None:
        """Make the settings of a candidate of a search the current choices; this can be undone.

        Args:
            candidate: of a search of this model, or the id that :meth:`summary` has.

        Raises:
            UnknownNameError: there is no such id.
            SettingsError: it is of another model.
        """
        if isinstance(candidate, str):
            found = self._found.candidates.get(candidate)
            if found is None:
                known = ", ".join(list(self._found.candidates)[:8]) or "none yet: bench.search(budget) finds some"
                raise UnknownNameError(
                    f"candidate: nothing found has the id {described(candidate)}. There are {known}."
                )
            candidate = found
        check_type("candidate", candidate, SearchCandidate, "Give bench.search(budget).best, or an id of the summary.")
        state = self._with(candidate)
        self.choices.layer_rules.explained(state.quantization, state.rules)  # raises what is of another model
        self.choices.history.choose(**vars(state))

    def summary(self) -> SearchSummary:
        """Return the search as front ends show it."""
        if self._shown is None or self._shown[0] is not self._found:
            self._shown = self._found, self._summary_of(self._found)
        return self._shown[1]

    def now(self) -> SearchNow:
        """Return how the current choices relate to the search."""
        why = self._not_searchable()
        repairs = (WHOLE_AGAIN,) if why == _NOT_WHOLE else ()
        return SearchNow(why, repairs, self.is_searching, self._old_search(), self._used())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _summary_of(self, found: Found) -> SearchSummary:
        bound, stops, stop = stops_of(found)
        return SearchSummary(
            metric="" if self._metric is None else metric_name(self._metric),
            budget="" if found.budget is None else str(found.budget),
            why=found.why,
            notes=found.notes,
            found=texts_of(found),
            chart=chart_of(found),
            bound=bound,
            stops=stops,
            stop=stop,
        )

    @property
    def _metric(self) -> Metric | None:
        """Return the metric of a search; None for the SQNR, which is also used for generating models."""
        return None if isinstance(self.inputs.data, Generation) else self.inputs.metric

    def _not_searchable(self) -> str:
        if not self.choices.layer_rules.layers:
            return "The model has no layer that can be quantized, so there is nothing to search."
        if not self.inputs.calibration_inputs:
            return "A search needs calibration inputs: Bench(model, calibration_inputs=[...])."
        if not self.choices.state.fullgraph:
            return _NOT_WHOLE
        return ""

    def _check_searchable(self) -> None:
        why = self._not_searchable()
        if why:
            raise SettingsError(why)
        check_sizes(self.choices.state.axes, self.inputs)

    def _search(
        self, budget: Budget, state: BenchState, explained: tuple[ExplainedLayer, ...], progress: ProgressCallback
    ) -> SearchResult:
        candidates = search_candidates(state, explained)
        metric = self._metric
        self.result, self._searched = None, (state, self.runs.value_mark)
        named = ("SQNR", "dB", True) if metric is None else (metric_name(metric), "", is_higher_better(metric, None))
        self._found = Found(budget, *named)
        self.changed()

        def measured(candidate: SearchCandidate) -> None:
            self._found = self._found.with_candidate(candidate)
            self.changed()

        result = search(
            self.captures.model(state.fixes),
            self.inputs.calibration_inputs,
            budget=budget,
            targets=state.targets,
            candidates=candidates,
            data=None if isinstance(self.inputs.data, Generation) else self.inputs.data,
            metric=metric,
            tracing_inputs=self.inputs.tracing_inputs,
            dynamic_axes=state.axes,
            compile_options=state.options,
            reuse=self.kept,
            results=self.runs.journal_path,
            progress=progress,
            on_candidate=measured,
        )
        self._found = solved(result)
        self.result = result
        self.changed()
        return result

    def _with(self, candidate: SearchCandidate) -> BenchState:
        """Return the current choices with the settings of a candidate."""
        given, now = dict(candidate.settings), self.choices.state
        rules = given.get("layer_quantization_settings", {}) if "quantization_settings" in given else None
        return replace(
            now,
            quantization=given.get("quantization_settings", now.quantization),
            rules={EVERYTHING: FLOAT} if rules is None else dict(rules),
            options=given["compile_options"],
            targets=(given["deployment_settings"],),
            by_search=now.by_search or now.options.keep_ruined_layers_in_float,
        )

    def _used(self) -> int:
        now = self.choices.state
        for at, candidate in enumerate(self._found.placed.values()):
            if self._with(candidate) == now:
                return at
        return -1

    def _old_search(self) -> str:
        """Return what changed since the search ran; settings of layers do not count, because they are its result."""
        if self._searched is None:
            return ""
        state, values = self._searched
        now = self.choices.state
        said = list(now.differences(replace(state, options=now.options)))
        said += [OTHER_VALUES] if values != self.runs.value_mark else []
        return "; ".join(said)


def search_candidates(state: BenchState, explained: tuple[ExplainedLayer, ...]) -> EqualizableCandidates:
    """Return the settings that are planned for some layer and supported by all targets.

    Raises:
        NothingQuantizedError: there are none.
    """
    kinds = dict.fromkeys(s for several in wanted_settings(explained, state).values() for s in several)
    placements = [target_for(each).placement for each in state.targets]
    taken = [settings for settings in kinds if not any(unsupported(settings, one) for one in placements)]
    if not taken:
        raise NothingQuantizedError(
            "None of the planned precisions is supported by every chosen target. Choose another precision for some "
            "layers, or another target."
        )
    return EqualizableCandidates({name_of_settings(settings): settings for settings in taken})
