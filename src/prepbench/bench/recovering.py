"""Recovery training on the bench: its data, what it needs and came to, and the compile of what was trained."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from prepbench.adapt.recover import Recovery, recover, scored_on_trained
from prepbench.adapt.trainable_model import TrainableModel
from prepbench.bench.cards import WHOLE_AGAIN, CardButton
from prepbench.bench.choices import Choices
from prepbench.bench.inputs import Inputs
from prepbench.bench.state import BenchState, RecoverySettings
from prepbench.bench.summary import RecoverySummary
from prepbench.compile import compile_model
from prepbench.compile.prepare_training import trainable
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback
from prepbench.measure.generation import Generation
from prepbench.package import CompiledModel
from prepbench.running.metric_scores import metric_name

_NOTHING_CHANGED = "Nothing is quantized or pruned, so there is nothing to bring back. Choose what is, in Precision."
_NOT_WHOLE = "Training needs the model as one graph: keep nothing in PyTorch."


@dataclass(frozen=True)
class TrainingData:
    """The training data of a bench.

    Attributes:
        data: pairs of inputs and targets where there is a loss, else inputs.
        loss: ``loss(output, target)``; None without targets.
        metric: of the bench, where pairs can be scored by it.
    """

    data: Iterable[Any]
    loss: Callable[[Any, Any], Any] | None = None
    metric: Callable[[Any, Any], Any] | None = None

    def check(self, settings: RecoverySettings) -> None:
        """Raise ``SettingsError`` where there is nothing to learn from."""
        if self.loss is None and not settings.distill:
            raise SettingsError(
                "There are no labels to learn from. Make the bench with training_data=[(input, target), ...] and "
                "loss=torch.nn.functional.cross_entropy, or learn from the float model."
            )

    def arguments(self, settings: RecoverySettings) -> dict[str, Any]:
        """Return further arguments of :func:`prepbench.recover` for these settings."""
        found: dict[str, Any] = {"steps": settings.steps, "learning_rate": settings.learning_rate}
        if self.loss is not None and self.metric is not None and settings.by_metric:
            found["metric"] = self.metric
        return found


@dataclass
class Trained:
    """The outcome of a training.

    Attributes:
        prepared: the model with its best weights, also where the training was cancelled.
        settings: of the training.
        recovery: the result of the training; None if it did not end.
    """

    prepared: TrainableModel
    settings: RecoverySettings
    recovery: Recovery | None = None


class Training:
    """The training of a bench between preparing and compiling; see :class:`prepbench.Bench`.

    Args:
        inputs: of the bench.
        choices: the current choices.

    Attributes:
        trained: the model of the newest training with its best weights, even if it was cancelled, and its result; None
            before the first.
        watch: follows the training.
    """

    def __init__(self, inputs: Inputs, choices: Choices) -> None:
        self._inputs, self._choices = inputs, choices
        self.trained: Trained | None = None
        self.watch = Watch()

    def stop_training(self) -> None:
        """End the running training early: its best weights are compiled and compared."""
        self.watch.stop()

    def summary(self) -> RecoverySummary:
        """Return the training between preparing and compiling as front ends show it."""
        settings, training = self._choices.state.recovery or RecoverySettings(), self.data()
        name = "" if training.metric is None else metric_name(training.metric)
        labelled = training.loss is not None
        source = "the training data" if self._inputs.training_data is not None else "the calibration inputs"
        if self._inputs.training_data is None and not self._inputs.calibration_inputs:
            source = "the tracing inputs"
        said = f"Trains on {source}, {'with labels' if labelled else 'without labels'}. {scored_on_trained()}."
        why = self._not_trainable(self._choices.state)
        return RecoverySummary(
            unavailable=why,
            repairs=self._repairs(why),
            on=self._choices.state.recovery is not None,
            said=said,
            labelled=labelled,
            metric=name,
            steps=settings.steps,
            distill=settings.distill,
            by_metric=settings.by_metric,
            learning_rate=settings.learning_rate,
        )

    def recovered(self) -> str:
        """Return the result of the newest training in words; "" where none ended."""
        found = None if self.trained is None else self.trained.recovery
        return "" if found is None else found.summary

    def ended_early(self) -> str:
        """Return how a training with the current settings ended early; "" where none did."""
        found = None if self.trained is None else self.trained.recovery
        if self.trained is None or found is None or self.trained.settings != self._choices.state.recovery:
            return ""
        done, steps = len(found.losses), self.trained.settings.steps
        if done == steps:
            return ""
        return f"ended here after {done} of {steps} steps ({found.stopped}), with the weights after {found.best_step}"

    def data(self) -> TrainingData:
        """Return the training data, or else the samples, on which the model learns its float outputs."""
        if self._inputs.training_data is None:
            return TrainingData(self._inputs.calibration_inputs or self._inputs.tracing_inputs)
        metric = None if isinstance(self._inputs.data, Generation) or self._inputs.loss is None else self._inputs.metric
        return TrainingData(self._inputs.training_data, self._inputs.loss, metric)

    def check(self, state: BenchState, settings: RecoverySettings) -> None:
        """Raise ``SettingsError`` where these choices cannot be trained, or there is nothing to learn from."""
        why = self._not_trainable(state)
        if why:
            raise SettingsError(why)
        self.data().check(settings)

    def _not_trainable(self, state: BenchState) -> str:
        """Return why these choices cannot be trained; "" where they can."""
        explained = self._choices.layer_rules.explained(state.quantization, state.rules)
        if state.pruning is None and all(layer.settings is None for layer in explained):
            return _NOTHING_CHANGED
        if not state.fullgraph:
            return _NOT_WHOLE
        return ""

    def _repairs(self, why: str) -> tuple[CardButton, ...]:
        """Return what makes a training possible."""
        if why == _NOTHING_CHANGED and self._inputs.calibration_inputs and self._choices.layer_rules.layers:
            return (CardButton("Choose 8 bits for all layers", "eight_bits"),)
        return (WHOLE_AGAIN,) if why == _NOT_WHOLE else ()

    def compile(
        self, model: nn.Module, settings: RecoverySettings, given: Mapping[str, Any], progress: ProgressCallback
    ) -> CompiledModel:
        """Prepare a model, train it for some steps, and compile it.

        Args:
            model: in float; it is not changed.
            settings: of the training.
            given: the arguments of :func:`prepbench.trainable`.
            progress: receives each step.

        Raises:
            PrepbenchError: preparing, training or compiling failed.
        """
        data = self.data()
        arguments = data.arguments(settings)
        prepared = trainable(model, **given, progress=progress)
        self.trained = Trained(prepared, settings)
        self.watch.begin(settings, arguments.get("metric"))
        teacher = model if settings.distill else None
        try:
            found = recover(
                prepared, data.data, data.loss, teacher=teacher, **arguments, on_step=self.watch.step, progress=progress
            )
        except BaseException as error:
            self.watch.end(None, error)
            raise
        self.watch.end(found)
        self.trained = Trained(prepared, settings, found)
        compiled: CompiledModel = compile_model(prepared, progress=progress)
        return compiled


# The curve of a running or finished training.


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
        by_loss: whether the score is the loss, too, so that one axis serves both.
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
    by_loss: bool = False
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
        self._show(TrainingCurve(total=settings.steps, metric=name, by_loss=metric is None))

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
