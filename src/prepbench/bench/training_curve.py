"""The curve of a running or finished training."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from prepbench.adapt.recovery import Recovery
from prepbench.bench.state import RecoverySettings
from prepbench.measure.scores import metric_name

_POINTS = 400  # of the loss that are kept; where there are more, neighbours are averaged
_PAUSE = 0.25  # seconds between two drawings of the curve


@dataclass(frozen=True)
class TrainingCurve:
    """A running or finished training.

    Attributes:
        total: how many steps there are at most; 0 before the first training.
        step: how many are done.
        losses: the loss, every :attr:`every` steps the mean of these.
        every: how many steps one loss stands for.
        metric: the name of the score.
        scored: after how many steps each score was taken.
        scores: the score in evaluation mode.
        best: the step after which the model had its best weights; -1 before the first score.
        said: how it ended, in a sentence; "" during the training.
    """

    total: int = 0
    step: int = 0
    losses: tuple[float, ...] = ()
    every: int = 1
    metric: str = ""
    scored: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    best: int = -1
    said: str = ""


NO_CURVE = TrainingCurve()


class Watch:
    """Follows a training: draws the curve, and ends the training early on request."""

    def __init__(self) -> None:
        self._tell: Callable[[TrainingCurve], None] = lambda curve: None
        self._losses: list[float] = []
        self._scores: dict[int, float] = {}
        self._told = 0.0
        self._stop = threading.Event()
        self.curve = TrainingCurve()

    def listen(self, tell: Callable[[TrainingCurve], None]) -> None:
        """Call ``tell`` with each curve."""
        self._tell = tell

    def begin(self, settings: RecoverySettings, metric: Any) -> None:
        """Begin a training."""
        self._losses, self._scores, self._told = [], {}, 0.0
        self._stop.clear()
        name = "loss in evaluation" if metric is None else metric_name(metric)
        self._show(TrainingCurve(total=settings.steps, metric=name))

    def stop(self) -> None:
        """End the running training early."""
        self._stop.set()

    def step(self, step: int, loss: float | None, score: float | None) -> None:
        """Record a finished step or a new score.

        Raises:
            KeyboardInterrupt: a stop was requested, which ends the training with its best weights.
        """
        if loss is not None:
            self._losses.append(loss)
        if score is not None:
            self._scores[step] = score
        now = time.monotonic()
        if now - self._told >= _PAUSE:
            self._told = now
            self._show(self._now())
        if self._stop.is_set() and self._scores:
            raise KeyboardInterrupt

    def end(self, found: Recovery | None, error: BaseException | None = None) -> None:
        """End the curve with the result or an error."""
        if found is not None:
            self._scores = dict(found.scores)  # also what was scored after it was stopped
        last = self._now()
        if found is not None:
            self._show(replace(last, best=found.best_step, said=found.summary[:1].upper() + found.summary[1:] + "."))
        else:
            self._show(replace(last, said=f"It did not end: {error}" if error is not None else "It did not end."))

    def _now(self) -> TrainingCurve:
        every = -(-len(self._losses) // _POINTS) or 1
        parts = [self._losses[i : i + every] for i in range(0, len(self._losses), every)]
        means = tuple(sum(part) / len(part) for part in parts)
        scored = tuple(step for step in sorted(self._scores) if math.isfinite(self._scores[step]))
        scores = tuple(self._scores[step] for step in scored)
        return replace(self.curve, step=len(self._losses), losses=means, every=every, scored=scored, scores=scores)

    def _show(self, curve: TrainingCurve) -> None:
        self.curve = curve
        self._tell(curve)
