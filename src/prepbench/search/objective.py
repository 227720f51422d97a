"""The budget of a search, and the objectives that compare its candidates: a table that knows them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prepbench.checks import described
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.settings.validation import Settings, check_choice

if TYPE_CHECKING:
    from prepbench.search.mixtures import Mixture
    from prepbench.search.tables import Corrected, Parts, Tables
    from prepbench.search.target_job import TargetJob


@dataclass(frozen=True)
class SearchCandidate:
    """A choice of settings for each layer on one target, with its predicted and measured values.

    Attributes:
        name: the display name.
        target: the target's name for people.
        layers: the name of each layer's choice, by FQN; ``"float"`` for a layer that is neither quantized nor pruned.
        predicted_metric: before it was measured; None for candidates that were measured first.
        predicted_drop: by how much the metric gets worse; None for an SQNR, which is one already.
        predicted_ms: milliseconds of one call.
        predicted_bytes: of the saved model.
        metric: measured; None where it is not known.
        drop: measured.
        ms: measured.
        size_bytes: measured.
        spread: between which metrics 95 % of other draws of as many batches would lie.
        noise: at the output on some of the data, relative to the signal or in nats, simulated or estimated.
        note: a remark, such as why it could not be compiled.
        settings: keyword arguments of ``compile_model``.
        only_pruned: the names of choices that prune and do not quantize.
        costs: of objectives that have no field here, predicted by their names.
    """

    name: str
    target: str
    layers: Mapping[str, str] = field(repr=False)
    predicted_metric: float | None = None
    predicted_drop: float | None = None
    predicted_ms: float | None = None
    predicted_bytes: float | None = None
    metric: float | None = None
    drop: float | None = None
    ms: float | None = None
    size_bytes: int | None = None
    spread: tuple[float, float] | None = None
    noise: float | None = None
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    only_pruned: tuple[str, ...] = field(default=(), repr=False)
    costs: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def measured(self) -> bool:
        """Whether it was compiled, timed and scored."""
        return self.ms is not None and self.metric is not None

    @property
    def float_layers(self) -> tuple[str, ...]:
        """FQNs of the layers that are not quantized."""
        from prepbench.search.mixtures import FLOAT

        return tuple(fqn for fqn, name in self.layers.items() if name == FLOAT or name in self.only_pruned)

    def value(self, goal: str) -> float:
        """Return milliseconds, bytes or the loss of the metric: measured, else predicted, else infinite.

        Args:
            goal: ``"latency"``, ``"size"`` or ``"drop"``, which is the noise of an SQNR.
        """
        if goal not in OBJECTIVES:
            known = ", ".join(map(repr, OBJECTIVES))
            raise UnknownNameError(f"goal: no objective is called {described(goal)}. Give one of them: {known}.")
        return OBJECTIVES[goal].value(self)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A cost of candidates: less is better. It is a sum over layers and their kernels, except for the drop.

    Adding one to :data:`OBJECTIVES` is enough to search for it. To be bounded, it also needs a field of ``Budget``.

    Attributes:
        name: as ``Budget.minimize`` takes it.
        best: what a candidate with the least of it is.
        title: of an axis of a chart.
        unit: of a value as people read it.
        per: what a value is of, behind the unit.
        per_unit: the value of a candidate that is shown as 1.
        bounds: the fields of ``Budget`` that bound it.
        read: its measured or else predicted value of a candidate, None where neither is known. When omitted it is the
            one that the tables predict.
        costs: of the layers and choices of a target, in the unit of the tables; when omitted, what ``estimate`` gave.
        estimate: what it costs in a target's job, before anything is measured; kept in :attr:`Tables.further`.
        is_time: whether it is measured with the noise of timing, and conversions between layers add to it.
    """

    name: str
    best: str
    title: str
    unit: str = ""
    per: str = ""
    per_unit: float = 1.0
    bounds: tuple[str, ...] = ()
    read: Callable[[SearchCandidate], float | None] | None = None
    costs: Callable[[Tables], Corrected] | None = None
    estimate: Callable[[TargetJob], Corrected] | None = None
    is_time: bool = False

    def value(self, candidate: SearchCandidate) -> float:
        """Return the measured, else the predicted value of a candidate; infinite where neither is known."""
        found = candidate.costs.get(self.name) if self.read is None else self.read(candidate)
        return math.inf if found is None else float(found)

    def text(self, value: float, digits: str = ".3g") -> str:
        """Return a candidate's value as people read it."""
        return f"{value / self.per_unit:{digits}} {self.unit} {self.per}".rstrip()

    def bound(self, budget: Settings) -> float | None:
        """Return the bound of a budget as it was given; None where it bounds something else."""
        return next((found for field in self.bounds if (found := getattr(budget, field)) is not None), None)

    def limit(self, budget: Settings, largest_loss: float) -> float:
        """Return the most that candidates may have within a ``Budget`` of this largest loss; infinite for no bound."""
        found = self.bound(budget)
        return math.inf if found is None else found * self.per_unit

    def in_tables(self, limit: float, tables: Tables, surprise: float) -> float:
        """Return a limit of candidates in the unit of a target's tables, see :class:`TargetState`."""
        return limit / 1e3 / surprise if self.is_time else limit

    def sizes(self, tables: Tables) -> Corrected:
        """Return the costs of the layers and choices of a target, in the unit of the tables."""
        return tables.further[self.name] if self.costs is None else self.costs(tables)

    def kernels(self, tables: Tables) -> Mapping[str, str]:
        """Return the choices by which costs are known, see :class:`Tables`."""
        return tables.kernels

    def parts(self, tables: Tables, mixture: Mixture) -> Parts:
        """Return the parts that the cost of a mixture consists of."""
        return tables.time_parts(mixture) if self.is_time else tables.parts(mixture)

    def total(self, tables: Tables, mixture: Mixture) -> float:
        """Return the cost of a mixture in the unit of the tables."""
        return self.sizes(tables).total(self.parts(tables, mixture))


