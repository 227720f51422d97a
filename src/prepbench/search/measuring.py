"""Compile mixtures and measure them: time in separate processes, size on disk, and time by layer."""

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
from prepbench.search.tasks import timing_lock

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
