"""Compile and compare with the choices of a bench: in the foreground, or queued in the background."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prepbench.bench.cards import StaticAxisError, first_sentence
from prepbench.bench.history import measured, new_run
from prepbench.bench.inputs import Inputs
from prepbench.bench.queue import QueuedRun, SharedParts
from prepbench.bench.recovering import Training
from prepbench.bench.state import BenchState, RecoverySettings, display_name, label_of
from prepbench.bench.status import RECOVERING, TARGET
from prepbench.bench.written import Writing, run_generation
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_all_of, check_function, check_progress, check_type
from prepbench.compile import compile_model
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.comparison import Comparison
from prepbench.measure.generation import Generation
from prepbench.measure.run import compare
from prepbench.package import CompiledModel
from prepbench.results.measurement import Run
from prepbench.settings import ExplainedLayer
from prepbench.settings.rules import is_within


@dataclass(eq=False)
class Compiling(SharedParts):
    """Compiles with the choices of a bench, and compares the results; see :class:`prepbench.Bench`."""

    training: Training

    @property
    def is_queued(self) -> bool:
        """Whether a run with the current choices is running or queued."""
        return self.jobs.has(self.choices.state, "compile")

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
        return self.compile_for(self.choices.state, progress)

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
        run = QueuedRun.of(self.choices.state, self.choices.explained, self.choices.planned, self.runs.float_name)
        stages = None if run.state.recovery is None else RECOVERING
        return self.jobs.add(run, functools.partial(self.compile_for, run.state), progress, on_end, stages=stages)

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
        settings = settings or self.choices.state.recovery or RecoverySettings()
        self.training.check(self.choices.state, settings)
        self.choices.set_recovery(settings)
        return self.start()

    def compare_with_float(self, runs: Sequence[str] = (), progress: ProgressCallback = report_nothing) -> Comparison:
        """Compile the float model for the targets of runs, and time it in the same rounds as these runs.

        From then on the speed-ups of those targets tell what quantization wins there.

        Args:
            runs: ids of runs that were compiled in this process; the newest one if left out.
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Returns:
            One row for the float model in PyTorch, one for each of the runs, and one for each compiled float model.

        Raises:
            UnknownNameError: there is no such run.
            SettingsError: a run was not compiled in this process, or there is none.
            PrepbenchError: the float model cannot be compiled for a target.
        """
        check_progress(progress)
        chosen = self._compiled_runs(runs)
        states = dict.fromkeys(self.runs.state_of(run).in_float for run in chosen)
        made = []
        for number, each in enumerate(states):
            progress(Progress(TARGET, number, len(states), each.target))
            made.append(self._add_run(each, progress, together=each))
        state = self.runs.state_of(chosen[-1])
        # the compiled float model first, so that it is the baseline of the table
        names = dict.fromkeys(run.name for run in (*made, *chosen))
        return self._compare(state, list(names), progress, self._writing(state, progress))

    def start_comparing_with_float(
        self,
        runs: Sequence[str] = (),
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[Comparison]:
        """Run :meth:`compare_with_float` in a background thread; it waits until earlier runs have ended.

        Args:
            runs: ids of runs that were compiled in this process; the newest one if left out.
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job, which can be waited for or cancelled.

        Raises:
            UnknownNameError: there is no such run.
            SettingsError: a run was not compiled in this process, or there is none.
        """
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        chosen = self._compiled_runs(runs)
        ids = [run.id for run in chosen]
        state = self.runs.state_of(chosen[-1]).in_float
        explained = self.choices.layer_rules.explained(state.quantization, state.rules)
        listed = self.choices.layer_rules.completed(explained)
        queued = replace(QueuedRun.of(state, explained, listed, self.runs.float_name), compared=tuple(ids))
        return self.jobs.add(queued, functools.partial(self.compare_with_float, ids), progress, on_end)

    def compare(self, progress: ProgressCallback = report_nothing) -> Comparison:
        """Compare the float model and every result of this process; the comparison is kept in :attr:`comparison`.

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Returns:
            One row for each.
        """
        state = self.choices.state
        return self._compare(state, list(self.runs.results), progress, self._writing(state, progress))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _compiled_runs(self, ids: Sequence[str]) -> list[Run]:
        """Return the runs of ids, or the newest, if all of them were compiled in this process."""
        check_all_of("runs", ids, str, "Give the ids of runs, such as [run.id for run in bench.runs].")
        known = [run for run in self.runs.runs if run.id in self.runs.compiled]
        chosen = [self.runs.get(each, "runs") for each in ids] or known[-1:]
        if not chosen:
            raise SettingsError("Nothing was compiled in this process: compile first, or restore a run and compile.")
        for run in chosen:
            if run not in known:
                raise SettingsError(f"runs: {run.name} was not compiled in this process. Restore it and compile.")
        return chosen

    def compile_for(self, state: BenchState, progress: ProgressCallback) -> CompiledModel:
        """:meth:`compile` with other choices than the current ones."""
        made, errors = [], []
        check_sizes(state.axes, self.inputs)
        writing = self._writing(state, progress)  # before anything slow: the float model may be unable to generate
        for number, target in enumerate(state.targets):
            progress(Progress(TARGET, number, len(state.targets), display_name(target)))
            try:
                made.append(self._add_run(state.for_target(target), progress, together=state))
            except (Cancelled, KeyboardInterrupt):
                raise
            except Exception as error:
                errors.append(error)
        if made:
            try:
                self._compare(state, [run.name for run in made], progress, writing)
            except BaseException as error:
                why = "cancelled" if isinstance(error, Cancelled | KeyboardInterrupt) else first_sentence(str(error))
                for run in made:
                    self.runs.replace(run.id, why=f"Neither scored nor timed: {why}")
                raise
        if errors:
            raise errors[0]
        return self.runs.compiled[made[-1].id]

    def _add_run(self, state: BenchState, progress: ProgressCallback, *, together: BenchState) -> Run:
        """Compile for the one target of ``state`` and record the run in the history, also if it fails."""
        began, values = time.monotonic(), self.runs.value_mark
        explained = self.choices.layer_rules.explained(state.quantization, state.rules)
        label = label_of(state, explained, state.targets[0], self.runs.float_name)
        try:
            compiled = self._made(state, explained, progress)
        except Exception as error:
            if not isinstance(error, Cancelled):
                name = self.runs.free_name(f"{label} (failed)", {})
                self.runs.add(new_run(state, name, began, together, error=str(error)))
            raise
        name = self.runs.free_name(label, state.to_json())
        report = compiled.report
        self.captures.know_several(state.fixes, [variant.samples for variant in compiled.variants])
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
            recovered=self.training.recovered() if state.recovery is not None else "",
        )
        self.runs.add(run, compiled, values)  # a repeated compile becomes the newest
        return run

    def _made(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> CompiledModel:
        """Compile for the one target of ``state``, after its training if it has one."""
        quantized = any(layer.settings is not None for layer in explained)
        needs_samples = quantized or state.pruning_needs_samples
        given: dict[str, Any] = {
            "tracing_inputs": self.inputs.tracing_inputs,
            "calibration_inputs": self.inputs.calibration_inputs if needs_samples else None,
            "dynamic_axes": state.axes,
            "deployment_settings": state.targets[0],
            "quantization_settings": state.quantization if quantized else None,
            "layer_quantization_settings": (dict(state.rules) or None) if quantized else None,
            "pruning_settings": state.pruning,
            "layer_pruning_settings": dict(state.pruning_rules) or None,
            "compile_options": state.options,
        }
        model = self.captures.model(state.fixes)
        if state.recovery is not None:
            self.training.check(state, state.recovery)
            return self.training.compile(model, state.recovery, given, progress)
        leaves: dict[str, Any] = {"leaf_modules": state.leaves, "fullgraph": state.fullgraph}
        compiled: CompiledModel = compile_model(model, **given, **leaves, reuse=self.kept, progress=progress)
        others = [name for name in compiled.report.leaves if not any(is_within(name, leaf) for leaf in state.leaves)]
        if state.leaves and not state.leaf_wrap and others:
            raise SettingsError(
                f"{', '.join(others)} cannot be captured either. Keep what fails in PyTorch, too, which is "
                "fullgraph=False, or fix it."
            )
        return compiled

    def _writing(self, state: BenchState, progress: ProgressCallback) -> Writing | None:
        """Start the live generation with the float model, and return it; None where data holds single calls."""
        if not isinstance(self.inputs.data, Generation):
            return None
        writing = Writing(self.inputs.data, self.inputs.decode, self.jobs.following.write, progress)
        writing.write(self.runs.float_name, self.captures.model(state.fixes))
        return writing

    def _compare(
        self, state: BenchState, names: Sequence[str], progress: ProgressCallback, writing: Writing | None
    ) -> Comparison:
        results = self.runs.results
        if writing is not None:
            for name in names:
                writing.write(name, results[name])
        # the float model with the fixes, which are proven to change nothing: it can be timed as a graph
        base = {self.runs.float_name: self.captures.model(state.fixes)}
        data = self.inputs.compared_on
        candidates = {**base, **{name: results[name] for name in names}}
        comparison = self.runs.comparison = compare(candidates, data, metric=self.inputs.metric, progress=progress)
        for name in names:
            run = self.runs.named(name)
            if run is not None:
                row, first = comparison[name], comparison.rows[0]
                wrote = run_generation(row, first, data, self.inputs.decode) if isinstance(data, Generation) else None
                self.runs.replace(run.id, **measured(run, results[name], comparison, row, wrote))
        self.changed()
        return comparison


# Check that data fits the axes, so that a mismatch is reported before anything is compiled.


def check_sizes(axes: DynamicAxes, inputs: Inputs) -> None:
    """Check the sizes that candidates are compared on against the static axes of a compile.

    Raises:
        StaticAxisError: the first size that differs.
        InputError: the model itself does not take it either.
    """
    for name, shapes in inputs.data_shapes:
        for axis in axes.axes:
            shape = shapes.get(axis.path, ())
            if axis.dim >= len(shape):
                continue
            size, place = shape[axis.dim], f"{axis.path}.shape[{axis.dim}]"
            if not axis.dynamic and size not in axis.sizes:
                if error := inputs.error_on(name):
                    usual = tuple(other.sizes[0] for other in axes.axes if other.path == axis.path)
                    raise InputError(
                        f"{name}: {axis.path} has the shape {shape}, and the model itself raises on it: {error} "
                        f"Sample 0 has {usual} there. Mend or remove {name}."
                    )
                raise StaticAxisError(
                    f"{place} is {size} in {name}, and the axes fix it at {axis.sizes[0]}. Make it dynamic in Axes, "
                    f"which is bench.set_axis({axis.path!r}, {axis.dim}, dynamic=True, linked=True) in Python, or give "
                    f"{name.partition('[')[0]} of that size: the compiled model would refuse this.",
                    axis.path,
                    axis.dim,
                )
