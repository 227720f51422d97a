"""A search for the best settings within a budget, as plain values for a front end."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.document.bench import Chart


@dataclass(frozen=True)
class FoundSettings:
    """Settings of all layers that a search measured or predicted, as text.

    Attributes:
        id: names them.
        name: the display name.
        target: the target.
        measured: whether they were compiled, scored and timed.
        score: the metric.
        drop: how much worse than float that is; "–" for an SQNR.
        latency: milliseconds of a call.
        size: MB on disk.
        kept: which layers stay in float, in a few words.
    """

    id: str
    name: str
    target: str
    measured: bool
    score: str
    drop: str
    latency: str
    size: str
    kept: str


@dataclass(frozen=True)
class BudgetStop:
    """One stop of the slider: a budget, the index of the best within it, and how that is known."""

    label: str
    best: int
    why: str


@dataclass(frozen=True)
class SearchSummary:
    """A search, during its run and afterwards.

    Attributes:
        metric: the metric whose drop is bounded; "" where the SQNR in dB is.
        budget: the budget of the search, in words; "" before the first.
        why: how the search ended; "" during the search.
        notes: remarks.
        found: the measured and predicted candidates, in the order of the points of the chart.
        chart: these, placed.
        bound: the quantity that the slider changes, in words.
        stops: its places.
        stop: the place of the budget that was searched for.
    """

    metric: str
    budget: str
    why: str
    notes: tuple[str, ...]
    found: tuple[FoundSettings, ...]
    chart: Chart
    bound: str
    stops: tuple[BudgetStop, ...]
    stop: int


@dataclass(frozen=True)
class SearchNow:
    """The part of a search summary that may change with each click.

    Attributes:
        unavailable: why none is possible now; "" where one is.
        is_searching: whether a search is running or queued.
        stale: what changed since the search; "" if nothing did.
        used: the index of the candidate that equals the current choices; -1 for none.
    """

    unavailable: str
    is_searching: bool
    stale: str
    used: int
