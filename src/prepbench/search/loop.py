"""The search itself: measure models of one choice, then predict, measure and correct until nothing better is left."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from prepbench.errors import PrepbenchError
from prepbench.jobs import Cancelled, Progress, ProgressCallback
from prepbench.objects.digest import value_mark
from prepbench.package.compiled import CompiledModel
from prepbench.results.measurement import Result
from prepbench.search import objective
from prepbench.search.candidates import Choices, LayerChoice
from prepbench.search.measuring import Subject, Timing, UniformModel, profiled_times, sizes_of, times_of
from prepbench.search.mixtures import FLOAT, Arguments, Mixture, summary_of, uniform_mixture
from prepbench.search.noise import noise_by_part, noise_of
from prepbench.search.outcome import POINTS, Known
from prepbench.search.scoring import Scale, Scoring
from prepbench.search.search_journal import SearchJournal
from prepbench.search.states import LEFT_IN_FLOAT, LOOSEST, TargetState, expected_gain, is_better, is_within
from prepbench.search.tables import Tables
from prepbench.search.target_job import TargetJob, empty_tables
from prepbench.settings import (
    CompileOptions,
    LayerPruningSettings,
    LayerQuantizationSettings,
    PruningSettings,
    QuantizationSettings,
    explain_settings,
    prunable_layers,
)

_REFINEMENTS = 4  # how often mixtures are simulated and solved again before one is compiled
_MAX_HELD = 3  # compiled models that wait to be scored


class Loop:
    """The state and the steps of a search."""

    def __init__(
        self,
        subject: Subject,
        jobs: Sequence[TargetJob],
        budget: objective.Budget,
        scoring: Scoring,
        timing: Timing,
        journal: SearchJournal,
        options: CompileOptions,
        progress: ProgressCallback,
        told: Callable[[objective.SearchCandidate], object],
    ) -> None:
        self._subject, self._jobs, self._budget = subject, list(jobs), budget
        self._scoring, self._timing, self._journal = scoring, timing, journal
        self._progress, self._told = progress, told
        model: Any = subject.model
        targets = [(job.simulation.layers, job.choices, job.deployment) for job in jobs]
        self._arguments = Arguments(model, targets, options)
        self._scale, self._values = scoring.scale, value_mark(model)
        self.states: list[TargetState] = []
        self.compiled = 0
        self._mixtures = 0
        self._held: OrderedDict[tuple[int, Mixture], CompiledModel] = OrderedDict()

    @property
    def jobs(self) -> Sequence[TargetJob]:
        """The targets, without the choices that failed to compile."""
        return self._jobs

    def begin(self) -> None:
        """Measure the model in float and with each choice in all layers.

        With a user's metric only the least quantized of them is scored now; the others are scored when they may be the
        best.
        """
        if self._found(0, (FLOAT,) * len(self._jobs[0].simulation.layers)) is None:
            self._timing.prepare(1 + len(self._jobs[0].choices))
        uniform = [
            {self._name(at, name): found for name, found in self._uniform_models(at).items()}
            for at in range(len(self._jobs))
        ]
        known = {
            name: result
            for at, found in enumerate(uniform)
            for name, (mixture, _) in found.items()
            if (result := self._found(at, mixture)) is not None
        }
        # The float model of the first target is in every batch of timings, so that batches can be compared: ratios
        # inside a batch are measured, and its own time is their unit.
        first = next(iter(uniform[0]))
        self._timing.begin(first, uniform[0][first][1], known[first].p50_ms if first in known else None)
        measured = self._timing.measured(
            {name: compiled for found in uniform for name, (_, compiled) in found.items() if name not in known}
        )
        measured |= {name: (result.p50_ms, result.size_bytes) for name, result in known.items()}
        for at, found in enumerate(uniform):
            self.states.append(self._state(at, found, measured))
            for mixture, _ in found.values():
                self._simulate(at, mixture)
            noise = self.states[at].noise
            # One score ties the curve from noise to drop to the data. The quietest model is the most likely to be
            # within the budget, so its score is rarely wasted.
            quantized = [mixture for mixture, _ in found.values() if any(each != FLOAT for each in mixture)]
            quietest = min(quantized, key=noise.__getitem__, default=None)
            for name, (mixture, compiled) in found.items():
                scored = self._scale.is_sqnr or mixture == quietest
                self._record(at, mixture, name, compiled, *measured[name], known.get(name), scored=scored)
            # Last, because mixtures of the journal correct the tables that the uniform models made.
            self._record_from_journal(at)

    def _record_from_journal(self, at: int) -> None:
        """Take further measured mixtures from the journal."""
        for mixture in measured_mixtures(self._journal, self._arguments, at):
            known = self._found(at, mixture)
            if known is not None and mixture not in self.states[at].measured:
                self._mixtures += 1
                name = self._name(at, f"mixture {self._mixtures}")
                self._record(at, mixture, name, None, known.p50_ms, known.size_bytes, known, scored=False)

    def improve(self, tries: int) -> bool:
        """Measure mixtures until the best is proven or no further one is expected to be better; return False if the
        tries ran out.

        The mixture with the best prediction is timed. It is scored only if it is still the best with its measured time.
        """
        attempt = 0
        while True:
            self._progress(Progress("search", attempt, tries + 1))
            chosen = self._next(timed=False)
            if chosen is None:
                return True
            at, mixture = chosen
            if mixture not in self.states[at].measured:
                if attempt == tries:
                    break
                attempt += 1
                self._measure(at, mixture)
            else:
                self._score(at, mixture)
        # No compile is left. Scoring what is timed already needs no more of them, and may still find a better one.
        while (chosen := self._next(timed=True)) is not None:
            self._score(*chosen)
        return False

    def _next(self, *, timed: bool) -> tuple[int, Mixture] | None:
        """Return the target and mixture to measure next, or to score if ``timed``; None if none better is predicted."""
        best = self._best()
        proposals = [(at, one) for at in range(len(self._jobs)) for one in self._proposals(at, timed)]
        if proposals:
            found = max(proposals, key=lambda each: self._gain(each, best))
            enough = best is None or self._gain(found, best) > MIN_RELATIVE_GAIN * abs(self._value(*best))
            return found if enough else None
        # Nothing is predicted to fit. With a best in hand that is the proof that the search ends on. Without one, move
        # towards the budget instead: a measurement there corrects the predictions.
        if best is not None or timed:
            return None
        return next(((at, one) for at in range(len(self._jobs)) if (one := self._nearest(at)) is not None), None)

    def simulate_front(self) -> None:
        """Simulate the mixtures of the fronts, so that their noise is exact and not an estimate."""
        goal = objective.traded_for_drop(self._budget.minimize)
        for at, state in enumerate(self.states):
            mixtures = state.front(goal, POINTS)
            for done, mixture in enumerate(mixtures):
                self._progress(Progress("front", done, len(mixtures)))
                self._simulate(at, mixture)

    def known(self, notes: Sequence[str]) -> Known:
        """Return the knowledge of the search so far."""
        return Known(
            tuple(self.states),
            self._scale,
            self._arguments,
            self._scoring.evaluations,
            self.compiled,
            tuple(notes),
            self._subject.given,
            self._scoring.unsteady,
            self._values,
        )

    def _uniform_models(self, at: int) -> dict[str, tuple[Mixture, CompiledModel]]:
        """Compile one model for each choice, with that choice in all layers; return them by name."""
        job = self._jobs[at]
        mixtures = {
            name: uniform_mixture(job.simulation.layers, job.choices, job.refused, name)
            for name in (FLOAT, *job.choices)
        }
        found, failed = {}, dict[str, PrepbenchError]()
        for name, mixture in mixtures.items():
            try:
                found[name] = self._compile(at, mixture)
            except Cancelled:
                raise
            except PrepbenchError as error:
                failed[name] = error
                if name == FLOAT or len(failed) == len(job.choices):
                    raise
        self._jobs[at] = job.without(failed)
        return found

    def _compile(self, at: int, mixture: Mixture) -> tuple[Mixture, CompiledModel]:
        """Compile a mixture; return what its layers really took (a target may leave some in float) and the model."""
        compiled = self._subject.compiled(self._arguments.of(at, mixture), self._progress)
        self.compiled += 1
        return self._jobs[at].choices_taken(mixture, compiled.report), compiled

    def _name(self, at: int, name: str) -> str:
        return name if len(self._jobs) == 1 else f"{name}, {self._jobs[at].label}"

    def _state(
        self,
        at: int,
        found: Mapping[str, tuple[Mixture, CompiledModel]],
        measured: Mapping[str, tuple[float | None, int | None]],
    ) -> TargetState:
        job, tables = self._jobs[at], empty_tables(self._jobs[at])
        distinct = [name for name in tables.choices if tables.kernels.get(name, name) == name]
        names = {name: self._name(at, name) for name in distinct}
        uniform = {
            name: UniformModel((measured[full][0] or 0.0) / 1e3, self._subject.profiled(found[full][1]))
            for name, full in names.items()
        }
        work = {fqn: float(count) for fqn, count in job.simulation.multiplications.items()}
        weights = {
            (fqn, name): job.weight_bytes(fqn, name) * tables.shrinking.left.get((fqn, name), 1.0)
            for fqn in tables.layers
            for name in distinct
            if (fqn, name) not in tables.refused
        }
        times, beside = times_of(tables.layers, uniform, tables.neighbours, work)
        noise, rounded = noise_by_part(job, self._subject.executor, self._progress)
        tables = replace(
            tables,
            times=times,
            beside=beside,
            sizes=sizes_of(weights, measured[names[FLOAT]][1] or sum(weights[fqn, FLOAT] for fqn in tables.layers)),
            noise=noise,
            rounded=rounded,
            further=objective.estimated_costs(job),
        )
        return TargetState(job.label, tables)

    def _record(
        self,
        at: int,
        mixture: Mixture,
        name: str,
        compiled: CompiledModel | None,
        ms: float | None,
        size: int | None,
        known: Result | None = None,
        *,
        scored: bool = True,
        again: bool = False,
        predicted: objective.SearchCandidate | None = None,
    ) -> None:
        """Record a measured mixture; score it first where that is wanted and its score is unknown."""
        self._simulate(at, mixture)
        metric, spread = (None, None) if known is None else (known.score, known.spread)
        # Float scores the base by definition. Running it again would only add the metric's own noise.
        if metric is None and all(each == FLOAT for each in mixture) and not self._scale.is_sqnr:
            metric = self._scale.base
        elif metric is None and compiled is not None:
            if scored:
                metric, spread = self._scoring.score(name, compiled)
            else:
                self._keep_compiled(at, mixture, compiled)
        state, arguments = self.states[at], self._arguments.of(at, mixture)
        # A mixture is timed first and scored later, so its row in the journal is written twice; the newest one counts.
        if compiled is not None and (known is None or known.score != metric):
            deployment, report = self._jobs[at].deployment, compiled.report
            self._journal.note(deployment, arguments, summary_of(mixture), report, ms, size, metric, spread)
        candidate = dataclasses.replace(
            predicted if predicted is not None else objective.SearchCandidate(name, "", {}),
            name=name,
            target=state.label,
            layers=dict(zip(state.tables.layers, mixture, strict=True)),
            metric=metric,
            drop=None if metric is None or self._scale.is_sqnr else self._scale.loss(metric),
            ms=ms,
            size_bytes=size,
            spread=spread,
            noise=state.noise_of(mixture),
            settings=arguments,
            only_pruned=state.tables.only_pruned,
            costs=objective.predicted_costs(state.tables, mixture),
        )
        self.states[at] = state.with_measured(mixture, candidate, self._scale, again=again)
        self._told(candidate)

    def _measure(self, at: int, mixture: Mixture) -> None:
        self._mixtures += 1
        name = self._name(at, f"mixture {self._mixtures}")
        predicted = self.states[at].predicted(mixture, name, self._scale)
        try:
            real, compiled = self._compile(at, mixture)
        except Cancelled:
            raise
        except PrepbenchError as error:  # also where the target would quantize none of these layers beside the others
            self.states[at] = self.states[at].with_failed(mixture, str(error))
            return
        # Otherwise the solver would propose it again and again: its tables cannot express what the target refuses.
        if real != mixture:
            self.states[at] = self.states[at].with_failed(mixture, LEFT_IN_FLOAT)
        if real in self.states[at].measured:
            return
        # The journal is asked for what was compiled, not for what was wanted.
        known = self._found(at, real)
        if known is None:
            [(ms, size)] = self._timing.measured({name: compiled}).values()
        else:
            ms, size = known.p50_ms, known.size_bytes
        self._record(at, real, name, compiled, ms, size, known, scored=False, predicted=predicted)
        state = self.states[at]
        found = profiled_times(state.tables, real, UniformModel((ms or 0.0) / 1e3, self._subject.profiled(compiled)))
        tables = replace(state.tables, times=state.tables.times.with_measured(*found))
        self.states[at] = replace(state, tables=tables)

    def _score(self, at: int, mixture: Mixture) -> None:
        """Score a mixture that was timed."""
        candidate = self.states[at].measured[mixture]
        compiled = self._held.pop((at, mixture), None)
        if compiled is None:
            _, compiled = self._compile(at, mixture)
        self._record(
            at, mixture, candidate.name, compiled, candidate.ms, candidate.size_bytes, predicted=candidate, again=True
        )

    def _keep_compiled(self, at: int, mixture: Mixture, compiled: CompiledModel) -> None:
        """Keep a compiled model that may be scored later."""
        self._held[at, mixture] = compiled
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)

    def _found(self, at: int, mixture: Mixture) -> Result | None:
        """Return the journal's result for a mixture that the target takes unchanged."""
        return self._journal.find(self._jobs[at].deployment, self._arguments.of(at, mixture))

    def _simulate(self, at: int, mixture: Mixture) -> None:
        state = self.states[at]
        if mixture in state.noise:
            return
        score = self._jobs[at].pruned.score(mixture, self._progress)
        self.states[at] = state.with_noise(mixture, noise_of(score))

    def _proposals(self, at: int, timed: bool) -> list[Mixture]:
        """Return the unscored mixtures that are predicted to be within the budget."""
        # The solver adds up the noise of layers, which is an estimate. A simulation costs one run of the graph, and a
        # compile minutes: so simulate each proposal, correct the tables by it and solve again before compiling.
        for _ in range(0 if timed else _REFINEMENTS):
            found = [*self.states[at].solved(self._budget, self._scale), *self._near(at)]
            new = [one for one in dict.fromkeys(found) if one not in self.states[at].noise]
            # The solution is one that is simulated already: the tables agree with it.
            if not new:
                break
            for mixture in new:
                self._simulate(at, mixture)
        state = self.states[at]
        untried = [one for one in state.unscored if not timed or one in state.measured]
        return [one for one in untried if is_within(self._predicted(at, one), self._budget, self._scale)]

    def _near(self, at: int) -> list[Mixture]:
        """Return neighbours of the best mixture, if that one belongs to this target."""
        best = self._best()
        return [] if best is None or best[0] != at else near(self.states[at], best[1], self._budget, self._scale)

    def _gain(self, one: tuple[int, Mixture], best: tuple[int, Mixture] | None) -> float:
        """Return the expected gain of a mixture over the best; without a best, the smaller its value, the higher."""
        at, mixture = one
        if best is None:
            # Ranks proposals only; _next compares it with no threshold as long as there is no best.
            return -self._predicted(at, mixture).value(self._budget.minimize)
        beside = best[1] if best[0] == at else None
        return gain(self.states[at], mixture, beside, self._value(*best), self._budget, self._scale)

    def _value(self, at: int, mixture: Mixture) -> float:
        """Return the measured value of a mixture's objective."""
        return self.states[at].measured[mixture].value(self._budget.minimize)

    def _nearest(self, at: int) -> Mixture | None:
        """Return the unscored mixture that comes nearest to the budget."""
        state = self.states[at]
        found = state.nearest(self._budget, self._scale)
        if found is None or found in state.failed:
            return None
        measured = state.measured.get(found)
        return found if measured is None or measured.metric is None else None

    def _predicted(self, at: int, mixture: Mixture) -> objective.SearchCandidate:
        return self.states[at].predicted(mixture, "", self._scale)

    def _best(self) -> tuple[int, Mixture] | None:
        """Return the best measured mixture within the budget."""
        fitting = [
            (at, mixture)
            for at, state in enumerate(self.states)
            for mixture, each in state.measured.items()
            if each.measured and is_within(each, self._budget, self._scale)
        ]
        return min(fitting, key=lambda found: self._value(*found), default=None)


