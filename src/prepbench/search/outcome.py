"""From what a search knows to its result, for its own budget and for any other one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prepbench.search.budget import Budget
from prepbench.search.mixtures import Mixture
from prepbench.search.scoring import Scale
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.search.states import TargetState, excess, is_better, is_within

POINTS = 12
"""Bounds of noise for which the front is solved."""


@dataclass(frozen=True)
class Known:
    """All that a search knows when it ends.

    Attributes:
        states: of each target.
        scale: of the metric.
        arguments: of ``compile_model``, by target and mixture.
        evaluations: of the metric.
        compiled: how many models.
        notes: remarks.
    """

    states: tuple[TargetState, ...]
    scale: Scale
    arguments: Callable[[int, Mixture], dict[str, Any]]
    evaluations: int
    compiled: int
    notes: tuple[str, ...]

    def result(self, budget: Budget) -> SearchResult:
        """The best within a budget, with all candidates."""
        candidates = self._candidates(budget)
        fitting = [each for each in candidates if is_within(each, budget, self.scale)]
        goal = budget.minimize
        best = min(fitting, key=lambda each: (each.value(goal), not each.measured), default=None)
        measured = min((each for each in fitting if each.measured), key=lambda each: each.value(goal), default=None)
        if best is not None and measured is not None and not is_better(best.value(goal), measured.value(goal)):
            best = measured
        reached = best is not None
        if best is None:
            best = min(candidates, key=lambda each: (excess(each, budget, self.scale), not each.measured))
        proven = best.measured
        return SearchResult(
            budget=budget,
            candidates=tuple(candidates),
            best=best,
            reached=reached,
            proven=proven,
            why=_why(best, reached, budget, self.scale),
            metric=self.scale.name,
            unit="dB" if self.scale.is_sqnr else "",
            higher_is_better=self.scale.higher_is_better,
            base=self.scale.base,
            evaluations=self.evaluations,
            compiled=self.compiled,
            notes=self.notes,
            _solve=self.result,
        )

    def _candidates(self, budget: Budget) -> list[SearchCandidate]:
        """What was measured, then what is predicted: the best within the budget and a front."""
        found = [each for state in self.states for each in state.measured.values()]
        front_goal = budget.minimize if budget.minimize != "drop" else "latency"
        number = 0
        for at, state in enumerate(self.states):
            mixtures = [*state.solved(budget, self.scale), *state.noise, *state.front(front_goal, POINTS)]
            for mixture in dict.fromkeys(mixtures):
                if mixture in state.measured or mixture in state.failed:
                    continue
                number += 1
                one = state.predicted(mixture, f"predicted {number}", self.scale)
                found.append(dataclasses.replace(one, settings=self.arguments(at, mixture)))
        return found


def _why(best: SearchCandidate, reached: bool, budget: Budget, scale: Scale) -> str:
    if reached and best.measured:
        return f"{best.name!r} was measured within it, and nothing else is predicted to be better."
    if reached:
        return (
            f"{best.name!r} is predicted to be within it and was not measured; search with this budget to measure it."
        )
    over = _exceeded(best, budget, scale)
    how = "measured" if best.measured else "predicted"
    return f"out of reach. The nearest is {best.name!r} with {' and '.join(over)} ({how})."


def _exceeded(best: SearchCandidate, budget: Budget, scale: Scale) -> list[str]:
    found = []
    if best.value("drop") > scale.limit(budget):
        metric = best.metric if best.metric is not None else best.predicted_metric
        found.append(f"{scale.name} {metric:.4g}{' dB' if scale.is_sqnr else ''}")
    if budget.max_latency_ms is not None and best.value("latency") > budget.max_latency_ms:
        found.append(f"{best.value('latency'):.3g} ms a call")
    if budget.max_size_mb is not None and best.value("size") > budget.max_size_mb * 1e6:
        found.append(f"{best.value('size') / 1e6:.3g} MB")
    return found


def ended(result: SearchResult, proven: bool, tries: int) -> SearchResult:
    """A result with how the search itself ended: proven, or out of tries."""
    if proven == result.proven and proven:
        return result
    if proven:
        return dataclasses.replace(result, proven=True)
    more = f"{tries} tries were used up before that was proven; give more with tries=."
    return dataclasses.replace(result, proven=False, why=f"{result.why} {more}")


def names_of(states: Sequence[TargetState]) -> set[str]:
    """Names that are taken."""
    return {each.name for state in states for each in state.measured.values()}
