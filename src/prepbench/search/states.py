"""The knowledge of a search about one target: its tables, and every simulated or measured mixture."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prepbench.quantize.integer_program import Border, Limit, Shared, cheapest
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.objective import (
    DROP,
    OBJECTIVES,
    Budget,
    Objective,
    SearchCandidate,
    costs_besides_drop,
    predicted_costs,
)
from prepbench.search.scoring import Scale
from prepbench.search.tables import REST, DropCurve, Tables

SAME = 0.01
"""Two times that differ by less, relative to them, are the same: timing is not more exact."""

# the least divisor of an excess, where no drop at all is allowed: of a metric, and of the noise of an SQNR
_LEAST_DROP, _LEAST_NOISE = 1e-3, 1e-12

_AROUND = (1.0, 0.6, 1.6)  # bounds of noise that are tried: estimates may be off by that much
LOOSEST = max(_AROUND)
"""Times the bound of noise, what is simulated although it is predicted to be too noisy."""


LEFT_IN_FLOAT = "the target leaves some of its layers in float"
"""Why a mixture was not measured as it was chosen; what became of it was."""


@dataclass(frozen=True)
class TargetState:
    """The knowledge about one target. Values are replaced, never changed, so that a result can keep them.

    Attributes:
        label: the target for people.
        tables: of layers and choices.
        measured: candidates that were compiled, by the choices that their layers really took.
        noise: of mixtures that were simulated.
        failed: mixtures that could not be compiled, with the reason.
        surprise: by how much longer mixtures took than predicted. The mixture with the best prediction tends to have a
            prediction that is too good (Smith and Winkler, "The optimizer's curse", 2006).
    """

    label: str
    tables: Tables
    measured: Mapping[Mixture, SearchCandidate] = field(default_factory=dict)
    noise: Mapping[Mixture, float] = field(default_factory=dict)
    failed: Mapping[Mixture, str] = field(default_factory=dict)
    surprise: float = 1.0

    @property
    def tried(self) -> list[Mixture]:
        """The mixtures that are not compiled again."""
        return [*self.measured, *self.failed]

    @property
    def unscored(self) -> list[Mixture]:
        """The mixtures that were simulated, perhaps timed, and not scored."""
        known = {mixture for mixture, each in self.measured.items() if each.metric is not None}
        return [mixture for mixture in self.noise if mixture not in known and mixture not in self.failed]

    def bounds(self, budget: Budget, scale: Scale, factor: float = 1.0) -> Bounds:
        """Return the bounds of a budget in the units of the tables; ``factor`` times that of noise."""
        loss, known = scale.limit(budget), (self.tables, self.surprise)
        found = {name: one.in_tables(one.limit(budget, loss), *known) for name, one in OBJECTIVES.items()}
        found[DROP.name] *= factor
        return {name: limit for name, limit in found.items() if limit < math.inf}

    def solved(self, budget: Budget, scale: Scale) -> list[Mixture]:
        """Return untried mixtures that may be the best within a budget."""
        found = []
        for factor in _AROUND:
            bounds = self.bounds(budget, scale, factor)
            if bounds.get(DROP.name, 0.0) >= 0:
                one = solve(self.tables, budget.minimize, bounds, self.tried)
                found += [one] if one is not None else []
        return list(dict.fromkeys(found))

    def with_noise(self, mixture: Mixture, noise: float) -> TargetState:
        """Return a copy with the simulated noise of a mixture."""
        return replace(
            self, tables=self.tables.with_measured(mixture, noise=noise), noise={**self.noise, mixture: noise}
        )

    def with_measured(
        self, mixture: Mixture, candidate: SearchCandidate, scale: Scale, *, again: bool = False
    ) -> TargetState:
        """Return a copy with a measured candidate, which corrects tables and curve; ``again`` if its time is known."""
        tables, surprise = self.tables, self.surprise
        if not again:
            if candidate.ms and candidate.predicted_ms:
                surprise *= math.sqrt(candidate.ms / candidate.predicted_ms)
            seconds = None if candidate.ms is None else candidate.ms / 1e3
            tables = tables.with_measured(mixture, seconds=seconds, size=candidate.size_bytes)
        known = replace(self, tables=tables, surprise=surprise, measured={**self.measured, mixture: candidate})
        return known.with_curve(scale)

    def with_curve(self, scale: Scale) -> TargetState:
        """Return a copy with the curve refitted to all scored mixtures."""
        pairs = [
            (self.noise_of(mixture), scale.loss(each.metric))
            for mixture, each in self.measured.items()
            if each.metric is not None
        ]
        return replace(self, tables=replace(self.tables, curve=DropCurve.through([(0.0, 0.0), *pairs])))

    def with_failed(self, mixture: Mixture, why: str) -> TargetState:
        """Return a copy with a mixture that failed to compile."""
        return replace(self, failed={**self.failed, mixture: why})

    def noise_of(self, mixture: Mixture) -> float:
        """Return the simulated or else the estimated noise of a mixture."""
        return self.noise.get(mixture, self.tables.noise_of(mixture))

    def predicted(self, mixture: Mixture, name: str, scale: Scale) -> SearchCandidate:
        """Return a candidate with the predicted values of a mixture."""
        noise = self.noise_of(mixture)
        loss = 0.0 if all(each == FLOAT for each in mixture) else self.tables.curve.drop(noise)
        timed, alike = self.measured.get(mixture), self.timed_alike(mixture)
        return SearchCandidate(
            name=name,
            target=self.label,
            layers=dict(zip(self.tables.layers, mixture, strict=True)),
            predicted_metric=scale.metric_of(loss),
            predicted_drop=None if scale.is_sqnr else loss,
            predicted_ms=1e3 * self.surprise * self.tables.seconds(mixture) if alike is None else alike,
            predicted_bytes=self.tables.size(mixture),
            ms=None if timed is None else timed.ms,
            size_bytes=None if timed is None else timed.size_bytes,
            noise=noise,
            only_pruned=self.tables.only_pruned,
            costs=predicted_costs(self.tables, mixture),
        )

    def timed_alike(self, mixture: Mixture) -> float | None:
        """Return the measured milliseconds of a mixture with the same kernels; None if there is none."""
        own = self.measured.get(mixture)
        return self._timed.get(self.tables.kernels_of(mixture)) if own is None or own.ms is None else own.ms

    @functools.cached_property
    def _timed(self) -> dict[Mixture, float]:
        return {self.tables.kernels_of(one): each.ms for one, each in self.measured.items() if each.ms is not None}

    def doubt(self, mixture: Mixture, other: Mixture | None) -> float:
        """Return the uncertainty of the predicted milliseconds of a mixture relative to another, timed one."""
        if self.timed_alike(mixture) is not None:
            return 0.0
        parts = dict(self.tables.time_parts(mixture))
        for part, count in ({} if other is None else self.tables.time_parts(other)).items():
            parts[part] = parts.get(part, 0.0) - count
        return 1e3 * self.surprise * self.tables.times.doubt(parts)

    def with_prediction(self, mixture: Mixture, candidate: SearchCandidate, scale: Scale) -> SearchCandidate:
        """Return a candidate that was timed and not scored, with its current predicted metric."""
        found = self.predicted(mixture, candidate.name, scale)
        return replace(candidate, predicted_metric=found.predicted_metric, predicted_drop=found.predicted_drop)

    def front(self, goal: str, points: int) -> list[Mixture]:
        """Return mixtures from the quietest to the cheapest, each the best at its noise, by ``points`` bounds of it."""
        least, most = (solve(self.tables, each, {}) for each in (DROP.name, goal))
        if least is None or most is None:
            return []
        low, high = self.tables.noise_of(least), self.tables.noise_of(most)
        low = max(low, 1e-4 * high)
        found = [least, most]
        for at in range(points):
            bound = low * (high / low) ** (at / max(points - 1, 1)) if low > 0 else high
            one = solve(self.tables, goal, {DROP.name: bound})
            found += [one] if one is not None else []
        return list(dict.fromkeys(found))

    def nearest(self, budget: Budget, scale: Scale) -> Mixture | None:
        """Return the mixture that comes nearest to a budget that no mixture is predicted to meet.

        It keeps the limits that can be kept, and minimizes the first one that cannot.
        """
        bounds = self.bounds(budget, scale)
        for goal in bounds:
            rest = {name: limit for name, limit in bounds.items() if name != goal}
            if rest.get(DROP.name, 0.0) >= 0:
                found = solve(self.tables, goal, rest)
                if found is not None:
                    return found
        return solve(self.tables, DROP.name, {})


def is_within(candidate: SearchCandidate, budget: Budget, scale: Scale) -> bool:
    """Return whether a candidate keeps a budget, by its measured or else its predicted values."""
    return excess(candidate, budget, scale) <= 0


def excess(candidate: SearchCandidate, budget: Budget, scale: Scale) -> float:
    """Return the sum of the relative amounts by which a candidate exceeds a budget; 0 within it."""
    over, loss, least = 0.0, scale.limit(budget), _LEAST_NOISE if scale.is_sqnr else _LEAST_DROP
    for one in (DROP, *costs_besides_drop()):
        if (limit := one.limit(budget, loss)) < math.inf:
            value = one.value(candidate)
            over += max(value - limit, 0.0) / max(abs(limit), least)
    return over


def expected_gain(value: float, doubt: float, best: float) -> float:
    """Return the expected improvement over the best so far; a value that turns out to be worse costs nothing.

    Source: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions", 1998.

    Example:
        >>> expected_gain(0.9, 0.0, 1.0) > expected_gain(1.0, 0.1, 1.0) > expected_gain(1.1, 0.1, 1.0) > 0
        True
    """
    less = best - value
    if doubt <= 0 or not math.isfinite(less):
        return max(less, 0.0)
    far = less / doubt
    below = 0.5 * math.erfc(-far / math.sqrt(2))
    return less * below + doubt * math.exp(-far * far / 2) / math.sqrt(2 * math.pi)


def is_better(value: float, than: float) -> bool:
    """Return whether a value is lower by more than the noise of timing."""
    return value < than - SAME * abs(than)


# The mixture with the least of something within bounds, by what the tables say.


_SHARE_OF_NOISE = 1e-3  # of the cost, by which the quieter of two equally good mixtures is taken


Bounds = Mapping[str, float]
"""The upper bounds of a mixture's costs, in the units of the tables, by the names of objectives."""


