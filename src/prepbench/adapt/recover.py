"""``recover``: a short training that recovers the accuracy lost by quantization or pruning."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from prepbench._display import view
from prepbench._torch_compat import pytree
from prepbench.adapt.trainable_model import ActivationQuantizer, TrainableModel, WeightQuantizer
from prepbench.checks import check_count, check_function, check_progress, check_switch, check_type, described
from prepbench.errors import InputError, MetricError, SettingsError, TrainingError
from prepbench.inputs import Sample, batch_size
from prepbench.jobs import Progress, ProgressCallback, check_cancelled, report_nothing
from prepbench.objects.copy import Twin
from prepbench.objects.digest import state_digest
from prepbench.objects.flatten import register_nodes
from prepbench.progress_bar import shows_progress
from prepbench.running.given_samples import Reader, is_value
from prepbench.running.metric_facts import is_higher_better
from prepbench.running.metric_scores import explained, metric_name, score_of, score_on_all
from prepbench.running.transforms import with_transform

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects


Loss = Callable[[Any, Any], torch.Tensor]

_VALIDATION = 16
_LOSS = "loss in evaluation"

_CHECKS = 12
# checks without a better score, after which it ends
_PATIENCE = 8
_LEARNING = (ActivationQuantizer, WeightQuantizer)


@shows_progress("recover")
def recover(
    prepared: TrainableModel,
    data: Iterable[Any],
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    *,
    steps: int = 300,
    teacher: nn.Module | None = None,
    metric: Callable[[Any, Any], Any] | None = None,
    higher_is_better: bool | None = None,
    validation: Iterable[Any] | None = None,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None,
    learning_rate: float = 1e-3,
    on_step: Callable[[int, float | None, float | None], None] | None = None,
    progress: ProgressCallback = report_nothing,
    transform: Callable[[Any], Any] | None = None,
) -> Recovery:
    """Train a prepared model for some steps, in place, and leave it with the best weights found.

    Without a ``loss`` it learns the outputs of the float model (distillation), which needs no targets. Ctrl-C ends
    it as if the steps were over.

    Args:
        prepared: from :func:`prepbench.trainable`; in evaluation mode afterwards.
        data: batches: ``(input, target)`` pairs where a loss or a metric is given, else inputs. What can be read again
            (a list, a ``DataLoader``) is read as often as the steps need, a generator once.
        loss: ``loss(output, target)`` returns the number to minimize. With a ``teacher`` the distance to its outputs is
            added.
        steps: how many batches, at most.
        teacher: a float model whose outputs are to be learned. The model that ``prepared`` was made of when left out
            and there is no ``loss``.
        metric: ``metric(output, target)``, e.g. ``pb.metrics.accuracy``, taken over the validation batches as
            :func:`prepbench.compare` does; decides which weights are best, and the loss where it is equal. Without one,
            the loss in evaluation mode does.
        higher_is_better: False where less is better; by default as known for the metric, False for ``loss`` itself and
            for a loss by its name, else True.
        validation: batches like those of ``data`` that the score is taken on; the first 16 of ``data`` when left out.
        optimizer: makes an optimizer of the parameters; AdamW when left out.
        learning_rate: of AdamW at its highest; it rises over the first steps and falls to 0 along a cosine.
        on_step: ``on_step(steps, loss, score)`` is called after each step with its loss, and with the score where one
            was taken, else None; also before the first step, when there is no loss. May raise ``KeyboardInterrupt`` to
            end as if the steps were over; a score that is taken then is only in what is returned.
        progress: receives each step; may raise :class:`prepbench.Cancelled` to stop, after which the model holds the
            best weights so far.
        transform: applied to each sample of data and validation first, as for ``compile_model``.

    Returns:
        The loss of each step, the scores, and the step of the model's final weights. Its notes say whether scores
        are of the training data, and whether the weights of the model or the teacher changed meanwhile.

    Raises:
        InputError: data is empty or of the wrong form; ``prepared`` is no such model.
        SettingsError: no steps, no trained parameters, or neither a loss nor a teacher.
        TrainingError: the loss is NaN or infinite; the model holds the best weights so far.
        MetricError: the metric returned no finite number.

    Example:
        >>> prepared = pb.trainable(
        ...     net,
        ...     calibration_inputs=samples,
        ...     deployment_settings=pb.OnnxRuntimeDeployment(),
        ...     quantization_settings=pb.QuantizationSettings(),
        ... )
        >>> len(recover(prepared, samples, steps=3).losses)
        3
    """
    data, validation = (
        with_transform(each, transform, name) for name, each in (("data", data), ("validation", validation))
    )
    _check(
        prepared, data, validation, loss, steps, teacher, metric, higher_is_better, optimizer, learning_rate, progress
    )
    check_function("on_step", on_step, "on_step(steps, loss, score)", optional=True)
    goal = _Goal.of(prepared, loss, teacher, metric, higher_is_better)
    learned = prepared.parts.original if goal.teacher is not None and teacher is None else teacher
    unchanged = Unchanged(prepared, learned)
    batches = Batches(prepared, data, goal.takes_targets)
    checked = batches.first(_VALIDATION if validation is None else 1)
    if validation is not None:
        checked = list(read_batches(prepared, validation, goal.takes_targets, "validation", is_kept=True))
    if not checked:
        raise InputError("validation is empty: give at least one batch, or leave it out.")
    found = _Training(prepared, goal, steps, progress, on_step).run(batches, checked, optimizer, learning_rate)
    notes = [scored_on_trained(len(checked))] if validation is None else []
    return replace(found, notes=(*notes, *unchanged.notes()))


def scored_on_trained(count: int | None = None) -> str:
    """Return the note on scores without batches held out; ``count`` is how many they are of, None before it is known.

    Example:
        >>> scored_on_trained(3)
        'Scores are of 3 batches, which it trains on as well'
    """
    said = f"the first batches, {_VALIDATION} at most" if count is None else f"{count} batches"
    if count is not None and (count == 1 or count >= _VALIDATION):
        said = "one batch" if count == 1 else f"the first {count} batches"
    return f"Scores are of {said}, which it trains on as well"


@dataclass(frozen=True)
class _Goal:
    """The objective of the training, and the score that selects the best weights."""

    loss: Loss | None
    teacher: nn.Module | None
    metric: Callable[[Any, Any], Any] | None
    higher_is_better: bool

    @classmethod
    def of(cls, prepared: TrainableModel, loss: Any, teacher: Any, metric: Any, higher_is_better: bool | None) -> _Goal:
        if loss is None and teacher is None:
            teacher = prepared.parts.original
            if teacher is None or not prepared.parts.is_pretrained:
                raise SettingsError(
                    "There is nothing to learn from: the model is not pretrained, so its outputs are no useful target. "
                    "Give loss=..., such as torch.nn.functional.cross_entropy, and pairs of inputs and targets as data."
                )
        # a twin, because the mode of the user's model is left as it is
        teacher = None if teacher is None else Twin(teacher).model.eval()
        higher = False if higher_is_better is None and metric is loss else higher_is_better
        return cls(loss, teacher, metric, metric is not None and is_higher_better(metric, higher))

    @property
    def takes_targets(self) -> bool:
        return self.loss is not None or self.metric is not None

    @property
    def name(self) -> str:
        return _LOSS if self.metric is None else metric_name(self.metric)

    def value(self, batch: Batch, output: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        parts = [] if self.loss is None else [_number(self.loss(output, batch.target), batch)]
        if self.teacher is not None:
            with torch.no_grad():
                wanted = batch.call(self.teacher)
            parts.append(distance(output, wanted))
        return torch.stack([part.reshape(()) for part in parts]).sum()

    @torch.no_grad()
    def judged(self, model: nn.Module, batches: Sequence[Batch]) -> tuple[float, float]:
        """Return the score of a model over all batches, and its mean loss, which is the score without a metric."""
        score, losses = None if self.metric is None else score_of(self.metric), []
        for batch in batches:
            output = batch.call(model)
            losses.append(float(self.value(batch, output)))
            if score is None:
                continue
            try:
                score.add(output, batch.target, batch_size(batch.sample, batch.target))
            except Exception as error:  # a metric may raise anything
                raise MetricError(
                    f"metric {self.name!r} gave no number for validation batch {batch.sample.index}: "
                    f"{explained(error)}. A metric takes (output, target) of one batch and returns one finite number."
                ) from error
        loss = math.fsum(losses) / len(losses)
        return loss if score is None else score_on_all(score, self.name, "the validation batches"), loss

    def is_better(self, one: float, other: float) -> bool:
        return is_better(one, other, self.higher_is_better)


def is_better(one: float, other: float, higher_is_better: bool) -> bool:
    """Return whether a score is better than another one; a loss of NaN is the worst."""
    return one > other if higher_is_better else one < other or (math.isnan(other) and not math.isnan(one))


def _number(loss: Any, batch: Batch) -> torch.Tensor:
    """Return a loss as one number, or raise."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise InputError(
            f"loss gave {described(loss)} for data[{batch.sample.index}]. It must be a tensor of one number, such as "
            "torch.nn.functional.cross_entropy gives."
        )
    return loss


