"""Mixtures that differ little from the best that was measured, and what they are expected to gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prepbench.search.budget import Budget
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.scoring import Scale
from prepbench.search.states import LOOSEST, TargetState, expected_gain, is_better
from prepbench.search.tables import Tables

WORTH = 0.003
"""Of the best: what is expected to gain less is not measured."""

_MOST = 6  # mixtures near the best that are simulated each time
_FAR = 1.1  # times the best: what is predicted to be slower is not looked at
_LONGEST = 4  # layers in a row that change together: each border between types of numbers costs a conversion


def moves(tables: Tables, mixture: Mixture) -> Iterator[Mixture]:
    """Mixtures in which a few layers that follow each other take another choice, all of them the same one.

    Layers that cannot take it stay as they are. Layers that share weights, or lose the same channels, change together.

    Args:
        tables: of the target.
        mixture: what the layers take now.
    """
    taken_now = dict(zip(tables.layers, mixture, strict=True))
    seen = {mixture}
    for first in range(len(tables.layers)):
        for length in range(1, min(_LONGEST, len(tables.layers) - first) + 1):
            for name in tables.choices:
                changed = _together(tables, tables.layers[first : first + length], name, taken_now)
                one = tuple(
                    name if fqn in changed and (fqn, name) not in tables.refused else taken
                    for fqn, taken in zip(tables.layers, mixture, strict=True)
                )
                if one not in seen and not _splits(tables, one) and not tables.mixes(one):
                    seen.add(one)
                    yield one


def _together(tables: Tables, changed: Iterable[str], name: str, taken: Mapping[str, str]) -> set[str]:
    """Layers that change to a choice, with those that have to follow: of the same weights, or of the same channels."""
    found, left = set[str](), set(changed)
    while left:
        found |= left
        weights = {fqn for group in tables.groups if group & left for fqn in group}
        channels = {
            fqn
            for group in tables.shrinking.together
            if any(not tables.shrinking.fits(taken[one], name) for one in group & left)
            for fqn in group
        }
        left = (weights | channels) - found
    return found


def _splits(tables: Tables, mixture: Mixture) -> bool:
    """Whether layers that share weights or channels differ, because one cannot take what the others do."""
    taken = dict(zip(tables.layers, mixture, strict=True))
    return not tables.shrinking.is_possible(taken) or any(
        len({taken.get(fqn, FLOAT) for fqn in group}) > 1 for group in tables.groups
    )


def gain(
    state: TargetState, mixture: Mixture, beside: Mixture | None, best: float, budget: Budget, scale: Scale
) -> float:
    """By how much a mixture is expected to be better than the best: times are predicted with a doubt.

    Args:
        state: of the target.
        mixture: what its layers take.
        beside: the best, where that is one of this target.
        best: what was measured of it, of what is to be small.
        budget: says what that is.
        scale: of the metric.
    """
    value = state.predicted(mixture, "", scale).value(budget.minimize)
    if state.timed_alike(mixture) is not None and not is_better(value, best):
        return 0.0  # timing does not tell them apart
    doubt = state.doubt(mixture, beside) if budget.minimize == "latency" else 0.0
    return expected_gain(value, doubt, best)


def near(state: TargetState, best: Mixture, budget: Budget, scale: Scale) -> list[Mixture]:
    """Mixtures that differ little from the best, may be better and within the budget, and were not simulated.

    Args:
        state: of the target.
        best: what was measured and is the best within the budget.
        budget: what must hold.
        scale: of the metric.
    """
    value, bounds = state.measured[best].value(budget.minimize), state.bounds(budget, scale, LOOSEST)
    gains = {}
    for one in moves(state.tables, best):
        if one in state.noise or one in state.failed or state.tables.noise_of(one) > bounds.noise:
            continue
        predicted = state.predicted(one, "", scale)
        if predicted.value(budget.minimize) < _FAR * value and predicted.value("size") <= bounds.bytes:
            gains[one] = gain(state, one, best, value, budget, scale)
    worth = [one for one, gained in gains.items() if gained > WORTH * abs(value)]
    return sorted(worth, key=gains.__getitem__, reverse=True)[:_MOST]
