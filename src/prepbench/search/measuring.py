"""Compile mixtures and measure them: time in separate processes, size on disk, time by layer, and costs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepbench.compile import KeptStages, compile_model
from prepbench.errors import TargetError
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.artifacts import Artifact, save_candidate
from prepbench.measure.latency import Latency, measure_latency, paired_ratio, percentile
from prepbench.measure.process import KeptWorkers
from prepbench.measure.profile import Profile, profile
from prepbench.package.compiled import CompiledModel
from prepbench.search.mixtures import FLOAT, Mixture
from prepbench.search.tables import (
    CONVERSION,
    CONVERTED_BYTE,
    REST,
    Corrected,
    Estimate,
    Measured,
    Neighbours,
    Part,
    Tables,
)
from prepbench.search.tasks import timing_lock
from prepbench.targets.kernel_times import CONVERSIONS

_PROFILED = 20
_EXACT = 0.01  # standard error of a time relative to another one, with which timing stops: see SAME in states


@dataclass(frozen=True)
class Subject:
    """The model of a search, and the arguments that all of its compiles share.

    Attributes:
        model: the model.
        calibration: samples from which ranges are learned.
        others: further arguments of ``compile_model``, such as dynamic axes.
        kept: the cache that compiles share.
        timed: the call that is timed.
        executor: where layers are simulated; None for this process.
    """

    model: Callable[..., Any]
    calibration: Sequence[Sample]
    others: Mapping[str, Any]
    kept: KeptStages
    timed: Sample
    executor: Any = None

    @property
    def given(self) -> Mapping[str, Any]:
        """The arguments that differ from their defaults."""
        return {name: value for name, value in self.others.items() if value is not None}

    def compiled(self, arguments: Mapping[str, Any], progress: ProgressCallback) -> CompiledModel:
        """Compile the model with these settings."""
        result = compile_model(
            self.model,
            calibration_inputs=list(self.calibration),
            reuse=self.kept,
            progress=progress,
            **self.others,
            **arguments,
        )
        assert isinstance(result, CompiledModel)
        return result

    def profiled(self, compiled: CompiledModel) -> Profile | None:
        """Profile a compiled model; None where the target has no profiler."""
        try:
            return profile(compiled, [self.timed], rounds=_PROFILED)
        except TargetError:
            return None


@dataclass
class Timing:
    """Times candidates in comparable batches: each batch also times the very first candidate.

    Attributes:
        sample: the call that is timed.
        folder: a temporary folder for saved candidates.
        rounds: of a batch, at most.
        timeout: seconds to wait for each answer of a timing process.
        progress: receives each step.
        kept: processes that stay from one batch to the next; None for new ones each time.
    """

    sample: Sample
    folder: Path
    rounds: int
    timeout: float | None
    progress: ProgressCallback
    kept: KeptWorkers | None = None
    busy_cores: float = 0.0
    _batches: int = 0
    _first: tuple[str, CompiledModel, Artifact] | None = None
    _base_ms: float = 0.0

    def prepare(self, count: int) -> None:
        """Start the processes that time candidates ahead of their use."""
        if self.kept is not None:
            self.kept.begin(count)

    def begin(self, name: str, compiled: CompiledModel, ms: float | None = None) -> None:
        """Set the candidate that all others are timed beside, and its time, if known."""
        artifact = save_candidate(compiled, [self.sample], self.folder / "first", self.progress)
        self._first, self._base_ms = (name, compiled, artifact), ms or 0.0

    def measured(self, candidates: Mapping[str, CompiledModel]) -> dict[str, tuple[float | None, int | None]]:
        """Return milliseconds of a call and bytes on disk by name, all timed in one run of interleaved rounds.

        Raises:
            LatencyError: a timing process failed.
        """
        assert self._first is not None, "begin() comes first"
        if not candidates:
            return {}
        first, compiled, artifact = self._first
        place = self.folder / str(self._batches)
        self._batches += 1
        place.mkdir()
        artifacts = {first: artifact}
        for position, (name, one) in enumerate(candidates.items()):
            if name != first:
                self.progress(Progress("save", position, len(candidates), name))
                artifacts[name] = save_candidate(one, [self.sample], place / f"model{position}", self.progress)
        with timing_lock(self.progress):
            found = measure_latency(
                {first: compiled, **candidates},
                artifacts,
                self.sample,
                place,
                rounds=self.rounds,
                timeout=self.timeout,
                progress=self.progress,
                exact=_EXACT,
                kept=self.kept,
            )
        self.busy_cores = max(self.busy_cores, *(each.busy_cores for each in found.values()))
        self._base_ms = self._base_ms or (percentile(found[first].times_ms, 50) or 0.0)
        return {name: (self._ms(found[first], found[name]), artifacts[name].size_bytes) for name in candidates}

    def _ms(self, first: Latency, other: Latency) -> float | None:
        """Return the time by its ratio to the first candidate in the same rounds, so that a slow machine cancels."""
        faster = paired_ratio(first.times_ms, other.times_ms, first.rounds or self.rounds)
        return None if faster is None else self._base_ms / faster


# Estimate the time and size of each (layer, choice) from profiles of models in which all layers take one choice.


_DOUBT = 0.15  # of a layer's time: kernels take other times beside other kernels
_LEAST_DOUBT = 0.003  # of the whole call
# converted, before any conversion was measured: rather too fast, because what looks slow would never be tried
_BYTES_PER_SECOND = 1e10
_SECONDS_OF_CONVERSION = 1e-6
_DOUBT_OF_CONVERSION = 1.5
_DOUBT_OF_SIZE = 0.03


@dataclass(frozen=True)
class UniformModel:
    """Seconds of a call, in its own process, and profile, if known, of a model in which all layers take one choice."""

    seconds: float
    profile: Profile | None


def times_of(
    layers: Sequence[str],
    uniform: Mapping[str, UniformModel],
    neighbours: Sequence[Neighbours],
    work: Mapping[str, float],
) -> tuple[Corrected, dict[Part, float]]:
    """Return the seconds of each (layer, choice), and how many of them lie outside the layer's own kernels.

    Time that belongs to no layer, such as activations and reordering, is spread over the layers by the bytes that they
    read, as far as it differs from float.

    Args:
        layers: FQNs.
        uniform: models whose layers all take one choice, by its name; :data:`FLOAT` is one of them.
        neighbours: layers with the bytes between them.
        work: multiplications by FQN, by which time is divided where there is no profile.
    """
    own = {name: _own_times(layers, whole, work) for name, whole in uniform.items()}
    rest = {name: whole.seconds - sum(own[name].values()) for name, whole in uniform.items()}
    bytes_of = dict.fromkeys(layers, 1.0)
    for each in neighbours:
        bytes_of[each.other] += each.bytes
    whole_bytes = sum(bytes_of.values())
    estimates: dict[Part, Estimate] = {REST: Estimate(rest[FLOAT], _DOUBT * rest[FLOAT])}
    beside: dict[Part, float] = {}
    for name, whole in uniform.items():
        for fqn in layers:
            spread = (rest[name] - rest[FLOAT]) * bytes_of[fqn] / whole_bytes
            seconds = max(own[name][fqn] + spread, 0.0)
            estimates[fqn, name] = Estimate(seconds, _DOUBT * seconds + _LEAST_DOUBT * whole.seconds)
            beside[fqn, name] = seconds - own[name][fqn]
    return Corrected(estimates | _conversions(neighbours)), beside


def profiled_times(tables: Tables, mixture: Mixture, whole: UniformModel) -> list[Measured]:
    """Return what the profile of a mixture measured: the time of all conversions together, and the time of each layer.

    A float layer between integer layers may use another kernel than in a model that is all float.
    """
    if whole.profile is None or whole.profile.total_ms <= 0:
        return []
    found = []
    own, counts = _own_times(tables.layers, whole, {}), tables.parts(mixture)
    for fqn, name in zip(tables.layers, mixture, strict=True):
        part, seconds = tables.part(fqn, name), own[fqn]
        if seconds > 0:  # else it is part of another layer's kernel
            value = seconds + tables.beside.get(part, 0.0)
            found.append(
                Measured({part: counts[part]}, max(value, 0.0), _DOUBT * seconds + _LEAST_DOUBT * whole.seconds)
            )
    conversions = {part: count for part, count in tables.time_parts(mixture).items() if is_conversion(part)}
    share = sum(row.share for row in whole.profile.rows if row.name == CONVERSIONS and not row.is_layer)
    if conversions and share > 0:
        seconds = share * whole.seconds
        found.append(Measured(conversions, seconds, _DOUBT * seconds + _LEAST_DOUBT * whole.seconds))
    return found


def is_conversion(part: Part) -> bool:
    """Return whether a part is the time of conversions between integers and floats."""
    return part in (CONVERSION, CONVERTED_BYTE) or isinstance(part, Neighbours)


def _own_times(layers: Sequence[str], whole: UniformModel, work: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each layer's own kernels; their sum is at most the time of the whole model."""
    if whole.profile is None or whole.profile.total_ms <= 0:
        total = sum(work.values()) or 1.0
        return {fqn: whole.seconds * work.get(fqn, 0.0) / total for fqn in layers}
    scale = whole.seconds / whole.profile.total_ms
    times = dict.fromkeys(layers, 0.0)
    for row in whole.profile.rows:
        layer = _layer_around(row.name, times) if row.is_layer else None
        if layer is not None:
            times[layer] += scale * row.ms
    return times