def solve(tables: Tables, goal: str, bounds: Bounds, without: Sequence[Mixture] = ()) -> Mixture | None:
    """Return the mixture with the least cost of the objective within bounds, by the tables; None if there is none.

    Of equally good ones it is the quieter.
    """
    objective = OBJECTIVES[goal]
    found = (_solved(tables, objective, bounds, without, left_out) for left_out in tables.apart)
    return min(
        (one for one in found if one is not None),
        key=lambda one: (objective.total(tables, one), tables.noise_of(one)),
        default=None,
    )


def _solved(
    tables: Tables, goal: Objective, bounds: Bounds, without: Sequence[Mixture], left_out: frozenset[str]
) -> Mixture | None:
    """Solve as :func:`solve` does, without the choices in ``left_out``."""
    chosen = [[[float(name == taken) for name in tables.choices] for taken in mixture] for mixture in without]
    limits = [Limit(each, len(tables.layers) - 1.0) for each in chosen]
    places: dict[str, int] = {}
    for name, one in reversed(OBJECTIVES.items()):
        if one is not goal and bounds.get(name, math.inf) < math.inf:
            places[name] = len(limits)
            limits.append(Limit(_matrix(tables, one, left_out), bounds[name] - one.sizes(tables).size(REST)))
    costs = _matrix(tables, goal, left_out)
    if goal is not DROP:
        costs = _with_share(costs, _matrix(tables, DROP, left_out))
    groups = [[tables.layers.index(fqn) for fqn in group] for group in tables.groups]
    shared = [
        Shared(
            needed_by,
            [value if at == places.get(DROP.name) else 0.0 for at in range(len(limits))],
            value if goal is DROP else 0.0,
        )
        for needed_by, value in _shared(tables)
        if DROP.name in places or goal is DROP
    ]
    found = cheapest(costs, limits, borders_of(tables, goal, places), groups, shared)
    return None if found is None else tuple(tables.choices[choice] for choice in found)


