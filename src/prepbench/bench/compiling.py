"""Compile and compare with the choices of a bench: in the foreground, or queued in the background."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench.adapt.recover import SCORED_ON_TRAINED
from prepbench.bench.captures import Captures
from prepbench.bench.cards import Card, error_card
from prepbench.bench.history import measured, new_run
from prepbench.bench.progress import RECOVERING
from prepbench.bench.queue import QueuedRun, RunQueue
from prepbench.bench.recovering import Trained, TrainingData, train_and_compile
from prepbench.bench.recovery_settings import RecoverySettings
from prepbench.bench.runs import Runs
from prepbench.bench.state import BenchState, display_name, label_of
from prepbench.bench.status import TARGET, RunStatus, StatusOfRuns
from prepbench.bench.summary import RecoverySummary
from prepbench.bench.training_curve import Watch
from prepbench.bench.writing import Writing
from prepbench.bench.written import Decode, prompt_texts, run_generation
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_function, check_progress, check_type
from prepbench.compile import CompiledModel, KeptStages, compile_model
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample, named_leaves
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.batches import read_batches
from prepbench.measure.comparison import Comparison
from prepbench.measure.generation import Generation
from prepbench.measure.run import compare
from prepbench.measure.scores import metric_name, takes_targets
from prepbench.results.run import Run
from prepbench.running.empty_caches import is_nothing
from prepbench.settings import ExplainedLayer

# The recovery training of a bench: its data and its outcome.


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


class Compiling(TrainingBack):
    """The background work of a bench; see :class:`prepbench.Bench`."""

    def __init__(
        self,
        model: nn.Module,
        tracing_inputs: list[Sample],
        calibration_inputs: list[Sample],
        data: list[Any] | Generation | None,
        metric: Callable[[Any, Any], Any] | None,
        decode: Decode | None,
        training_data: Iterable[Any] | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.tracing_inputs, self.calibration_inputs = tracing_inputs, calibration_inputs
        self.data, self.metric, self.decode = data, metric, decode
        self.prompts = prompt_texts(data, decode) if isinstance(data, Generation) else ()
        self._captures = Captures(model, tracing_inputs)
        self._captures.collection()  # samples that the model does not take are refused here
        super().__init__(model, DynamicAxes.infer(tracing_inputs, model), calibrated=bool(calibration_inputs))
        self.training_data, self.loss = training_data, loss
        self._kept = KeptStages()
        self._status = StatusOfRuns()
        self._watch.listen(self._status.train)
        self._queue = RunQueue(self._changed)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def job(self) -> Job[Any] | None:
        """The background job that runs or ran last; None before the first."""
        return self._queue.job

    @property
    def queue(self) -> tuple[QueuedRun, ...]:
        """The waiting runs, the next one first."""
        return self._queue.waiting

    @property
    def turn(self) -> str:
        """The position of the current run among several, e.g. ``"1 of 3"``; "" for a single one."""
        number, count = self._queue.turn
        return f"{number} of {count}" if self._status.status.running and count > 1 else ""

    @property
    def is_queued(self) -> bool:
        """Whether a run with the current choices is running or queued."""
        return self._queue.has(self.state)

    @property
    def status(self) -> RunStatus:
        """The progress of the background work."""
        return self._status.status

    def on_status(self, listener: Callable[[RunStatus], None]) -> Callable[[], None]:
        """Call a function with the status while something runs in the background.

        Args:
            listener: takes a status.

        Returns:
            A function that ends this.
        """
        check_function("listener", listener, "listener(status)")
        return self._status.listen(listener)

    # -- running -------------------------------------------------------------------------------------------------------

    def compile(self, progress: ProgressCallback = report_nothing) -> CompiledModel:
        """Calibrate and compile for each chosen target, then compare the results with the float model.

        Earlier captures and calibrations are reused where the changed choices do not affect them.

        Args:
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop between batches.

        Returns:
            The compiled model of the last target; all of them are in :attr:`results`.

        Raises:
            PrepbenchError: the error of the first target that failed; the others are still compiled, and the history
                shows which failed.
        """
        check_progress(progress)
        return self._compile(self.state, progress)

    def start(
        self, progress: ProgressCallback = report_nothing, on_end: Callable[[BaseException | None], None] | None = None
    ) -> Job[CompiledModel]:
        """Run :meth:`compile` in a background thread with the current choices; it waits until earlier runs have
        ended.

        Args:
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job, which can be waited for or cancelled. :attr:`queue` has it while it waits.
        """
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        run = QueuedRun.of(self.state, self.explained, self.float_name)
        stages = None if run.state.recovery is None else RECOVERING
        return self._enqueued(run, functools.partial(self._compile, run.state), progress, on_end, stages=stages)

    def start_recovery(self, settings: RecoverySettings | None = None) -> Job[CompiledModel]:
        """Train back and compile in a background thread: :meth:`set_recovery` and :meth:`start`.

        Args:
            settings: of the training; those of the current choices, or else the usual ones, if left out.

        Returns:
            The job, which can be waited for or cancelled. :meth:`stop_training` ends the training alone.

        Raises:
            SettingsError: nothing is quantized or pruned, there is nothing to learn from, or leaves are kept, which
                cannot be trained.
        """
        check_type("settings", settings, RecoverySettings, "Give RecoverySettings(steps=300).", optional=True)
        settings = settings or self.state.recovery or RecoverySettings()
        self._check_trainable(self.state, settings)
        self.set_recovery(settings)
        return self.start()

    def in_background(
        self,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[Any]:
        """Run a method that takes ``progress``, such as :meth:`capture`, in a background thread.

        Args:
            work: called with its progress callback.
            progress: receives each step, too.
            on_end: called at the end, with the exception or None.

        Returns:
            The job, which can be waited for and cancelled.

        Raises:
            SettingsError: something runs already.
        """
        check_function("work", work, "work(progress)")
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        return self._enqueued(None, work, progress, on_end)

    def cancel(self) -> None:
        """Cancel the current run, after which the next run of the queue begins; does nothing where nothing runs."""
        self._queue.cancel()

    def cancel_all(self) -> None:
        """Empty the queue, and cancel the current run."""
        self._queue.cancel_all()

    def remove_queued(self, id: str) -> None:
        """Remove a waiting run from the queue.

        Args:
            id: of the run.

        Raises:
            UnknownNameError: no such run waits.
        """
        self._queue.remove(id)

    def compare(self, progress: ProgressCallback = report_nothing) -> Comparison:
        """Compare the float model and every result of this process; the comparison is kept in :attr:`comparison`.

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Returns:
            One row for each.
        """
        return self._compare(self.state, list(self.results), progress, self._writing(self.state, progress))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _enqueued(
        self,
        run: QueuedRun | None,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback,
        on_end: Callable[[BaseException | None], None] | None,
        said: Callable[[], str] | None = None,
        stages: Mapping[str, float] | None = None,
    ) -> Job[Any]:
        """Add work to the queue; ``said`` is the message at its end, and ``stages`` those of work that is no
        compile.
        """
        name, targets = ("", ()) if run is None else (run.name, run.targets)

        def begins() -> None:
            seconds = next((run.stages for run in reversed(self.runs) if not run.error), {})
            self._status.begin(f"{name} {', '.join(targets)}", targets if stages is None else (), seconds, stages)

        def told(step: Progress) -> None:
            self._status.step(step)
            progress(step)

        def ended(error: BaseException | None, goes_on: bool | None) -> None:
            try:
                if on_end is not None:
                    on_end(error)
            finally:
                if goes_on is not None:
                    self._end_message(run, error, goes_on, said)

        return self._queue.add(run, work, told, begins, ended)

    def _end_message(
        self,
        run: QueuedRun | None,
        error: BaseException | None,
        goes_on: bool,
        said: Callable[[], str] | None = None,
    ) -> None:
        notes = ["done" if error is None else "cancelled" if isinstance(error, Cancelled) else "failed"]
        if error is None and said is not None:
            message = Card("info", said())
        elif error is None:
            message = Card("info", "Captured again." if run is None else self.outcome())
            reused = self.runs[-1].reused if run is not None and self.runs else ()
            notes = [f"used again: {', '.join(reused)}", *notes] if reused else notes
        elif isinstance(error, Cancelled):
            message = Card("info", str(error))
        else:
            state = self.state if run is None else run.state
            message = error_card(error, leaf_wrap=state.leaf_wrap)
        self._status.end(message, *notes, goes_on=goes_on)

    def _compile(self, state: BenchState, progress: ProgressCallback) -> CompiledModel:
        made, errors = [], []
        check_data_fits(self.model, state.axes, self.data, self.metric)
        writing = self._writing(state, progress)  # before anything slow: the float model may be unable to generate
        for number, target in enumerate(state.targets):
            progress(Progress(TARGET, number, len(state.targets), display_name(target)))
            try:
                made.append(self._compiled(state.for_target(target), progress, together=state))
            except (Cancelled, KeyboardInterrupt):
                raise
            except Exception as error:
                errors.append(error)
        if made:
            self._compare(state, [run.name for run in made], progress, writing)
        if errors:
            raise errors[0]
        return self._history.compiled[made[-1].id]

    def _compiled(self, state: BenchState, progress: ProgressCallback, *, together: BenchState) -> Run:
        """Compile for the one target of ``state`` and record the run in the history, also if it fails."""
        began, values = time.monotonic(), self.value_mark
        explained = self.layer_rules.explained(state.quantization, state.rules)
        label = label_of(state, explained, state.targets[0], self.float_name)
        try:
            compiled = self._made(state, explained, progress)
        except Exception as error:
            if not isinstance(error, Cancelled):
                name = self._history.free_name(f"{label} (failed)", {})
                self._history.add(new_run(state, name, began, together, error=str(error)))
                self._changed()
            raise
        name = self._history.free_name(label, state.to_json())
        report = compiled.report
        same = self._history.named(name)
        if same is not None:  # a repeated compile becomes the newest
            self._history.delete(same.id)
        run = new_run(
            state,
            name,
            began,
            together,
            report=report.layers,
            stages=dict(report.seconds),
            reused=report.reused,
            size_bytes=report.size_bytes,
            pruned={row.fqn: row.summary for row in report.pruned},
            recovered=self._recovered() if state.recovery is not None else "",
        )
        self._history.add(run, compiled)
        self._values_of_runs[run.id] = values
        self._changed()
        return run

    def _made(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> CompiledModel:
        """Compile for the one target of ``state``, after its training if it has one."""
        quantized = any(layer.settings is not None for layer in explained)
        needs_samples = quantized or state.pruning_needs_samples
        given: dict[str, Any] = {
            "tracing_inputs": self.tracing_inputs,
            "calibration_inputs": self.calibration_inputs if needs_samples else None,
            "dynamic_axes": state.axes,
            "deployment_settings": state.targets[0],
            "quantization_settings": state.quantization if quantized else None,
            "layer_quantization_settings": (dict(state.rules) or None) if quantized else None,
            "pruning_settings": state.pruning,
            "layer_pruning_settings": dict(state.pruning_rules) or None,
            "compile_options": state.options,
        }
        model = self._captures.model(state.fixes)
        if state.recovery is not None:
            self._check_trainable(state, state.recovery)
            return train_and_compile(
                model, self._training_data(), state.recovery, given, self._watch, self._keep, progress
            )
        leaves: dict[str, Any] = {"leaf_modules": state.leaves, "fullgraph": state.fullgraph}
        compiled: CompiledModel = compile_model(model, **given, **leaves, reuse=self._kept, progress=progress)
        return compiled

    def _writing(self, state: BenchState, progress: ProgressCallback) -> Writing | None:
        """Start the live generation with the float model, and return it; None where data holds single calls."""
        if not isinstance(self.data, Generation):
            return None
        writing = Writing(self.data, self.decode, self._status.write, progress)
        writing.write(self.float_name, self._captures.model(state.fixes))
        return writing

    def _compare(
        self, state: BenchState, names: Sequence[str], progress: ProgressCallback, writing: Writing | None
    ) -> Comparison:
        results = self.results
        if writing is not None:
            for name in names:
                writing.write(name, results[name])
        # the float model with the fixes, which are proven to change nothing: it can be timed as a graph
        base = {self.float_name: self._captures.model(state.fixes)}
        data = self.data if self.data is not None else self.calibration_inputs or self.tracing_inputs
        candidates = {**base, **{name: results[name] for name in names}}
        self.comparison = compare(candidates, data, metric=self.metric, progress=progress)
        for name in names:
            run = self._history.named(name)
            if run is not None:
                row, first = self.comparison[name], self.comparison.rows[0]
                wrote = run_generation(row, first, data, self.decode) if isinstance(data, Generation) else None
                self._history.replace(run.id, **measured(run, results[name], self.comparison, row, wrote))
        self._changed()
        return self.comparison


# Check that data fits the axes, so that a mismatch is reported before anything is compiled.


_Shapes = Mapping[str, tuple[int, ...]]


def check_data_fits(
    model: nn.Module,
    axes: DynamicAxes,
    data: Sequence[Any] | Generation | None,
    metric: Callable[[Any, Any], Any] | None,
) -> None:
    """Raise ``InputError`` for the first size in the data that differs from a static axis.

    Args:
        model: the model that is called with the data.
        axes: of the compile.
        data: of the comparison; None where there is none of its own.
        metric: decides whether the data has targets.
    """
    if data is None:
        return
    for name, shapes in _shapes(model, data, metric):
        for axis in axes.axes:
            shape = shapes.get(axis.path, ())
            if axis.dim >= len(shape):
                continue
            size, place = shape[axis.dim], f"{axis.path}.shape[{axis.dim}]"
            if not axis.dynamic and size not in axis.sizes:
                raise InputError(
                    f"{place} is {size} in {name}, and the axes fix it at {axis.sizes[0]}. Make it dynamic in Axes, "
                    f"which is bench.set_axis({axis.path!r}, {axis.dim}, dynamic=True, linked=True) in Python, or give "
                    "data of that size: the compiled model would refuse this."
                )


def _shapes(
    model: nn.Module, data: Sequence[Any] | Generation, metric: Callable[[Any, Any], Any] | None
) -> Iterator[tuple[str, _Shapes]]:
    """Yield the shapes of the model's arguments by path, for each element of the data."""
    if isinstance(data, Generation):
        for index, prompt in enumerate(data.batches):
            # the length of what is read at once is not that of the prompt where PyTorch makes the first step
            yield f"prompts[{index}]", {name: tuple(value.shape[:1]) for name, value in prompt.given.items()}
        return
    for batch in read_batches([model], data, with_targets=takes_targets(metric)):
        leaves = named_leaves(model, batch.sample)
        yield (
            f"data[{batch.sample.index}]",
            {
                path: tuple(leaf.shape)
                for path, leaf in leaves
                if isinstance(leaf, torch.Tensor) and not is_nothing(leaf)
            },
        )