# Mixtures that differ little from the best that was measured, and what they are expected to gain.


MIN_RELATIVE_GAIN = 0.003
"""Of the best: what is expected to gain less is not measured."""

_MAX_NEIGHBOURS = 6  # mixtures near the best that are simulated each time
_MAX_SLOWDOWN = 1.1  # times the best: what is predicted to be slower is not looked at
_MAX_RUN = 4  # layers in a row that change together: each border between types of numbers costs a conversion


def moves(tables: Tables, mixture: Mixture) -> Iterator[Mixture]:
    """Yield mixtures in which a few consecutive layers all change to one other choice.

    Layers that cannot take it stay as they are. Layers that share weights, or lose the same channels, change together.
    """
    taken_now = dict(zip(tables.layers, mixture, strict=True))
    seen = {mixture}
    for first in range(len(tables.layers)):
        for length in range(1, min(_MAX_RUN, len(tables.layers) - first) + 1):
            for name in tables.choices:
                changed = _together(tables, tables.layers[first : first + length], name, taken_now)
                one = tuple(
                    name if fqn in changed and (fqn, name) not in tables.refused else taken
                    for fqn, taken in zip(tables.layers, mixture, strict=True)
                )
                # A refused layer keeps its choice, which can break a group apart after all.
                if one not in seen and not _splits(tables, one) and not tables.mixes(one):
                    seen.add(one)
                    yield one