def _layer_around(name: str, layers: Mapping[str, float]) -> str | None:
    """Return the layer that a module is or lies in, by FQN."""
    while name not in layers:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return name


def _conversions(neighbours: Sequence[Neighbours]) -> dict[Part, Estimate]:
    rate, once = 1 / _BYTES_PER_SECOND, _SECONDS_OF_CONVERSION
    estimates: dict[Part, Estimate] = {
        CONVERSION: Estimate(once, once),
        CONVERTED_BYTE: Estimate(rate, _DOUBT_OF_CONVERSION * rate),
    }
    # the time that one conversion takes beyond the others: it may be part of a kernel beside it
    estimates.update({each: Estimate(0.0, once + _DOUBT_OF_CONVERSION * rate * each.bytes) for each in neighbours})
    return estimates


def sizes_of(weights: Mapping[tuple[str, str], float], whole: float) -> Corrected:
    """Return the bytes of each (layer, choice), by those of its weights and of the whole float model as it is saved."""
    rest = max(whole - sum(count for (_, name), count in weights.items() if name == FLOAT), 0)
    estimates: dict[Part, Estimate] = {REST: Estimate(rest, _DOUBT_OF_SIZE * whole)}
    for part, count in weights.items():
        estimates[part] = Estimate(count, _DOUBT_OF_SIZE * count)
    return Corrected(estimates)
