"""From the knowledge of a search to its result, for its own budget or another one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.checks import described
from prepbench.errors import UnknownNameError
from prepbench.objects.digest import value_mark
from prepbench.search.mixtures import Arguments, Mixture, summary_of
from prepbench.search.objective import DROP, Budget, costs_besides_drop, traded_for_drop
from prepbench.search.scoring import Scale
from prepbench.search.search_result import SearchCandidate, SearchResult, mixture_of
from prepbench.search.states import LEFT_IN_FLOAT, TargetState, excess, is_better, is_within

POINTS = 12
"""Bounds of noise for which the front is solved."""


@dataclass(frozen=True)
class Known:
    """The knowledge of a search at its end.

    Attributes:
        states: of each target.
        scale: of the metric.
        arguments: of ``compile_model``, by target and mixture.
        evaluations: of the metric.
        compiled: how many models.
        notes: remarks.
        given: further arguments of ``compile_model`` that the search was called with.
        unsteady: by how much two evaluations of the model in float differ.
        values: of the model's tensors when the search began, as :func:`value_mark` tells them apart.
    """

    states: tuple[TargetState, ...]
    scale: Scale
    arguments: Arguments
    evaluations: int
    compiled: int
    notes: tuple[str, ...]
    given: Mapping[str, Any] = field(default_factory=dict, repr=False)
    unsteady: float = 0.0
    values: Hashable = None
    _fronts: dict[str, list[list[Mixture]]] = field(default_factory=dict, compare=False, repr=False)
    _numbers: dict[tuple[int, Mixture], int] = field(default_factory=dict, compare=False, repr=False)
    _next: Iterator[int] = field(default_factory=lambda: itertools.count(1), compare=False, repr=False)

    @property
    def is_outdated(self) -> bool:
        """Whether the model's weights have changed since."""
        return self.values != value_mark(self.arguments.model)

    def result(self, budget: Budget) -> SearchResult:
        """Return the best within a budget, with all candidates; the best may be only predicted."""
        candidates = self._candidates(budget)
        best = self._best(candidates, budget)
        measured = self._best([each for each in candidates if each.measured], budget)
        goal = budget.minimize
        if best is None or (measured is not None and not is_better(best.value(goal), measured.value(goal))):
            best = measured
        reached = best is not None
        nearest = best if best is not None else self._nearest(candidates, budget)
        return self._of(budget, candidates, nearest, reached, nearest.measured)

    def predicted(self, layers: Mapping[str, str], target: str | None) -> SearchCandidate:
        """Return the measured or else the predicted values of a mixture.

        Args:
            layers: names of choices, by FQN; layers that are missing stay in float.
            target: the target's label; None if there is only one.
        """
        at = self._place_of(target)
        state = self.states[at]
        mixture = mixture_of(state.tables, layers)
        known = state.measured.get(mixture)
        if known is not None:
            return known if known.metric is not None else state.with_prediction(mixture, known, self.scale)
        one = state.predicted(mixture, summary_of(mixture), self.scale)
        return dataclasses.replace(one, settings=self.arguments.of(at, mixture))

    def _place_of(self, target: str | None) -> int:
        labels = [state.label for state in self.states]
        if target is None and len(labels) == 1:
            return 0
        if target not in labels:
            raise UnknownNameError(
                f"target: there is no target {described(target)} in this search. Give one of "
                f"{', '.join(map(repr, labels))}."
            )
        return labels.index(target)

    def searched(self, budget: Budget, proven: bool, tries: int) -> SearchResult:
        """Return the best measured mixture within the search's budget; ``proven``: none better is predicted."""
        candidates = self._candidates(budget)
        measured = [each for each in candidates if each.measured]
        best = self._best(measured, budget)
        result = self._of(budget, candidates, best or self._nearest(measured, budget), best is not None, proven)
        if proven:
            return result
        more = f"{tries} tries were used up before that was proven; give more with tries=."
        return dataclasses.replace(result, why=f"{result.why} {more}")

    def _best(self, candidates: Sequence[SearchCandidate], budget: Budget) -> SearchCandidate | None:
        fitting = [each for each in candidates if is_within(each, budget, self.scale)]
        return min(fitting, key=lambda each: (each.value(budget.minimize), not each.measured), default=None)

    def _nearest(self, candidates: Sequence[SearchCandidate], budget: Budget) -> SearchCandidate:
        return min(candidates, key=lambda each: (excess(each, budget, self.scale), not each.measured))

    def _of(
        self,
        budget: Budget,
        candidates: Sequence[SearchCandidate],
        best: SearchCandidate,
        reached: bool,
        proven: bool,
    ) -> SearchResult:
        return SearchResult(
            budget=budget,
            candidates=tuple(candidates),
            best=best,
            reached=reached,
            proven=proven,
            why=_why(best, reached, proven, budget, self.scale),
            metric=self.scale.name,
            unit="dB" if self.scale.is_sqnr else "",
            higher_is_better=self.scale.higher_is_better,
            base=self.scale.base,
            evaluations=self.evaluations,
            compiled=self.compiled,
            notes=(*self.notes, *self._failed(), *self._unsteady(best, budget)),
            given=self.given,
            _known=self,
        )

    def _failed(self) -> Iterator[str]:
        """Yield a note for each mixture that failed to compile."""
        for state in self.states:
            for mixture, why in state.failed.items():
                if why != LEFT_IN_FLOAT:
                    yield f"{state.label}: {summary_of(mixture)} could not be compiled: {why}"

    def _unsteady(self, best: SearchCandidate, budget: Budget) -> Iterator[str]:
        """Yield a note if the metric is not deterministic while its drop decides."""
        if not self.unsteady:
            return
        said = (
            f"{self.scale.name} is not deterministic: two evaluations of the model in float differ by "
            f"{self.unsteady:.4g}."
        )
        limit = self.scale.limit(budget)
        if limit < self.unsteady:
            yield (
                f"{said} The drop of at most {limit:.4g} is less than that, so whether a candidate keeps it is chance. "
                "Make the metric deterministic (a fixed seed), or allow a larger drop."
            )
        elif best.metric is not None and DROP.value(best) + self.unsteady > limit:
            yield f"{said} The drop of {best.name!r}, {DROP.value(best):.4g}, is within the budget by less than that."
        else:
            yield f"{said} Smaller drops are not significant."

    def _candidates(self, budget: Budget) -> list[SearchCandidate]:
        """Return the measured candidates, then the predicted ones: the best within the budget and a front."""
        found = [
            each if each.metric is not None else state.with_prediction(mixture, each, self.scale)
            for state in self.states
            for mixture, each in state.measured.items()
        ]
        goal = traded_for_drop(budget.minimize)
        if goal not in self._fronts:
            self._fronts[goal] = [state.front(goal, POINTS) for state in self.states]
        for at, state in enumerate(self.states):
            mixtures = [*state.solved(budget, self.scale), *state.noise, *self._fronts[goal][at]]
            for mixture in dict.fromkeys(mixtures):
                if mixture in state.measured or mixture in state.failed:
                    continue
                # a mixture has one name in the results of all budgets
                if (at, mixture) not in self._numbers:
                    self._numbers[at, mixture] = next(self._next)
                one = state.predicted(mixture, f"predicted {self._numbers[at, mixture]}", self.scale)
                found.append(dataclasses.replace(one, settings=self.arguments.of(at, mixture)))
        return found


def _why(best: SearchCandidate, reached: bool, proven: bool, budget: Budget, scale: Scale) -> str:
    if reached and best.measured:
        rest = ", and nothing else is predicted to be better" if proven else ""
        return f"{best.name!r} was measured within it{rest}."
    if reached:
        return (
            f"{best.name!r} is predicted to be within it and was not measured; search with this budget to measure it."
        )
    over = _exceeded(best, budget, scale)
    how = "measured" if best.measured else "predicted"
    return f"out of reach. The nearest is {best.name!r} with {' and '.join(over)} ({how})."


def _exceeded(best: SearchCandidate, budget: Budget, scale: Scale) -> list[str]:
    found = []
    if DROP.value(best) > (loss := scale.limit(budget)):
        metric = best.metric if best.metric is not None else best.predicted_metric
        found.append(f"{scale.name} {metric:.4g}{' dB' if scale.is_sqnr else ''}")
    over = (one for one in costs_besides_drop() if one.value(best) > one.limit(budget, loss))
    return [*found, *(one.text(one.value(best)) for one in over)]