def _matrix(tables: Tables, objective: Objective, left_out: frozenset[str]) -> list[list[float]]:
    """Return the cost of each layer with each choice; infinite where they do not go together."""
    costs, kernels = objective.sizes(tables), objective.kernels(tables)
    return [
        [
            math.inf
            if name in left_out or (fqn, name) in tables.refused
            else costs.size((fqn, kernels.get(name, name)))
            for name in tables.choices
        ]
        for fqn in tables.layers
    ]


def _shared(tables: Tables) -> list[tuple[dict[int, list[int]], float]]:
    """Return each rounded value between layers: the layers and choices that need it, by index, and its noise."""
    layers = {fqn: at for at, fqn in enumerate(tables.layers)}
    choices = {name: at for at, name in enumerate(tables.choices)}
    found = []
    for part, needs in tables.rounded.items():
        places: dict[int, list[int]] = {}
        for fqn, name in sorted(needs):
            places.setdefault(layers[fqn], []).append(choices[name])
        if places:
            found.append((places, tables.noise.size(part)))
    return found


def _with_share(costs: list[list[float]], noise: list[list[float]]) -> list[list[float]]:
    """Add a small share of the noise to the costs, so that of equally good mixtures the quieter one is found."""
    most = [sum(max((v for v in row if v < math.inf), default=0.0) for row in each) for each in (costs, noise)]
    share = _SHARE_OF_NOISE * most[0] / most[1] if most[1] > 0 else 0.0
    return [[cost + share * loud for cost, loud in zip(*rows, strict=True)] for rows in zip(costs, noise, strict=True)]


