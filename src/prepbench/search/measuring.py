"""Compiling mixtures for real, with what each takes: time in processes of their own, size on disk, and by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prepbench.compile import KeptStages, compile_model
from prepbench.compile.compiled import CompiledModel
from prepbench.errors import TargetError
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.artifacts import Artifact, save_candidate
from prepbench.measure.latency import Latency, measure_latency
from prepbench.measure.profile import profile
from prepbench.measure.profile_result import Profile
from prepbench.measure.rates import percentile, speedup

_PROFILED = 20


@dataclass(frozen=True)
class Subject:
    """The model that is searched, and how it is compiled.

    Attributes:
        model: the model.
        calibration: samples from which ranges are learned.
        others: further arguments of ``compile_model``, such as dynamic axes.
        kept: what compiles have in common.
        timed: the call that is timed.
    """

    model: Callable[..., Any]
    calibration: Sequence[Sample]
    others: Mapping[str, Any]
    kept: KeptStages
    timed: Sample

    def compiled(self, arguments: Mapping[str, Any], progress: ProgressCallback) -> CompiledModel:
        """The model with these settings."""
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
        """Where its time goes; None where the target has no profiler."""
        try:
            return profile(compiled, [self.timed], rounds=_PROFILED)
        except TargetError:
            return None


@dataclass
class Timing:
    """Times candidates in batches that can be compared with each other: the first candidate of all is in each batch.

    Attributes:
        sample: the call that is timed.
        folder: a temporary folder for what is saved.
        rounds: of a batch.
        timeout: seconds to wait for each answer of a timing process.
        progress: receives each step.
    """

    sample: Sample
    folder: Path
    rounds: int
    timeout: float | None
    progress: ProgressCallback
    busy_cores: float = 0.0
    _batches: int = 0
    _first: tuple[str, CompiledModel, Artifact] | None = None
    _base_ms: float = field(default=0.0)

    def measured(self, candidates: Mapping[str, CompiledModel]) -> dict[str, tuple[float | None, int | None]]:
        """Milliseconds of a call and bytes on disk by name, all timed in one run of interleaved rounds.

        Raises:
            LatencyError: a timing process failed.
        """
        place = self.folder / str(self._batches)
        self._batches += 1
        place.mkdir()
        artifacts = {}
        for position, (name, compiled) in enumerate(candidates.items()):
            self.progress(Progress("save", position, len(candidates), name))
            artifacts[name] = save_candidate(compiled, [self.sample], place / f"model{position}", self.progress)
        if self._first is None:
            name = next(iter(candidates))
            self._first = name, candidates[name], artifacts[name]
        name, compiled, artifact = self._first
        found = measure_latency(
            {name: compiled, **candidates},
            {name: artifact, **artifacts},
            self.sample,
            place,
            rounds=self.rounds,
            timeout=self.timeout,
            progress=self.progress,
        )
        self.busy_cores = max(self.busy_cores, *(each.busy_cores for each in found.values()))
        self._base_ms = self._base_ms or (percentile(found[name].times_ms, 50) or 0.0)
        return {each: (self._ms(found[name], found[each]), artifacts[each].size_bytes) for each in candidates}

    def _ms(self, first: Latency, other: Latency) -> float | None:
        """As a multiple of the first candidate's time in the same rounds, so that a machine that slows cancels out."""
        faster = speedup(first.times_ms, other.times_ms, self.rounds)
        return None if faster is None else self._base_ms / faster
