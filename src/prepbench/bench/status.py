"""The progress and status of background work, as front ends show it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prepbench.bench.cards import About, Card
from prepbench.bench.recovering import NO_CURVE, TrainingCurve
from prepbench.bench.written import WrittenBy
from prepbench.jobs import CANCELLING, STARTING, Progress, stage_words

COMPILING = {
    "capture": 1.5,
    "insert observers": 0.5,
    "calibrate": 1.0,
    "measure": 1.5,
    "convert": 1.0,
    "lower": 1.5,
}
"""The stages of a compile in order, with the share of each where none was timed yet: their seconds for a small model.
"""
COMPARING = {"accuracy": 1.0, "save": 1.0, "start": 7.0, "warm up": 3.0, "time": 15.0}
"""The stages of a comparison, which comes once after all compiles."""

MEASURING = {"capture": 20.0, "measure": 25.0, "measure layers": 45.0, "time layers": 10.0}
"""The stages of measuring single layers."""
SAMPLING = {"samples": 1.0}
"""The stage of comparing two runs sample by sample."""
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
_FIRST = 3.0  # seconds in which nothing is known of the rest
_MOST = 2.0  # times the current stage: a stage that is less than half of the rest tells nothing of it


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
        self._clock, self._began, self._has_history = clock, clock(), bool(seconds)
        weights = _weights(seconds or {}) if stages is None else stages
        each = COMPILING if stages is None else stages
        self._stages = [(index, stage) for index in range(targets) for stage in each]
        self._stages += [(targets, stage) for stage in COMPARING] if stages is None else []
        self._comparing = frozenset(COMPARING if stages is None else ())
        self._weights = [weights[stage] for _, stage in self._stages]
        self.target = 0
        self._compared = targets
        self.step = Progress(STARTING, 0, 0)
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
            self.note(stage_words(step))
        if step.stage != self.step.stage or step.total != self.step.total or step.done < self.step.done:
            self._stage_began, self._first_done = self._clock(), step.done
        self.step = step
        position = self._position
        if position is not None:
            inside = min(step.done / step.total, 1.0) if step.total > 0 else 0.0
            done = sum(self._weights[:position]) + inside * self._weights[position]
            self.fraction = max(self.fraction, done / sum(self._weights))

    @property
    def elapsed(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self._began

    @property
    def remaining(self) -> float:
        """Return the estimated remaining seconds; -1 while that would be a guess: at first, and where neither earlier
        runs nor the counter of a stage that is most of the rest tell.
        """
        if self.fraction == 1:
            return 0.0
        if self.fraction < 0.02 or self.elapsed < _FIRST:
            return -1.0
        if self._has_history:
            return max(self.elapsed * (1 - self.fraction) / self.fraction, self._rest_of_stage)
        rest = self._rest_of_stage
        return rest * self._rest_to_stage if rest > 0 and self._rest_to_stage <= _MOST else -1.0

    @property
    def _rest_to_stage(self) -> float:
        """Return how many times longer than the current stage it and all later ones take together, as expected."""
        position = self._position
        return math.inf if position is None else sum(self._weights[position:]) / self._weights[position]

    @property
    def _position(self) -> int | None:
        """Return the place of the current stage among all."""
        place = self._compared if self.step.stage in self._comparing else self.target
        found = (place, self.step.stage)
        return self._stages.index(found) if found in self._stages else None

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


TARGET = "target"
"""The stage that says which of several targets is next."""

_PAUSE = 0.1  # seconds between two messages about one stage
_NOTHING = Card()


@dataclass(frozen=True)
class RunStatus:
    """Whether something runs in the background, its progress, and the message of the last action.

    Attributes:
        running: whether it runs.
        cancelling: whether it was asked to stop.
        stage: the current stage.
        done: steps of the stage that are done.
        total: steps of the stage; 0 if that is not known.
        fraction: how much of the whole run is done, 0 to 1.
        elapsed_s: seconds since it began.
        remaining_s: seconds that are left; -1 while that would be a guess.
        then: the targets of this run that come next.
        log: the finished steps, with times.
        about: the action that runs, or that ran last.
        message: how the last action ended.
        writing: the generated texts of candidates, while they generate.
        training: the newest training, during and after it.
    """

    running: bool = False
    cancelling: bool = False
    stage: str = ""
    done: int = 0
    total: int = 0
    fraction: float = 0.0
    elapsed_s: float = 0.0
    remaining_s: float = -1.0
    then: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    about: About = ""
    message: Card = _NOTHING
    writing: tuple[WrittenBy, ...] = ()
    training: TrainingCurve = NO_CURVE


class StatusOfRuns:
    """Follows the runs of a bench and notifies listeners."""

    def __init__(self) -> None:
        self.status = RunStatus()
        self._run = RunProgress(1)
        self._targets: tuple[str, ...] = ()
        self._told = 0.0
        self._listeners: list[Callable[[RunStatus], None]] = []

    def listen(self, listener: Callable[[RunStatus], None]) -> Callable[[], None]:
        """Call ``listener`` with each status; returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def begin(
        self,
        name: str,
        targets: Sequence[str],
        seconds: Mapping[str, float],
        stages: Mapping[str, float] | None = None,
        about: About = "",
    ) -> None:
        """Begin a run.

        Args:
            name: the display name, for the log where one run follows another.
            targets: the targets of its compiles, one after the other.
            seconds: how long stages took before.
            stages: other stages than compiling and comparing, with the share of each.
            about: the action.
        """
        before = self.status
        self._run, self._targets = RunProgress(len(targets) or 1, seconds, stages=stages), tuple(targets)
        if before.running:  # one run follows another: what was said of that one stays
            self._run.log = before.log
            self._run.note(name)
            fresh = replace(
                before,
                cancelling=False,
                stage=stage_words(Progress(STARTING)),
                fraction=0.0,
                log=self._run.log,
                writing=(),
            )
            self._tell(replace(fresh, about=about))
        else:
            self._tell(
                RunStatus(running=True, stage=stage_words(Progress(STARTING)), about=about, training=before.training)
            )

    def step(self, step: Progress) -> None:
        """Record a step of the run."""
        run, before = self._run, self._run.step
        if step.stage == TARGET:
            run.begin(step.done, step.message)
        else:
            run(step)
        now = time.monotonic()
        if step.stage == before.stage and now - self._told < _PAUSE:
            return
        self._told = now
        self._tell(
            replace(
                self.status,
                cancelling=self.status.cancelling or step.stage == CANCELLING,
                stage=self._stage(),
                done=run.step.done,
                total=run.step.total,
                fraction=round(run.fraction, 4),
                elapsed_s=round(run.elapsed, 1),
                remaining_s=round(run.remaining, 1),
                then=self._targets[run.target + 1 :] if run.step.stage not in COMPARING else (),
                log=run.log,
            )
        )

    def _stage(self) -> str:
        """Return the stage in words; a build names its target, and which of several it is."""
        run, several = self._run, len(self._targets) > 1
        words = stage_words(run.step)
        if run.step.stage != "lower" or not self._targets:
            return words
        name = self._targets[min(run.target, len(self._targets) - 1)]
        turn = f", {run.target + 1} of {len(self._targets)}" if several else ""
        return f"{words} for {name}{turn}"

    def write(self, writing: tuple[WrittenBy, ...]) -> None:
        """Publish the generated text so far."""
        if self.status.running:
            self._tell(replace(self.status, writing=writing))

    def train(self, training: TrainingCurve) -> None:
        """Publish the progress or the end of a training."""
        self._tell(replace(self.status, training=training))

    def end(self, message: Card, *notes: str, goes_on: bool) -> None:
        """End the run.

        Args:
            message: the message to show.
            notes: lines for the log.
            goes_on: whether another one follows.
        """
        for note in notes:
            self._run.note(note)
        elapsed = round(self._run.elapsed, 3)
        about = self.status.about
        ended = RunStatus(running=goes_on, log=self._run.log, elapsed_s=elapsed, about=about, message=message)
        self._tell(replace(ended, training=self.status.training))

    def _tell(self, status: RunStatus) -> None:
        self.status = status
        for listener in list(self._listeners):
            listener(status)