def distance(output: Any, wanted: Any) -> torch.Tensor:
    """Return the distance of outputs from the wanted ones: the noise in each floating-point tensor relative to its
    signal, summed.

    Raises:
        InputError: the teacher's outputs have another structure or other shapes.
    """
    register_nodes((output, wanted))
    ours, theirs = (
        [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        for value in (output, wanted)
    )
    if [leaf.shape for leaf in ours] != [leaf.shape for leaf in theirs] or not ours:
        raise InputError(
            f"The teacher gives tensors of shapes {[tuple(leaf.shape) for leaf in theirs]}, the prepared model of "
            f"{[tuple(leaf.shape) for leaf in ours]}. Give a teacher with the same outputs, or a loss."
        )
    parts = [
        (one.float() - other.float()).square().mean() / other.float().square().mean().clamp(min=1e-12)
        for one, other in zip(ours, theirs, strict=True)
    ]
    return torch.stack(parts).sum()


@dataclass
class _Training:
    """One training: its results so far, and its best weights."""

    model: TrainableModel
    goal: _Goal
    steps: int
    progress: ProgressCallback
    on_step: Callable[[int, float | None, float | None], None] | None = None
    losses: list[float] = field(default_factory=list)
    scores: dict[int, float] = field(default_factory=dict)
    best_step: int = 0
    stopped: str = "all steps done"
    _best: Any = None
    _worse: int = 0
    _least: float = math.inf

    def run(self, batches: Batches, checked: list[Batch], optimizer: Any, rate: float) -> Recovery:
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not trained:
            raise SettingsError("No parameter is trained: all have requires_grad=False. Set it for those to train.")
        begun = time.perf_counter()
        try:
            self._check(checked)
            self._tell()
            self._train(batches, checked, trained, optimizer, rate)
        except KeyboardInterrupt:
            if self._best is None:
                raise
            self.stopped = "interrupted"
            if len(self.losses) not in self.scores:
                with contextlib.suppress(KeyboardInterrupt):
                    self._check(checked)  # the weights trained since the last check may be the best
        finally:
            if self._best is not None:
                _put_back(self.model, self._best)
            self.model.eval()
        return Recovery(
            tuple(self.losses), dict(self.scores), self.goal.name, self.goal.higher_is_better, self.best_step,
            self.stopped, time.perf_counter() - begun, sum(parameter.numel() for parameter in trained),
        )  # fmt: skip

    def _train(
        self, batches: Batches, checked: list[Batch], trained: list[nn.Parameter], make: Any, rate: float
    ) -> None:
        optimizer = torch.optim.AdamW(trained, rate, weight_decay=0.0) if make is None else make(trained)
        schedule = None if make is not None else torch.optim.lr_scheduler.LambdaLR(optimizer, self._share)
        every = max(1, self.steps // _CHECKS)
        done = 0
        for batch in batches:
            check_cancelled("recover")
            self._step(batch, optimizer, done + 1)
            done += 1
            if schedule is not None:
                schedule.step()
            if done % every == 0 or done == self.steps:
                self._check(checked)
            self._tell()
            self.progress(Progress("recover", done, self.steps, f"loss {self.losses[-1]:.4g}"))
            if done == self.steps or self._worse >= _PATIENCE:
                break
        if self._worse >= _PATIENCE and done < self.steps:
            self.stopped = f"{self.goal.name} did not improve for {_PATIENCE} checks"
        elif done < self.steps:
            self.stopped = f"data ended after {done} of {self.steps} steps; give data that can be read again to go on"
            self._check(checked)

    def _step(self, batch: Batch, optimizer: torch.optim.Optimizer, number: int) -> None:
        self.model.train()
        loss = self.goal.value(batch, batch.call(self.model))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"The loss is {value} at step {number}, on data[{batch.sample.index}]. The model holds the best "
                f"weights so far, those after {self.best_step} steps. Look at that sample, or take a smaller "
                "learning_rate."
            )
        if not loss.requires_grad:
            raise InputError(
                "The loss does not depend on any parameter that is trained, so there is nothing to learn. Give a loss "
                "that is computed from the output without detach()."
            )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        self.losses.append(value)

    def _tell(self) -> None:
        if self.on_step is not None:
            step = len(self.losses)
            self.on_step(step, self.losses[-1] if step else None, self.scores.get(step))

    @torch.no_grad()
    def _check(self, checked: list[Batch]) -> None:
        """Score the current model, and keep it if it is the best so far."""
        self.model.eval()
        score, loss = self.goal.judged(self.model, checked)
        step = len(self.losses)
        self.scores[step] = score
        if self._best is None or self._is_better(score, loss):
            self._best, self.best_step, self._worse = _kept(self.model), step, 0
            self._least = loss if math.isfinite(loss) else math.inf
        else:
            self._worse += 1

    def _is_better(self, score: float, loss: float) -> bool:
        """Return whether it beats the best so far; scores on few samples are often equal, so the loss breaks ties."""
        best = self.scores[self.best_step]
        return self.goal.is_better(score, best) or (score == best and loss < self._least)

    def _share(self, step: int) -> float:
        """Return the current learning rate as a share of its peak."""
        rising = max(1, min(20, self.steps // 10))
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, self.steps - rising)))