# Joint costs of two layers' choices for the integer program: conversions, and channels that both lose.


Pairs = list[list[float]]


def borders_of(tables: Tables, goal: Objective, limited: Mapping[str, int]) -> list[Border]:
    """Return the borders between neighbouring layers, where conversions may cost time."""
    place = {fqn: at for at, fqn in enumerate(tables.layers)}

    def border(one: str, other: str, adds: Mapping[str, Pairs]) -> Border:
        cost = adds.get(goal.name) or _pairs(tables, lambda first, second: 0.0)
        values = {at: adds[name] for name, at in limited.items() if name in adds}
        return Border(place[one], place[other], cost, values)

    used = [one for name, one in OBJECTIVES.items() if one is goal or name in limited]
    known = {one.name: one.sizes(tables) for one in used if one.is_time}
    found = [
        border(
            each.one,
            each.other,
            {
                name: _pairs(tables, lambda one, other: costs.total(tables.conversion(each, one, other)))  # noqa: B023
                for name, costs in known.items()
            },
        )
        for each in tables.neighbours
        if each.one != each.other and known
    ]
    for reading in tables.shrinking.readings:
        adds = {}
        for each in costs_besides_drop():
            costs = each.sizes(tables)
            own = {choice: costs.size(tables.part(reading.reader, choice)) for choice in tables.choices}
            adds[each.name] = _pairs(tables, lambda one, other: own[other] * reading.more.get((one, other), 0.0))  # noqa: B023
        found.append(border(reading.maker, reading.reader, adds))
    for group in tables.shrinking.together:
        members = sorted(group, key=place.__getitem__)
        for first, second in itertools.pairwise(members):
            cost = _pairs(tables, lambda one, other: 0.0 if tables.shrinking.fits(one, other) else math.inf)
            found.append(Border(place[first], place[second], cost))
    return found


def _pairs(tables: Tables, of: Callable[[str, str], float]) -> Pairs:
    return [[of(one, other) for other in tables.choices] for one in tables.choices]
