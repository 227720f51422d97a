"""Compile and compare with the choices of a bench: in the foreground, or queued in the background."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from prepbench.bench.captures import Captures
from prepbench.bench.cards import Card, error_card
from prepbench.bench.fitting_data import check_data_fits
from prepbench.bench.history import measured, new_run
from prepbench.bench.progress import RECOVERING
from prepbench.bench.queue import QueuedRun, RunQueue
from prepbench.bench.recovering import train_and_compile
from prepbench.bench.recovery_settings import RecoverySettings
from prepbench.bench.state import BenchState, display_name, label_of
from prepbench.bench.status import TARGET, RunStatus, StatusOfRuns
from prepbench.bench.training_back import TrainingBack
from prepbench.bench.writing import Writing
from prepbench.bench.written import Decode, prompt_texts, run_generation
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_function, check_progress, check_type
from prepbench.compile import CompiledModel, KeptStages, compile_model
from prepbench.inputs import Sample
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.comparison import Comparison
from prepbench.measure.generation import Generation
from prepbench.measure.run import compare
from prepbench.results.run import Run
from prepbench.settings import ExplainedLayer


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