def _kept(model: TrainableModel) -> Any:
    """Return everything that training changes."""
    tensors = {id(value): (value, value.detach().clone()) for value in (*model.parameters(), *model.buffers())}
    learning = {name: one for name, one in model.parts.quantizers.items() if isinstance(one, _LEARNING)}
    return tensors, {name: one.state() for name, one in learning.items()}


@torch.no_grad()
def _put_back(model: TrainableModel, kept: Any) -> None:
    tensors, ranges = kept
    for value, before in tensors.values():
        value.copy_(before)
    for name, state in ranges.items():
        one: Any = model.parts.quantizers[name]
        one.take(state)


def _check(
    prepared: Any, data: Any, validation: Any, loss: Any, steps: Any, teacher: Any, metric: Any, higher: Any,
    optimizer: Any, rate: Any, progress: Any,
) -> None:  # fmt: skip
    if not isinstance(prepared, TrainableModel):
        raise InputError(f"prepared must be a model of pb.trainable, got {described(prepared)}. Call that first.")
    for name, batches in (("data", data), *((("validation", validation),) if validation is not None else ())):
        is_one = is_value(batches) or isinstance(batches, Mapping | str | bytes | type)
        if is_one or not isinstance(batches, Iterable):
            raise InputError(
                f"{name} must be an iterable of batches, got {described(batches)}. Give a list or a DataLoader."
            )
    check_function("loss", loss, "loss(output, target)", optional=True)
    check_count("steps", steps, 1)
    check_type("teacher", teacher, nn.Module, "Give the model in float.", optional=True)
    check_function("metric", metric, "metric(output, target)", optional=True)
    if higher is not None:
        check_switch("higher_is_better", higher)
    check_function("optimizer", optimizer, "optimizer(parameters)", optional=True)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise SettingsError(f"learning_rate must be a number above 0, got {described(rate)}.")
    check_progress(progress)


