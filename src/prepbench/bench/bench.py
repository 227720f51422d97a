"""``Bench``: the workbench, which a notebook shows as a widget and which also works in a script."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from prepbench._display import view
from prepbench.bench.captures import Captures
from prepbench.bench.code import code_for
from prepbench.bench.history import measured, new_run
from prepbench.bench.layer_summaries import layer_facts
from prepbench.bench.names import given_to, named, user_namespace
from prepbench.bench.run import Run
from prepbench.bench.runs import Runs
from prepbench.bench.saved import load_bench, report_bench, save_bench
from prepbench.bench.state import PRECISIONS, BenchState, display_name, label_of
from prepbench.bench.summarize import summarize
from prepbench.bench.summary import BenchSummary
from prepbench.capture.modules.collection import GraphCollection
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_function, check_progress, check_table, described
from prepbench.compile import CompiledModel, KeptStages, compile_model
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample, normalize_samples
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.comparison import Comparison
from prepbench.measure.run import compare

TARGET = "target"
"""The stage that says which of several targets is next."""


class Bench(Runs):
    """A workbench for one model: see what can be captured, fix it, choose axes and precisions, compile, compare.

    A notebook shows it as a widget. Every control of the widget is a method here, every change can be undone, and
    :meth:`code` writes the Python lines that do the same without it.

    Args:
        model: the model to prepare. It is never changed.
        tracing_inputs: samples that differ in the dims to make dynamic; the calibration inputs if left out.
        calibration_inputs: representative samples, for int8 activations; needed only to quantize.
        data: ``(input, target)`` pairs to compare on; without it the candidates are compared on the calibration
            inputs by their distance from the float model (SQNR, in dB).
        metric: ``metric(output, target) -> number`` for ``data``, e.g. ``pb.metrics.accuracy``.

    Attributes:
        selected: the FQN of the module that is selected in all views; "" for none.
        comparison: the newest comparison; None before the first.
        job: the newest background job; None before the first.

    Raises:
        InputError: no samples, samples of different structure, or a metric without data.

    Example:
        >>> import torch
        >>> samples = [torch.ones(2, 4), torch.ones(3, 4)]
        >>> bench = Bench(torch.nn.Sequential(torch.nn.Linear(4, 2)), calibration_inputs=samples)
        >>> bench.set_precision("0", "float32")
        >>> "skip" in bench.code()
        False
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        tracing_inputs: Iterable[Any] | None = None,
        calibration_inputs: Iterable[Any] | None = None,
        data: Iterable[Any] | None = None,
        metric: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        _check_arguments(model, tracing_inputs, calibration_inputs, data, metric)
        arguments = {"tracing_inputs": tracing_inputs, "calibration_inputs": calibration_inputs, "data": data}
        self._arguments = {"model": model, **arguments, "metric": metric}
        self.calibration_inputs = _read(model, calibration_inputs, "calibration_inputs")
        self.tracing_inputs = _read(model, tracing_inputs, "tracing_inputs") or self.calibration_inputs
        self.data = None if data is None else list(data)
        self.metric = metric
        self._captures = Captures(model, self.tracing_inputs)
        self._captures.collection()  # samples that the model does not take are refused here
        axes = DynamicAxes.infer(self.tracing_inputs, model)
        super().__init__(model, axes, calibrated=bool(self.calibration_inputs))
        self._kept = KeptStages()
        self._facts = layer_facts(model, self.layer_rules.layers)
        self._summary: BenchSummary | None = None
        self.job: Job[Any] | None = None

    # -- capture -------------------------------------------------------------------------------------------------------

    @property
    def collection(self) -> GraphCollection:
        """The graphs of the model as it is with the applied fixes."""
        return self._captures.collection(self.state.fixes)

    def capture(self, progress: ProgressCallback = report_nothing) -> None:
        """Trace the model again, capture it with the current choices, and verify it at sizes that no sample had.

        What it finds shows in the steps "Capture" and "Axes".

        Raises:
            CaptureError: the model cannot be captured with these choices; every failing module is listed.
        """
        check_progress(progress)
        self._captures.capture(self.state, progress)
        self._changed()

    def find_fixes(self, progress: ProgressCallback = report_nothing) -> None:
        """Look for changes that let the failing modules be captured, and prove them, as :func:`prepbench.fix` does.

        The cards of :meth:`summary` have them from then on. The widget does this by itself, in the background.
        """
        check_progress(progress)
        if not self._captures.searched:
            try:
                self._captures.search(progress)
            finally:
                self._changed()

    def apply_fix(self, fqn: str) -> None:
        """Apply the proven fix of a failing module to a copy of the model.

        Raises:
            SettingsError: there is none; the message says why.
        """
        self._captures.check_fix(fqn)
        if fqn not in self.state.fixes:
            self._choose(fixes=(*self.state.fixes, fqn))

    def remove_fix(self, fqn: str) -> None:
        """Take back an applied fix.

        Raises:
            SettingsError: none is applied to the module.
        """
        if fqn not in self.state.fixes:
            known = ", ".join(map(repr, self.state.fixes)) or "none"
            raise SettingsError(f"fqn: no fix is applied to {described(fqn)}. Choose one of: {known}.")
        self._choose(fixes=tuple(other for other in self.state.fixes if other != fqn))

    # -- run -----------------------------------------------------------------------------------------------------------

    def compile(self, progress: ProgressCallback = report_nothing) -> CompiledModel:
        """Calibrate and compile for each chosen target, then compare what was made with the float model.

        What was captured and calibrated before is used again where it does not depend on what changed.

        Args:
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop between batches.

        Returns:
            The compiled model of the last target; all of them are in :attr:`results`.

        Raises:
            PrepbenchError: the error of the first target that failed; the others are compiled all the same, and the
                history tells what failed.
        """
        check_progress(progress)
        made, errors = [], []
        for number, target in enumerate(self.state.targets):
            progress(Progress(TARGET, number, len(self.state.targets), display_name(target)))
            state = self.state.for_target(target)
            try:
                made.append(self._compiled(state, progress))
            except (Cancelled, KeyboardInterrupt):
                raise
            except Exception as error:
                errors.append(error)
        if made:
            self._compare([run.name for run in made], progress)
        if errors:
            raise errors[0]
        return self._history.compiled[made[-1].id]

    def start(
        self, progress: ProgressCallback = report_nothing, on_end: Callable[[BaseException | None], None] | None = None
    ) -> Job[CompiledModel]:
        """:meth:`compile` in a background thread; the returned job can be waited for or cancelled.

        Args:
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.
        """
        return self.in_background(self.compile, progress, on_end)

    def in_background(
        self,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[Any]:
        """Run a method that takes ``progress``, such as :meth:`compile` or :meth:`capture`, in a background thread."""
        check_function("work", work, "work(progress)")
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        if self.job is not None and not self.job.done:
            raise SettingsError("A compile is already running: wait for bench.job.result() or call bench.job.cancel().")

        def watched(step: ProgressCallback) -> Any:
            error: BaseException | None = None
            try:
                return work(step)
            except BaseException as raised:
                error = raised
                raise
            finally:
                if on_end is not None:
                    on_end(error)

        self.job = Job(watched, progress)
        return self.job

    def cancel(self) -> None:
        """Ask the running job to stop; does nothing where none runs."""
        if self.job is not None:
            self.job.cancel()

    def compare(self, progress: ProgressCallback = report_nothing) -> Comparison:
        """Compare the float model and every result of this process; also kept in :attr:`comparison`."""
        return self._compare(list(self.results), progress)

    # -- taking it away ------------------------------------------------------------------------------------------------

    def code(self, namespace: Mapping[str, Any] | None = None) -> str:
        """Python source that does the same as the current choices, to be pasted where the bench was made.

        Args:
            namespace: the variables there, among which the model, samples and data are looked for; those of the
                notebook or script if left out. What has no name is reached through the bench, and where that has none
                either, the code begins with a line to be filled in.
        """
        check_table("namespace", namespace, "globals()", optional=True)
        sizes = tuple((axis.path, axis.sizes[0]) for axis in self.axes.axes)
        found = named(given_to(self._arguments, sizes), self, user_namespace() if namespace is None else namespace)
        return code_for(self.state, self.inferred_axes, self.explained, found)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bench to ``*.bench.json``, which JupyterLab opens in a tab, and its runs to the journal beside it.

        From then on each run is written to the journal at once.

        Raises:
            SettingsError: the path does not end in ``.bench.json``.
            StorageError: it cannot be written; older files are still there.
        """
        return save_bench(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, model: nn.Module, **given: Any) -> Bench:
        """Read what :meth:`save` wrote: choices with undo, and the history with the runs that others added since.

        Args:
            path: the file.
            model: the model that the bench was made for.
            given: ``tracing_inputs``, ``calibration_inputs``, ``data`` and ``metric``, as for a new bench.

        Raises:
            DocumentError: the file is damaged, of a newer version, or no saved bench.
            InputError: it is of another model (the names that differ are listed), or the samples have other inputs.
        """
        return load_bench(cls, path, model, **given)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with the diagram, choices, runs, layers and code; it needs no network."""
        return report_bench(self, path)

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Make these the steps of undo and redo; fixes in them are proven on the samples first.

        Raises:
            SettingsError: choices that do not fit the model, or a fix that is not proven.
        """
        for fqn in dict.fromkeys(fqn for state in states for fqn in state.fixes):
            self._captures.check_fix(fqn)
        super().take_over(states, position)

    def refresh(self) -> None:
        """Look again at the names that the notebook has, and tell the front ends."""
        self._changed()

    def summary(self) -> BenchSummary:
        """What a front end shows; made once per change."""
        if self._summary is None:
            self._summary = summarize(self, self._captures, self._facts, self.code())
        return self._summary

    # -- how it shows itself -------------------------------------------------------------------------------------------

    def widget(self) -> Any:
        """The live widget (an ipywidgets ``VBox``): the steps, the diagram, the chart of all runs, the code."""
        return view("widgets.bench", "bench_widget", self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(view("widgets.bench", "bench_bundle", self))

    def __repr__(self) -> str:
        counts = {p: list(self.precisions.values()).count(p) for p in PRECISIONS}
        layers = ", ".join(f"{count} in {p}" for p, count in counts.items() if count) or "none quantizable"
        dynamic = [f"{axis.path}[{axis.dim}]" for axis in self.axes.axes if axis.dynamic] or ["none"]
        lines = [
            f"Bench({type(self.model).__name__})",
            f"  dynamic axes  {', '.join(dynamic)}",
            f"  layers        {layers}",
            f"  target        {', '.join(map(display_name, self.state.targets))}",
            f"  failures      {len(self.collection.failures)}",
            f"  results       {', '.join(self.results) or 'none yet: bench.compile()'}",
        ]
        return "\n".join(lines)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _selected(self) -> None:
        if self._summary is not None:  # nothing else has changed
            self._summary = replace(self._summary, selected=self.selected)
        super()._changed()

    def _changed(self) -> None:
        self._summary = None
        super()._changed()

    def _compiled(self, state: BenchState, progress: ProgressCallback) -> Run:
        """Compile for the one target of ``state``; the run is in the history, also where it failed."""
        began = time.monotonic()
        quantized = any(layer.settings is not None for layer in self.explained)
        label = label_of(self.explained, state.targets[0])
        try:
            compiled: CompiledModel = compile_model(
                self._captures.model(state.fixes),
                tracing_inputs=self.tracing_inputs,
                calibration_inputs=self.calibration_inputs if quantized else None,
                dynamic_axes=state.axes,
                deployment_settings=state.targets[0],
                quantization_settings=state.quantization if quantized else None,
                layer_quantization_settings=(dict(state.rules) or None) if quantized else None,
                compile_options=state.options,
                leaf_modules=state.leaves,
                fullgraph=state.fullgraph,
                reuse=self._kept,
                progress=progress,
            )
        except Exception as error:
            if not isinstance(error, Cancelled):
                name = self._history.free_name(f"{label} (failed)", {})
                self._history.add(new_run(state, name, began, error=str(error)))
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
            report=report.layers,
            stages=dict(report.seconds),
            reused=report.reused,
            size_bytes=report.size_bytes,
        )
        self._history.add(run, compiled)
        self._changed()
        return run

    def _compare(self, names: list[str], progress: ProgressCallback) -> Comparison:
        results = self.results
        # the float model with the fixes, which are proven to change nothing: it can be timed as a graph
        candidates = {"float32": self._captures.model(self.state.fixes), **{name: results[name] for name in names}}
        data = self.data if self.data is not None else self.calibration_inputs or self.tracing_inputs
        self.comparison = compare(candidates, data, metric=self.metric, progress=progress)
        for name in names:
            run = self._history.named(name)
            if run is not None:
                row = self.comparison[name]
                self._history.replace(run.id, **measured(run, results[name], self.comparison, row))
        self._changed()
        return self.comparison


def _check_arguments(model: Any, tracing_inputs: Any, calibration_inputs: Any, data: Any, metric: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give the module itself.")
    if data is not None and (isinstance(data, str | bytes | type) or not isinstance(data, Iterable)):
        raise InputError(f"data must be an iterable of pairs, got {described(data)}. Give [(input, target), ...].")
    check_function("metric", metric, "metric(output, target)", optional=True)
    if tracing_inputs is None and calibration_inputs is None:
        raise InputError("Bench needs samples: give tracing_inputs, calibration_inputs, or both.")
    if metric is not None and data is None:
        raise InputError("metric was given without data: give data=[(input, target), ...] to compare on.")


def _read(model: nn.Module, inputs: Iterable[Any] | None, name: str) -> list[Sample]:
    return [] if inputs is None else normalize_samples(model, inputs, name=name)
