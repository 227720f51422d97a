"""The recovery training of a bench: its data and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from prepbench.adapt.recover import SCORED_ON_TRAINED
from prepbench.bench.recovering import Trained, TrainingData
from prepbench.bench.recovery_settings import RecoverySettings
from prepbench.bench.recovery_summary import RecoverySummary
from prepbench.bench.runs import Runs
from prepbench.bench.state import BenchState
from prepbench.bench.training_curve import Watch
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.measure.generation import Generation
from prepbench.measure.scores import metric_name


class TrainingBack(Runs):
    """The training of a bench; see :class:`prepbench.Bench`."""

    tracing_inputs: list[Sample]
    calibration_inputs: list[Sample]
    data: list[Any] | Generation | None
    metric: Callable[[Any, Any], Any] | None

    def __init__(self, model: nn.Module, axes: DynamicAxes, *, calibrated: bool) -> None:
        self.training_data: Iterable[Any] | None = None
        self.loss: Callable[[Any, Any], Any] | None = None
        self.trained: Trained | None = None
        self._watch = Watch()
        super().__init__(model, axes, calibrated=calibrated)

    def stop_training(self) -> None:
        """End the running training early: its best weights are compiled and compared."""
        self._watch.stop()

    def recovery_summary(self) -> RecoverySummary:
        """Return the training between preparing and compiling as front ends show it."""
        settings, training = self.state.recovery or RecoverySettings(), self._training_data()
        name = "" if training.metric is None else metric_name(training.metric)
        labelled = training.loss is not None
        source = "the training data" if self.training_data is not None else "the calibration inputs"
        if self.training_data is None and not self.calibration_inputs:
            source = "the tracing inputs"
        said = f"Trains on {source}, {'with labels' if labelled else 'without labels'}. {SCORED_ON_TRAINED}."
        return RecoverySummary(
            unavailable=self._not_trainable(self.state),
            on=self.state.recovery is not None,
            said=said,
            labelled=labelled,
            metric=name,
            steps=settings.steps,
            distill=settings.distill,
            by_metric=settings.by_metric,
            learning_rate=settings.learning_rate,
        )

    # -- inside --------------------------------------------------------------------------------------------------------

    def _keep(self, trained: Trained) -> None:
        self.trained = trained

    def _recovered(self) -> str:
        found = None if self.trained is None else self.trained.recovery
        return "" if found is None else found.summary

    def _training_done(self) -> str:
        """Return how a training with the current settings ended early; "" where none did."""
        found = None if self.trained is None else self.trained.recovery
        if self.trained is None or found is None or self.trained.settings != self.state.recovery:
            return ""
        done, steps = len(found.losses), self.trained.settings.steps
        if done == steps:
            return ""
        return f"ended here after {done} of {steps} steps ({found.stopped}), with the weights after {found.best_step}"

    def _training_data(self) -> TrainingData:
        """Return the training data, or else the samples, on which the model learns its float outputs."""
        if self.training_data is None:
            return TrainingData(self.calibration_inputs or self.tracing_inputs)
        metric = None if isinstance(self.data, Generation) or self.loss is None else self.metric
        return TrainingData(self.training_data, self.loss, metric)

    def _check_trainable(self, state: BenchState, settings: RecoverySettings) -> None:
        why = self._not_trainable(state)
        if why:
            raise SettingsError(why)
        self._training_data().check(settings)

    def _not_trainable(self, state: BenchState) -> str:
        """Return why these choices cannot be trained; "" where they can."""
        explained = self.layer_rules.explained(state.quantization, state.rules)
        if state.pruning is None and all(layer.settings is None for layer in explained):
            return "Nothing is quantized or pruned, so there is nothing to bring back. Choose what is, in Precision."
        if not state.fullgraph:
            return "Training needs the model as one graph: let no lines run in PyTorch, and keep no leaf modules."
        return ""