class _Drop(Objective):
    """The loss of the metric, which a curve predicts from the noise at the output."""

    def limit(self, budget: Settings, largest_loss: float) -> float:
        return largest_loss

    def in_tables(self, limit: float, tables: Tables, surprise: float) -> float:
        return math.inf if limit == math.inf else tables.curve.noise_at(limit)

    def kernels(self, tables: Tables) -> Mapping[str, str]:
        return tables.bits

    def parts(self, tables: Tables, mixture: Mixture) -> Parts:
        return tables.noise_parts(mixture)


def _loss(candidate: SearchCandidate) -> float | None:
    """Return the drop of a candidate's metric, or the noise of an SQNR."""
    metric = candidate.metric if candidate.metric is not None else candidate.predicted_metric
    drop = candidate.drop if candidate.metric is not None else candidate.predicted_drop
    return drop if drop is not None or metric is None else 10 ** (-metric / 10)


DROP = _Drop(
    name="drop",
    best="the least drop",
    title="drop",
    bounds=("max_drop", "min_metric"),
    read=_loss,
    costs=lambda tables: tables.noise,
)
OBJECTIVES: dict[str, Objective] = {
    "latency": Objective(
        name="latency",
        best="the fastest",
        title="latency (ms per call)",
        unit="ms",
        per="a call",
        bounds=("max_latency_ms",),
        read=lambda candidate: candidate.ms if candidate.ms is not None else candidate.predicted_ms,
        costs=lambda tables: tables.times,
        is_time=True,
    ),
    "size": Objective(
        name="size",
        best="the smallest",
        title="size on disk (MB)",
        unit="MB",
        per_unit=1e6,
        bounds=("max_size_mb",),
        read=lambda candidate: candidate.size_bytes if candidate.size_bytes is not None else candidate.predicted_bytes,
        costs=lambda tables: tables.sizes,
    ),
    "drop": DROP,
}
"""Every objective by its name, in the order in which messages list them."""


def predicted_costs(tables: Tables, mixture: Mixture) -> dict[str, float]:
    """Return what the tables predict of a mixture for the objectives that have no field of a candidate."""
    return {name: one.total(tables, mixture) for name, one in OBJECTIVES.items() if one.read is None}


