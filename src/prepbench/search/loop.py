"""The search itself: measure models of one choice, then predict, measure and correct until nothing better is left."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prepbench.compile.compiled import CompiledModel
from prepbench.compile.simulation import Simulation
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.jobs import Cancelled, Progress, ProgressCallback
from prepbench.measure.profile_result import Profile
from prepbench.results.measurement import Result
from prepbench.search.budget import Budget
from prepbench.search.corrected import Corrected
from prepbench.search.costs import Whole, conversion_rate, sizes_of, times_of
from prepbench.search.curve import DropCurve
from prepbench.search.measuring import Subject, Timing
from prepbench.search.mixtures import FLOAT, Arguments, Choices, Mixture
from prepbench.search.noise import noise_by_layer, noise_of
from prepbench.search.outcome import POINTS, Known
from prepbench.search.remembered import Remembered
from prepbench.search.scoring import Scoring
from prepbench.search.search_result import SearchCandidate
from prepbench.search.states import TargetState, is_better, is_within
from prepbench.search.tables import CONVERTED_BYTE, Neighbours, Tables, alternating
from prepbench.settings import CompileOptions, DeploymentSettings, QuantizationSettings

IN_TURNS = "in turns"
_REFINED = 4  # how often mixtures are simulated and solved again before one is compiled


@dataclass(frozen=True)
class TargetJob:
    """One target of a search.

    Attributes:
        deployment: its settings.
        label: the target for people.
        simulation: the model, as this target would quantize it.
        choices: what layers may take, by name.
        lacking: why no layer takes one of the other candidates here.
    """

    deployment: DeploymentSettings
    label: str
    simulation: Simulation
    choices: Choices
    lacking: Mapping[str, str] = field(default_factory=dict)


class Loop:
    """The steps of a search, and what is known so far.

    Args:
        subject: the model.
        jobs: the targets.
        budget: what must hold.
        scoring: of candidates on the data.
        timing: of candidates.
        remembered: what was measured before.
        options: of compiles.
        progress: receives each step.
    """

    def __init__(
        self,
        subject: Subject,
        jobs: Sequence[TargetJob],
        budget: Budget,
        scoring: Scoring,
        timing: Timing,
        remembered: Remembered,
        options: CompileOptions,
        progress: ProgressCallback,
    ) -> None:
        self._subject, self._jobs, self._budget = subject, jobs, budget
        self._scoring, self._timing, self._remembered = scoring, timing, remembered
        self._progress = progress
        model: Any = subject.model
        targets = [(job.simulation.layers, job.choices, job.deployment) for job in jobs]
        self._arguments = Arguments(model, targets, options)
        self._scale = scoring.scale
        self.states: list[TargetState] = []
        self.compiled = 0
        self._mixtures = 0

    def begin(self) -> None:
        """Measure the model in float, with each choice everywhere, and with float and integers in turns."""
        wholes = [
            {self._name(at, name): found for name, found in self._wholes(at).items()} for at in range(len(self._jobs))
        ]
        known = {
            name: result
            for at, found in enumerate(wholes)
            for name, (mixture, _) in found.items()
            if (result := self._found(at, mixture)) is not None
        }
        first = next(iter(wholes[0]))
        self._timing.begin(first, wholes[0][first][1], known[first].p50_ms if first in known else None)
        measured = self._timing.measured(
            {name: compiled for found in wholes for name, (_, compiled) in found.items() if name not in known}
        )
        measured |= {name: (result.p50_ms, result.size_bytes) for name, result in known.items()}
        for at, found in enumerate(wholes):
            profiles = {name: self._subject.profiled(compiled) for name, (_, compiled) in found.items()}
            self.states.append(self._state(at, found, measured, profiles))
            for name, (mixture, compiled) in found.items():
                scored = name != self._name(at, IN_TURNS)
                self._take(at, mixture, name, compiled, *measured[name], known.get(name), scored=scored)

    def improve(self, tries: int) -> bool:
        """Measure mixtures until the best is proven, or nothing comes nearer; False where the tries do not suffice."""
        for attempt in range(tries + 1):
            self._progress(Progress("search", attempt, tries + 1))
            best = self._best()
            proposals = [(at, one) for at in range(len(self._jobs)) if (one := self._proposal(at)) is not None]
            if proposals:
                at, mixture = min(proposals, key=lambda each: self._predicted(*each).value(self._budget.minimize))
                value = self._predicted(at, mixture).value(self._budget.minimize)
                if best is not None and not is_better(value, best.value(self._budget.minimize)):
                    return True
            elif best is not None:
                return True
            else:
                nearest = [(at, one) for at in range(len(self._jobs)) if (one := self._nearest(at)) is not None]
                if not nearest:
                    return True
                at, mixture = nearest[0]
            if attempt == tries:
                return False
            self._measure(at, mixture)
        return False

    def simulate_front(self) -> None:
        """Simulate the mixtures of the fronts, so that their noise is known and not only estimated."""
        goal = self._budget.minimize if self._budget.minimize != "drop" else "latency"
        for at, state in enumerate(self.states):
            mixtures = state.front(goal, POINTS)
            for done, mixture in enumerate(mixtures):
                self._progress(Progress("front", done, len(mixtures)))
                self._simulate(at, mixture)

    def known(self, notes: Sequence[str]) -> Known:
        """All that is known now."""
        return Known(
            tuple(self.states), self._scale, self._arguments, self._scoring.evaluations, self.compiled, tuple(notes)
        )

    def _wholes(self, at: int) -> dict[str, tuple[Mixture, CompiledModel]]:
        """Compiled models of one choice each, and one in turns, by name."""
        job = self._jobs[at]
        empty = _empty_tables(job)
        mixtures = {FLOAT: (FLOAT,) * len(empty.layers)}
        for name in job.choices:
            mixtures[name] = tuple(FLOAT if (fqn, name) in empty.refused else name for fqn in empty.layers)
        turns = alternating(empty)
        found = {name: self._compile(at, mixture) for name, mixture in mixtures.items()}
        if turns is not None and turns not in mixtures.values():
            with contextlib.suppress(SettingsError):  # the target quantizes none of these layers beside the others
                found[IN_TURNS] = self._compile(at, turns)
        return found

    def _compile(self, at: int, mixture: Mixture) -> tuple[Mixture, CompiledModel]:
        """A model, and what its layers really take: some a target may leave in float."""
        compiled = self._subject.compiled(self._arguments.of(at, mixture), self._progress)
        self.compiled += 1
        layers = self._jobs[at].simulation.layers
        quantized = {row.fqn for row in compiled.report.layers if row.quantized}
        real = tuple(name if fqn in quantized else FLOAT for fqn, name in zip(layers, mixture, strict=True))
        return real, compiled

    def _name(self, at: int, name: str) -> str:
        return name if len(self._jobs) == 1 else f"{name}, {self._jobs[at].label}"

    def _state(
        self,
        at: int,
        found: Mapping[str, tuple[Mixture, CompiledModel]],
        measured: Mapping[str, tuple[float | None, int | None]],
        profiles: Mapping[str, Profile | None],
    ) -> TargetState:
        job, tables = self._jobs[at], _empty_tables(self._jobs[at])
        names = {name: self._name(at, name) for name in (*tables.choices, IN_TURNS)}
        seconds = {name: (ms or 0.0) / 1e3 for name, (ms, _) in measured.items()}
        wholes = {name: Whole(seconds[names[name]], profiles[names[name]]) for name in tables.choices}
        rate, turns = None, names[IN_TURNS]
        if turns in found:
            converted = tables.time_parts(found[turns][0]).get(CONVERTED_BYTE, 0.0)
            rate = conversion_rate(profiles[turns], seconds[turns], converted)
        work = {fqn: float(count) for fqn, count in job.simulation.multiplications.items()}
        weights = {
            (fqn, name): job.simulation.weight_bytes(fqn, None if name == FLOAT else job.choices[name])
            for fqn in tables.layers
            for name in tables.choices
            if (fqn, name) not in tables.refused
        }
        tables = replace(
            tables,
            times=times_of(tables.layers, wholes, tables.neighbours, work, rate),
            sizes=sizes_of(weights, measured[names[FLOAT]][1] or sum(weights[fqn, FLOAT] for fqn in tables.layers)),
            noise=noise_by_layer(job.simulation, job.choices, tables.refused, self._subject.executor, self._progress),
        )
        return TargetState(job.label, tables)

    def _take(
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
        predicted: SearchCandidate | None = None,
    ) -> None:
        """Note what was measured of a mixture, after scoring it where that is not known."""
        self._simulate(at, mixture)
        metric, spread = (None, None) if known is None else (known.score, known.spread)
        if scored and metric is None:
            is_reference = all(each == FLOAT for each in mixture) and not self._scale.is_sqnr
            if is_reference:
                metric = self._scale.base
            elif compiled is not None:
                metric, spread = self._scoring.score(name, compiled)
        state, arguments = self.states[at], self._arguments.of(at, mixture)
        if compiled is not None and (known is None or known.score != metric):
            self._remembered.note(self._jobs[at].deployment, arguments, compiled.report, ms, size, metric, spread)
        candidate = dataclasses.replace(
            predicted if predicted is not None else SearchCandidate(name, "", {}),
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
        )
        self.states[at] = state.with_measured(mixture, candidate, self._scale)

    def _measure(self, at: int, mixture: Mixture) -> None:
        self._mixtures += 1
        name = self._name(at, f"mixture {self._mixtures}")
        predicted = self.states[at].predicted(mixture, name, self._scale)
        known = self._found(at, mixture)
        if known is not None and known.score is not None:
            self._take(at, mixture, name, None, known.p50_ms, known.size_bytes, known, predicted=predicted)
            return
        try:
            real, compiled = self._compile(at, mixture)
        except Cancelled:
            raise
        except PrepbenchError as error:  # also where the target would quantize none of these layers beside the others
            self.states[at] = self.states[at].with_failed(mixture, str(error))
            return
        if real != mixture:
            self.states[at] = self.states[at].with_failed(mixture, "the target leaves some of its layers in float")
        if real not in self.states[at].measured:
            [(ms, size)] = self._timing.measured({name: compiled}).values()
            self._take(at, real, name, compiled, ms, size, predicted=predicted)

    def _found(self, at: int, mixture: Mixture) -> Result | None:
        """What the journal says about a mixture that the target takes as it is."""
        return self._remembered.find(self._jobs[at].deployment, self._arguments.of(at, mixture))

    def _simulate(self, at: int, mixture: Mixture) -> None:
        state = self.states[at]
        if mixture in state.noise:
            return
        job = self._jobs[at]
        settings: dict[str, QuantizationSettings | None] = {
            fqn: job.choices.get(name) for fqn, name in zip(job.simulation.layers, mixture, strict=True)
        }
        self.states[at] = state.with_noise(mixture, noise_of(job.simulation.score(settings, self._progress)))

    def _proposal(self, at: int) -> Mixture | None:
        """The mixture that is predicted to be the best within the budget, among those that were not tried."""
        for _ in range(_REFINED):
            new = [one for one in self.states[at].solved(self._budget, self._scale) if one not in self.states[at].noise]
            if not new:
                break
            for mixture in new:
                self._simulate(at, mixture)
        state = self.states[at]
        untried = [one for one in state.noise if one not in state.measured and one not in state.failed]
        fitting = [one for one in untried if is_within(self._predicted(at, one), self._budget, self._scale)]
        value: Callable[[Mixture], float] = lambda one: self._predicted(at, one).value(self._budget.minimize)  # noqa: E731
        return min(fitting, key=value, default=None)

    def _nearest(self, at: int) -> Mixture | None:
        """What comes nearest to the budget, where it was not measured yet."""
        state = self.states[at]
        found = state.nearest(self._budget, self._scale)
        return None if found is None or found in state.tried else found

    def _predicted(self, at: int, mixture: Mixture) -> SearchCandidate:
        return self.states[at].predicted(mixture, "", self._scale)

    def _best(self) -> SearchCandidate | None:
        """The best that was measured within the budget."""
        measured = [each for state in self.states for each in state.measured.values() if each.measured]
        fitting = [each for each in measured if is_within(each, self._budget, self._scale)]
        return min(fitting, key=lambda each: each.value(self._budget.minimize), default=None)


def _empty_tables(job: TargetJob) -> Tables:
    """What is known of a target before anything is measured."""
    simulation, choices = job.simulation, job.choices
    refused = {
        (fqn, name): why
        for fqn in simulation.layers
        for name, settings in choices.items()
        if (why := simulation.refusal(fqn, settings))
    }
    groups = {
        group
        for name, settings in choices.items()
        for group in simulation.groups({f: settings for f in simulation.layers if (f, name) not in refused})
    }
    known = set(simulation.layers)
    types = {name: _type_of(settings) for name, settings in choices.items()}
    return Tables(
        layers=simulation.layers,
        choices=(FLOAT, *choices),
        types={FLOAT: FLOAT, **types},
        refused=refused,
        groups=tuple(sorted(groups, key=sorted)),
        neighbours=tuple(
            Neighbours(one, other, size) for one, other, size in simulation.neighbours if {one, other} <= known
        ),
        times=Corrected({}),
        sizes=Corrected({}),
        noise=Corrected({}),
        curve=DropCurve.through([(0.0, 0.0)]),
    )


def _type_of(settings: QuantizationSettings) -> str:
    """What a layer computes in: its activations are converted to that."""
    return FLOAT if settings.prefer_weights_only_quantization else f"int{settings.activations_num_bits}"
