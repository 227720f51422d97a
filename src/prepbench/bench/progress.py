"""Estimate the progress of a whole run, over its targets and stages, from the earlier duration of stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from prepbench.jobs import Progress

COMPILING = {
    "capture": 25.0,
    "insert observers": 8.0,
    "calibrate": 15.0,
    "measure": 20.0,
    "convert": 12.0,
    "lower": 15.0,
}
"""The stages of a compile in order, with the share of each where none was timed yet."""
COMPARING = {"accuracy": 4.0, "save": 4.0, "start": 6.0, "warm up": 2.0, "time": 10.0}
"""The stages of a comparison, which comes once after all compiles."""

MEASURING = {"capture": 20.0, "measure": 25.0, "measure layers": 45.0, "time layers": 10.0}
"""The stages of measuring single layers."""
SEARCHING = {
    "capture": 10.0,
    "calibrate": 4.0,
    "lower": 6.0,
    "time": 12.0,
    "score": 4.0,
    "noise of layers": 8.0,
    "front": 16.0,
    "search": 40.0,
}
"""The stages of a search; those of its compiles come again and again, and count once."""

RECOVERING = {
    **{stage: share for stage, share in COMPILING.items() if stage != "lower"},
    "recover": 300.0,
    "lower": COMPILING["lower"],
    **COMPARING,
}
"""The stages of a training, the compile behind it, and their comparison."""

_LINES = 200


class RunProgress:
    """Turns steps into a fraction of the whole, the remaining time, and a log.

    Args:
        targets: how many targets are compiled for, one after the other.
        seconds: how long stages took in earlier runs.
        clock: tells the time in seconds.
        stages: other stages than compiling and comparing, with the share of each.

    Example:
        >>> progress = RunProgress(1, clock=lambda: 0.0)
        >>> progress(Progress("time", 1, 1))
        >>> progress.fraction
        1.0
    """

    def __init__(
        self,
        targets: int,
        seconds: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
        stages: Mapping[str, float] | None = None,
    ) -> None:
        self._clock, self._began = clock, clock()
        weights = _weights(seconds or {}) if stages is None else stages
        each = COMPILING if stages is None else stages
        self._stages = [(index, stage) for index in range(targets) for stage in each]
        self._stages += [(targets, stage) for stage in COMPARING] if stages is None else []
        self._comparing = frozenset(COMPARING if stages is None else ())
        self._weights = [weights[stage] for _, stage in self._stages]
        self.target = 0
        self._compared = targets
        self.step = Progress("starting", 0, 0)
        self._stage_began, self._first_done = self._began, 0
        self.fraction = 0.0
        self.log: tuple[str, ...] = ()

    def begin(self, target: int, name: str) -> None:
        """Begin the compile for a target."""
        self.target = target
        self.note(name)

    def note(self, line: str) -> None:
        """Add a line to the log."""
        minutes, seconds = divmod(int(self.elapsed), 60)
        self.log = (*self.log, f"{minutes}:{seconds:02d}  {line}")[-_LINES:]

    def __call__(self, step: Progress) -> None:
        if step.stage != self.step.stage:
            self.note(f"{step.stage}: {step.message}" if step.message else step.stage)
        if step.stage != self.step.stage or step.total != self.step.total or step.done < self.step.done:
            self._stage_began, self._first_done = self._clock(), step.done
        self.step = step
        place = self._compared if step.stage in self._comparing else self.target
        if (place, step.stage) in self._stages:
            position = self._stages.index((place, step.stage))
            inside = min(step.done / step.total, 1.0) if step.total > 0 else 0.0
            done = sum(self._weights[:position]) + inside * self._weights[position]
            self.fraction = max(self.fraction, done / sum(self._weights))

    @property
    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._began

    @property
    def remaining(self) -> float:
        """Return the estimated remaining seconds; -1 while that would be a guess."""
        if self.fraction < 0.05 or self.elapsed < 1:
            return -1.0
        return max(self.elapsed * (1 - self.fraction) / self.fraction, self._rest_of_stage)

    @property
    def _rest_of_stage(self) -> float:
        """Return the remaining seconds of the current stage at its pace so far, which may be slower than its weight."""
        done, left = self.step.done - self._first_done, self.step.total - self.step.done
        return (self._clock() - self._stage_began) * left / done if done > 0 and left > 0 else 0.0


def _weights(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of each stage: its measured seconds, or else a usual share, scaled to them."""
    usual = {**COMPILING, **COMPARING}
    timed = {stage: seconds[stage] for stage in usual if stage in seconds}
    scale = sum(timed.values()) / sum(usual[stage] for stage in timed) if any(timed.values()) else 1.0
    return {stage: max(timed.get(stage, share * scale), 1e-3) for stage, share in usual.items()}