def estimated_costs(job: TargetJob) -> dict[str, Corrected]:
    """Return the costs in a target's job that objectives estimate themselves, by their names."""
    return {name: one.estimate(job) for name, one in OBJECTIVES.items() if one.estimate is not None}


def costs_besides_drop() -> list[Objective]:
    """Return the objectives that are traded for a drop."""
    return [one for one in OBJECTIVES.values() if one is not DROP]


def traded_for_drop(minimized: str) -> str:
    """Return the objective that a search trades for a drop: the minimized one, or the first."""
    return minimized if minimized != DROP.name else costs_besides_drop()[0].name


# ``Budget``: the limits of a search and the objective that it minimizes.


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """The limits that :func:`prepbench.search` must keep, and the objective that it minimizes within them.

    Attributes:
        max_drop: by how much the metric may be worse than in float, 0 or more, in the metric's own unit: 0.01 is a
            point of accuracy. Needs a ``metric``. Default None: any.
        min_metric: the worst metric that will do: the least where higher is better, else the most. Without a
            ``metric`` it is the SQNR in dB against float. Default None: any.
        max_latency_ms: the most milliseconds that one call may take. Default None: any.
        max_size_mb: the most that the saved model may take, in MB (10**6 bytes). Default None: any.
        minimize: ``"latency"``, ``"size"`` or ``"drop"``; none that is bounded. Default ``"latency"``.

    Raises:
        SettingsError: nothing is bounded, the objective is bounded as well, both ``max_drop`` and ``min_metric`` are
            given, or a value is no positive number.

    Example:
        >>> Budget(max_drop=0.01).minimize
        'latency'
        >>> str(Budget(max_latency_ms=5, minimize="drop"))
        'the least drop with at most 5 ms a call'
    """

    max_drop: float | None = None
    min_metric: float | None = None
    max_latency_ms: float | None = None
    max_size_mb: float | None = None
    minimize: str = "latency"

    def __post_init__(self) -> None:
        check_choice(self, "minimize", tuple(OBJECTIVES))
        _check_number(self, "max_drop", "0 or more, such as 0.01", lambda value: value >= 0)
        _check_number(self, "min_metric", "such as 0.75, or 20 for an SQNR in dB", lambda value: True)
        _check_number(self, "max_latency_ms", "above 0, such as 5.0", lambda value: value > 0)
        _check_number(self, "max_size_mb", "above 0, such as 10.0", lambda value: value > 0)
        if self.max_drop is not None and self.min_metric is not None:
            raise SettingsError(
                "Budget: max_drop and min_metric contradict each other: both say how bad the metric may be. Give one "
                "of the two."
            )
        for bound in OBJECTIVES[self.minimize].bounds:
            if getattr(self, bound) is not None:
                others = " or ".join(repr(goal) for goal in OBJECTIVES if goal != self.minimize)
                raise SettingsError(
                    f"Budget: minimize={self.minimize!r} and {bound}={getattr(self, bound):g} contradict each other: "
                    f"a bounded quantity is not minimized as well. Leave out {bound}, or write "
                    f"minimize={others}."
                )
        if all(one.bound(self) is None for one in OBJECTIVES.values()):
            raise SettingsError(
                f"Budget(minimize={self.minimize!r}) bounds nothing. Give at least one of max_drop, min_metric, "
                "max_latency_ms and max_size_mb that is not what is minimized."
            )

    def __str__(self) -> str:
        bounds = [
            f"a drop of at most {self.max_drop:g}" if self.max_drop is not None else "",
            f"a metric of {self.min_metric:g} or better" if self.min_metric is not None else "",
        ]
        for one in costs_besides_drop():
            if (most := one.bound(self)) is not None:
                bounds.append(f"at most {one.text(most * one.per_unit, 'g')}")
        return f"{OBJECTIVES[self.minimize].best} with {' and '.join(filter(None, bounds))}"


def _check_number(budget: Budget, field: str, expected: str, holds: object) -> None:
    value = getattr(budget, field)
    if value is None:
        return
    is_number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    if not is_number or not holds(value):  # type: ignore[operator]
        raise SettingsError(
            f"Budget.{field} must be None or a number {expected}, got {described(value)}. Write {field}=..."
        )
