"""The results of a search for the page: candidates as text, their places in a chart, and the best for each slider
stop.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from prepbench.bench.summary import BudgetStop, FoundSettings
from prepbench.document.bench import Chart
from prepbench.jobs import check_cancelled
from prepbench.measure.comparison import megabytes, milliseconds, number
from prepbench.search.budget import Budget
from prepbench.search.mixtures import FLOAT
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.views.bench_chart import ChartRun, bench_chart

STOPS = 12
_KEPT = 3  # layers in float that are named
_BOUNDS = {
    "max_drop": ("a drop of at most", "{:.3g}"),
    "min_metric": ("at least", "{:.3g}"),
    "max_latency_ms": ("at most", "{:.3g} ms"),
    "max_size_mb": ("at most", "{:.3g} MB"),
}
"""Quantities a slider may move, in words, and how a place is written; the first that a budget bounds is moved."""

_GOALS = {"latency": "fastest", "size": "smallest", "drop": "most exact"}


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
    stops = [Stop(one.budget, id_of(one.best), _why(one, candidates[id_of(one.best)].name)) for one in results]
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


def _why(result: SearchResult, name: str) -> str:
    if not result.reached:
        return result.why[:1].upper() + result.why[1:]
    how = "measured" if result.best.measured else "predicted, not measured"
    return f"The {_GOALS[result.budget.minimize]} is {name} ({how})."


def _values(result: SearchResult, moved: str) -> list[float]:
    """Return the budgets at which the best changes: the front's values, rounded so that they hold them."""
    own = float(getattr(result.budget, moved))
    found = {own}
    for each in result.front:
        if moved == "min_metric":
            value, up = score_of(each), False
        else:
            goal = {"max_drop": "drop", "max_latency_ms": "latency", "max_size_mb": "size"}[moved]
            value, up = each.value(goal) / (1e6 if goal == "size" else 1.0), True
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
    """Return the quantity that the chart draws against the score: ``"latency"`` or ``"size"``."""
    if budget is None or budget.minimize == "latency" or budget.max_latency_ms is not None:
        return "latency"
    return "size" if budget.minimize == "size" or budget.max_size_mb is not None else "latency"


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
    what = {"latency": "latency (ms per call)", "size": "size (MB)"}[goal]
    measured = sum(each.measured for each in found.placed.values())
    title = f"{found.metric} against {goal} of {len(points)} settings, {measured} of them measured."
    log = ", log scale" if "log scale" in chart.x_title else ""
    return replace(chart, title=title, x_title=what + log)


def _point(each: SearchCandidate, goal: str, unit: str) -> ChartRun:
    kind: Literal["float", "run", "elsewhere"] = "run" if each.measured else "elsewhere"
    if set(each.layers.values()) == {FLOAT}:
        kind = "float"
    texts = _texts("", each, unit)
    at = each.value(goal) / (1e6 if goal == "size" else 1.0)
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
    goal = _GOALS[found.budget.minimize]
    return f"The {goal} with {words}", stops, own
