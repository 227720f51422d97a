"""The status of background work, as front ends show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prepbench.bench.cards import Card
from prepbench.bench.progress import COMPARING, RunProgress
from prepbench.bench.training_curve import NO_CURVE, TrainingCurve
from prepbench.bench.written import WrittenBy
from prepbench.jobs import CANCELLING, Progress

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
        message: the message of the last action.
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
    ) -> None:
        """Begin a run.

        Args:
            name: the display name, for the log where one run follows another.
            targets: the targets of its compiles, one after the other.
            seconds: how long stages took before.
            stages: other stages than compiling and comparing, with the share of each.
        """
        before = self.status
        self._run, self._targets = RunProgress(len(targets) or 1, seconds, stages=stages), tuple(targets)
        if before.running:  # one run follows another: what was said of that one stays
            self._run.log = before.log
            self._run.note(name)
            self._tell(replace(before, cancelling=False, stage="starting", fraction=0.0, log=self._run.log, writing=()))
        else:
            self._tell(RunStatus(running=True, stage="starting", training=before.training))

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
                stage=f"{run.step.stage} · {run.step.message}" if run.step.message else run.step.stage,
                done=run.step.done,
                total=run.step.total,
                fraction=round(run.fraction, 4),
                elapsed_s=round(run.elapsed, 1),
                remaining_s=round(run.remaining, 1),
                then=self._targets[run.target + 1 :] if run.step.stage not in COMPARING else (),
                log=run.log,
            )
        )

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
        ended = RunStatus(running=goes_on, log=self._run.log, elapsed_s=elapsed, message=message)
        self._tell(replace(ended, training=self.status.training))

    def _tell(self, status: RunStatus) -> None:
        self.status = status
        for listener in list(self._listeners):
            listener(status)