def _together(tables: Tables, changed: Iterable[str], name: str, taken: Mapping[str, str]) -> set[str]:
    """Return the layers that change to a choice, with those that must follow because they share weights or channels."""
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
        # To a fixed point: a follower may share weights or channels with further layers.
        left = (weights | channels) - found
    return found


def _splits(tables: Tables, mixture: Mixture) -> bool:
    """Return whether layers that share weights or channels differ, because one cannot take the choice of the others."""
    taken = dict(zip(tables.layers, mixture, strict=True))
    return not tables.shrinking.is_possible(taken) or any(
        len({taken.get(fqn, FLOAT) for fqn in group}) > 1 for group in tables.groups
    )


def gain(
    state: TargetState, mixture: Mixture, beside: Mixture | None, best: float, budget: objective.Budget, scale: Scale
) -> float:
    """Return the expected gain of a mixture over the best, which may be ``beside``; predicted times are uncertain."""
    value = state.predicted(mixture, "", scale).value(budget.minimize)
    if state.timed_alike(mixture) is not None and not is_better(value, best):
        return 0.0  # timing does not tell them apart
    doubt = state.doubt(mixture, beside) if objective.OBJECTIVES[budget.minimize].is_time else 0.0
    return expected_gain(value, doubt, best)


def near(state: TargetState, best: Mixture, budget: objective.Budget, scale: Scale) -> list[Mixture]:
    """Return unsimulated neighbours of the best measured mixture that may be better and within the budget."""
    value = state.measured[best].value(budget.minimize)
    noise = state.bounds(budget, scale, LOOSEST).get(objective.DROP.name, math.inf)
    limits = {one: one.limit(budget, scale.limit(budget)) for one in objective.costs_besides_drop() if not one.is_time}
    gains = {}
    for one in moves(state.tables, best):
        if one in state.noise or one in state.failed or state.tables.noise_of(one) > noise:
            continue
        predicted = state.predicted(one, "", scale)
        fits = all(each.value(predicted) <= limit for each, limit in limits.items())
        if predicted.value(budget.minimize) < _MAX_SLOWDOWN * value and fits:
            gains[one] = gain(state, one, best, value, budget, scale)
    # A simulation is paid only for a gain that could be worth a compile.
    worth = [one for one, gained in gains.items() if gained > MIN_RELATIVE_GAIN * abs(value)]
    return sorted(worth, key=gains.__getitem__, reverse=True)[:_MAX_NEIGHBOURS]


