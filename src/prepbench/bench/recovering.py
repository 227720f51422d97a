"""Recovery training on the bench: prepare the model, train it for some steps, then compile it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from prepbench.adapt.recover import recover
from prepbench.adapt.recovery import Recovery
from prepbench.adapt.trainable_model import TrainableModel
from prepbench.bench.recovery_settings import RecoverySettings
from prepbench.bench.training_curve import Watch
from prepbench.compile import CompiledModel, compile_model
from prepbench.compile.prepare_training import trainable
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback
from prepbench.search.scoring import is_higher_better


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
            if not is_higher_better(self.metric, None):
                found["higher_is_better"] = False
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


def train_and_compile(
    model: nn.Module,
    data: TrainingData,
    settings: RecoverySettings,
    given: Mapping[str, Any],
    watch: Watch,
    kept: Callable[[Trained], None],
    progress: ProgressCallback,
) -> CompiledModel:
    """Prepare a model, train it for some steps, and compile it.

    Args:
        model: in float; it is not changed.
        data: the training data.
        settings: of the training.
        given: the arguments of :func:`prepbench.trainable`.
        watch: follows the training.
        kept: called with the model before the training, and with the outcome.
        progress: receives each step.

    Raises:
        PrepbenchError: preparing, training or compiling failed.
    """
    arguments = data.arguments(settings)
    prepared = trainable(model, **given, progress=progress)
    kept(Trained(prepared, settings))
    watch.begin(settings, arguments.get("metric"))
    teacher = model if settings.distill else None
    try:
        found = recover(
            prepared, data.data, data.loss, teacher=teacher, **arguments, on_step=watch.step, progress=progress
        )
    except BaseException as error:
        watch.end(None, error)
        raise
    watch.end(found)
    kept(Trained(prepared, settings, found))
    compiled: CompiledModel = compile_model(prepared, progress=progress)
    return compiled