# The training data.


@dataclass(frozen=True)
class Batch:
    """The inputs of a call, and the target of its output, if known."""

    sample: Sample
    target: Any

    def call(self, model: Callable[..., Any]) -> Any:
        """Call ``model`` with the inputs."""
        try:
            return self.sample.call(model)
        except InputError as error:
            if self.target is not None or len(self.sample.args) != 2:
                raise
            raise _misfit(error) from error


def read_batches(
    model: nn.Module,
    data: Iterable[Any],
    with_targets: bool,
    name: str,
    *,
    is_kept: bool = False,
    is_told: bool = True,
) -> Iterator[Batch]:
    """Yield the batches of ``data``, one after the other; errors call it ``name``.

    Args:
        model: the callee.
        data: batches in any form that :class:`Reader` reads.
        with_targets: whether each needs a target.
        name: the argument, for errors.
        is_kept: whether all are kept, so that data without an end must not be read on.
        is_told: whether to warn of what is left out or converted.
    """
    reader = Reader(model, name, source=data, with_targets=with_targets)
    for index, element in reader.elements(is_kept=is_kept):
        try:
            sample, target = reader.read(element, index)
        except InputError as error:
            is_pair = isinstance(element, tuple | list) and len(element) == 2
            if with_targets or not is_pair or not isinstance(error.__cause__, TypeError):
                raise
            raise _misfit(error) from error
        if is_told and index == 0:
            reader.tell(None)
        yield Batch(sample, target)
    if is_told:
        reader.tell(None)


def _misfit(error: InputError) -> InputError:
    """Return the error for a pair that does not fit the call."""
    return InputError(
        f"{error} Without a loss or a metric, data holds inputs of calls alone. If these are pairs (input, target), "
        "give loss= or metric=, or only the inputs."
    )