# Mixtures that a journal holds: a search that goes on after a crash, or for another budget, begins with them.


def measured_mixtures(journal: SearchJournal, arguments: Arguments, at: int) -> Iterator[Mixture]:
    """Yield each mixture of a target that the journal has measured, once, in the order of measurement."""
    layers, choices, deployment = arguments.targets[at]
    seen = set()
    for result in journal.all(deployment):
        mixture = _mixture_of(result.plan, arguments.model, choices)
        known = tuple(mixture.get(fqn, FLOAT) for fqn in layers) if mixture is not None else ()
        if (
            "" not in known
            and known
            and known not in seen
            and journal.is_of(result, deployment, arguments.of(at, known))
        ):
            seen.add(known)
            yield known


def _mixture_of(plan: Mapping[str, Any], model: nn.Module, choices: Choices) -> dict[str, str] | None:
    """Return the choice of each layer by name, "" for none of the choices; None for a plan of another version."""
    try:
        bits, pruning = _bits_of(plan, model), _pruning_of(plan, model)
    except PrepbenchError:
        return None
    names = {LayerChoice(): FLOAT} | {choice: name for name, choice in choices.items()}
    return {fqn: names.get(LayerChoice(bits.get(fqn), pruning.get(fqn)), "") for fqn in {**bits, **pruning}}


def _bits_of(plan: Mapping[str, Any], model: nn.Module) -> dict[str, QuantizationSettings | None]:
    if "quantization_settings" not in plan:
        return {}
    common = QuantizationSettings.from_dict(plan["quantization_settings"])
    given = plan.get("layer_quantization_settings", {})
    rules = {fqn: LayerQuantizationSettings.from_dict(rule) for fqn, rule in given.items()}
    return {row.fqn: row.settings for row in explain_settings(model, common, rules)}


def _pruning_of(plan: Mapping[str, Any], model: nn.Module) -> dict[str, PruningSettings | None]:
    if "pruning_settings" not in plan:
        return {}
    common = PruningSettings.from_dict(plan["pruning_settings"])
    given = plan.get("layer_pruning_settings", {})
    rules = {fqn: LayerPruningSettings.from_dict(rule) for fqn, rule in given.items()}
    return {row.fqn: row.settings for row in prunable_layers(model, common, rules)}