class Batches:
    """The batches of data; data that can be read again is repeated."""

    def __init__(self, model: nn.Module, data: Iterable[Any], with_targets: bool) -> None:
        self._model, self._data, self._with_targets = model, data, with_targets
        self._is_once = iter(data) is data
        self._ahead: list[Batch] = []
        self._source = self._new(is_told=True)

    def _new(self, *, is_told: bool = False) -> Iterator[Batch]:
        return read_batches(self._model, self._data, self._with_targets, "data", is_told=is_told)

    def first(self, count: int) -> list[Batch]:
        """Return the first batches, without consuming them."""
        while len(self._ahead) < count and (batch := next(self._source, None)) is not None:
            self._ahead.append(batch)
        if not self._ahead:
            raise InputError("data is empty: give at least one batch. A generator is read only once; make a new one.")
        return list(self._ahead)

    def __iter__(self) -> Iterator[Batch]:
        yield from self._ahead
        yield from self._source
        # data that is read up, as a loader of a stream, gives nothing when it is read again
        while not self._is_once and (batch := next(again := self._new(), None)) is not None:
            yield batch
            yield from again


# Detect whether a model's weights have changed.


def weights_of(model: nn.Module) -> bytes:
    """Return a digest of the values of a model's parameters and buffers."""
    return state_digest(dict(model.state_dict()), by_value=True).digest


class Unchanged:
    """The models that a training starts from (``teacher`` may be None), which must not be trained meanwhile."""

    def __init__(self, prepared: TrainableModel, teacher: nn.Module | None) -> None:
        self._original, self._prepared_from = prepared.parts.original, prepared.parts.prepared_from
        self._teacher = None if teacher is self._original else teacher
        self._learned = None if self._teacher is None else weights_of(self._teacher)
        self._learns_original = teacher is not None and teacher is self._original

    def notes(self) -> list[str]:
        """Return a warning for each model that has changed."""
        found = []
        if self._original is not None and self._prepared_from and weights_of(self._original) != self._prepared_from:
            learned = ", and learned the outputs of the new ones" if self._learns_original else ""
            found.append(
                f"The weights of the model have changed since pb.trainable: this started from the old ones{learned}. "
                "To start from the new ones, call pb.trainable again"
            )
        if self._teacher is not None and weights_of(self._teacher) != self._learned:
            found.append(
                "The weights of the teacher have changed during the training, so it learned the outputs of two models"
            )
        return found


# ``Recovery``: the result of a recovery training.


@dataclass(frozen=True)
class Recovery:
    """The result of :func:`prepbench.recover`.

    Attributes:
        losses: the loss of each step.
        scores: the score in evaluation mode after so many steps; of 0 steps, before any.
        metric: the name of the score.
        higher_is_better: whether larger scores are better.
        best_step: the step after which the model had its final weights.
        stopped: why it ended.
        seconds: how long it took.
        trained: how many numbers were trained.
        notes: remarks on the scores, such as the data that they are of; empty if there are none.

    Example:
        >>> recovery = Recovery((0.5, 0.2), {0: 0.5, 2: 0.2}, "loss", False, 2, "all steps are done", 1.0, 10)
        >>> recovery.before, recovery.after
        (0.5, 0.2)
    """

    losses: tuple[float, ...]
    scores: Mapping[int, float]
    metric: str
    higher_is_better: bool
    best_step: int
    stopped: str
    seconds: float
    trained: int
    notes: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """The score before training."""
        return self.scores[0]

    @property
    def after(self) -> float:
        """The score of the model's current weights."""
        return self.scores[self.best_step]

    @property
    def is_better(self) -> bool:
        """Whether the score is better than before; the loss alone, which decides between equal scores, is no gain."""
        return is_better(self.after, self.before, self.higher_is_better)

    @property
    def summary(self) -> str:
        """Describe the gain in a sentence, or that there is none, with any warning."""
        steps = f"{self.best_step} of {len(self.losses)} steps"
        said = f"{self.metric} {self.before:.4g} before, {self.after:.4g} after {steps}"
        if not self.is_better:
            kept = f"those after {steps}, with the least loss" if self.best_step else "those from before"
            said = (
                f"nothing was won: {self.metric} {self.before:.4g} before, and not better in {len(self.losses)} steps"
            )
            said += f"; the weights are {kept}"
        direction = "" if self.higher_is_better or self.metric == _LOSS else "; lower is better"
        said += f" ({self.seconds:.1f} s, {self.trained:,} numbers trained; {self.stopped}{direction})"
        return ". ".join([said, *self.notes])

    def table(self) -> pandas.DataFrame:
        """Return one row for each step: its loss, and the score where it was measured."""
        return view("views.result_charts", "recovery_table", self)  # type: ignore[no-any-return]

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw loss and score over steps."""
        return view("views.result_charts", "recovery_figure", self)

    def __repr__(self) -> str:
        return self.summary

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.result_charts", "recovery_bundle", self)  # type: ignore[no-any-return]
