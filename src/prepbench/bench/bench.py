"""``Bench``: the state behind the workbench widget, which also works in a script."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from prepbench._display import view
from prepbench.bench.cards import LEAF_LABEL, size_words, slower_because
from prepbench.bench.code import code_for
from prepbench.bench.names import given_to, named, user_namespace
from prepbench.bench.state import DISPLAY_NAMES, PRECISIONS, TARGETS, BenchState, Precision
from prepbench.bench.summary import BenchSummary, axis_summaries, layer_summary, precision_choices, subtitle
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import (
    check_function,
    check_progress,
    check_switch,
    check_table,
    check_text,
    check_texts,
    described,
)
from prepbench.compile import CompiledModel, compile_model
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample, normalize_samples
from prepbench.jobs import Job, ProgressCallback, report_nothing
from prepbench.measure.comparison import Comparison
from prepbench.measure.run import compare
from prepbench.settings import quantizable_layers


class Bench:
    """A workbench for one model: see what can be captured, choose axes and precisions, compile, compare.

    A notebook shows it as a widget. Every control of the widget is a method here, and :meth:`code` writes the Python
    lines that do the same without it.

    Args:
        model: the model to prepare. It is never changed.
        tracing_inputs: samples that differ in the dims to make dynamic; the calibration inputs if left out.
        calibration_inputs: representative samples, for int8 activations; needed only to quantize.
        data: ``(input, target)`` pairs to compare on; without it the candidates are compared on the calibration
            inputs by their distance from the float model (SQNR, in dB).
        metric: ``metric(output, target) -> number`` for ``data``, e.g. ``pb.metrics.accuracy``.

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
        if not isinstance(model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give the module itself.")
        if data is not None and (isinstance(data, str | bytes | type) or not isinstance(data, Iterable)):
            raise InputError(f"data must be an iterable of pairs, got {described(data)}. Give [(input, target), ...].")
        check_function("metric", metric, "metric(output, target)", optional=True)
        if tracing_inputs is None and calibration_inputs is None:
            raise InputError("Bench needs samples: give tracing_inputs, calibration_inputs, or both.")
        if metric is not None and data is None:
            raise InputError("metric was given without data: give data=[(input, target), ...] to compare on.")
        self.model = model
        arguments = {"tracing_inputs": tracing_inputs, "calibration_inputs": calibration_inputs, "data": data}
        self._arguments = {"model": model, **arguments, "metric": metric}
        self.calibration_inputs = _read(model, calibration_inputs, "calibration_inputs")
        self.tracing_inputs = _read(model, tracing_inputs, "tracing_inputs") or self.calibration_inputs
        self.data = None if data is None else list(data)
        self.metric = metric
        self.collection: GraphCollection = recursive_trace(model, inputs=self.tracing_inputs)
        self.inferred_axes = DynamicAxes.infer(self.tracing_inputs, model)
        default: Precision = "int8" if self.calibration_inputs else "float32"
        self._layers = tuple(layer_summary(model, fqn, default) for fqn in quantizable_layers(model))
        self._states = [BenchState(self.inferred_axes, {layer.fqn: default for layer in self._layers})]
        self._position = 0
        self._summary: BenchSummary | None = None
        self.results: dict[str, CompiledModel] = {}
        self._made_with: dict[str, BenchState] = {}
        self.comparison: Comparison | None = None
        self.job: Job[CompiledModel] | None = None
        self._listeners: list[Callable[[], None]] = []

    # -- the current choices ---------------------------------------------------------------------------------------

    @property
    def state(self) -> BenchState:
        """The current choices."""
        return self._states[self._position]

    @property
    def axes(self) -> DynamicAxes:
        """The current dynamic axes."""
        return self.state.axes

    @property
    def precisions(self) -> Mapping[str, Precision]:
        """The precision chosen for each quantizable layer, by FQN."""
        return self.state.precisions

    def set_axis(self, path: str, dim: int, dynamic: bool) -> None:
        """Make dim ``dim`` of the input ``path`` dynamic or static; ``[*]`` in the path stands for every index.
        ``SettingsError`` or ``InputError`` if there is no such dim.
        """
        self._choose(replace(self.state, axes=self.state.axes.set(path, dim, dynamic)))

    def set_precision(self, pattern: str | Iterable[str], precision: Precision) -> None:
        """Choose the precision of layers.

        Args:
            pattern: an FQN, a glob over FQNs (``"encoder.*"``), or several of them.
            precision: ``"int8"`` (weights and activations), ``"int8 weights"`` or ``"float32"``.

        Raises:
            SettingsError: an unknown precision, a pattern that matches no quantizable layer, or int8 activations
                without calibration inputs.
        """
        if precision not in PRECISIONS:
            raise SettingsError(f"precision must be one of {', '.join(map(repr, PRECISIONS))}, got {precision!r}.")
        if precision != "float32" and not self.calibration_inputs:
            raise SettingsError(
                f"{precision!r} needs calibration inputs: Bench(model, calibration_inputs=[...]) with "
                "representative samples."
            )
        patterns = [pattern] if isinstance(pattern, str) else pattern
        check_texts("pattern", patterns, "encoder.*")
        chosen = {fqn: precision for p in patterns for fqn in self._matching(p)}
        self._choose(replace(self.state, precisions={**self.state.precisions, **chosen}))

    def set_target(self, target: str) -> None:
        """Choose the deployment target by name, e.g. ``"ONNX Runtime"``, or as ``compiled.target`` has it."""
        check_text("target", target, "ONNX Runtime")
        display_name = DISPLAY_NAMES.get(target, target)
        if display_name not in TARGETS:
            raise SettingsError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")
        self._choose(replace(self.state, target=display_name))

    def set_leaf_wrap(self, leaf_wrap: bool) -> None:
        """Choose whether modules that cannot be captured become leaf modules (``fullgraph=False``)."""
        check_switch("leaf_wrap", leaf_wrap)
        self._choose(replace(self.state, leaf_wrap=leaf_wrap))

    def undo(self) -> None:
        """Go back to the choices before the last change; does nothing at the first choices."""
        self._move(-1)

    def redo(self) -> None:
        """Take back the last undo; does nothing at the newest choices."""
        self._move(+1)

    # -- actions -------------------------------------------------------------------------------------------------------

    def compile(self, progress: ProgressCallback = report_nothing) -> CompiledModel:
        """Calibrate and compile with the current choices, then compare everything compiled so far with the float model.

        Args:
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop between batches.

        Returns:
            The compiled model, also kept in :attr:`results` under a name such as ``"int8 ONNX Runtime"``.
        """
        state = self.state
        settings = state.quantization_settings()
        compiled: CompiledModel = compile_model(
            self.model,
            tracing_inputs=self.tracing_inputs,
            calibration_inputs=self.calibration_inputs if settings is not None else None,
            dynamic_axes=state.axes,
            deployment_settings=state.deployment(),
            quantization_settings=settings,
            layer_quantization_settings=state.layer_settings() or None,
            fullgraph=not state.leaf_wrap,
            progress=progress,
        )
        self._keep(state, compiled)
        self.compare(progress)
        return compiled

    def start(
        self, progress: ProgressCallback = report_nothing, on_end: Callable[[BaseException | None], None] | None = None
    ) -> Job[CompiledModel]:
        """:meth:`compile` in a background thread; the returned job can be waited for or cancelled.

        Args:
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.
        """
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        if self.job is not None and not self.job.done:
            raise SettingsError("A compile is already running: wait for bench.job.result() or call bench.job.cancel().")

        def work(step: ProgressCallback) -> CompiledModel:
            error: BaseException | None = None
            try:
                return self.compile(step)
            except BaseException as raised:
                error = raised
                raise
            finally:
                if on_end is not None:
                    on_end(error)

        self.job = Job(work, progress)
        return self.job

    def compare(self, progress: ProgressCallback = report_nothing) -> Comparison:
        """Compare the float model and every result so far; also kept in :attr:`comparison`."""
        candidates = {"float32": self.model, **self.results}
        data = self.data if self.data is not None else self.calibration_inputs or self.tracing_inputs
        self.comparison = compare(candidates, data, metric=self.metric, progress=progress)
        self._changed()
        return self.comparison

    def outcome(self) -> str:
        """The newest result in one sentence: score, latency and size against the float model; "" before the first."""
        if self.comparison is None or not self.results:
            return ""
        row = self.comparison[list(self.results)[-1]]
        name = self.comparison.rows[0].name
        header, *cells = self.comparison.cells()
        told = dict(zip(header, next(c for c in cells if c[0] == row.name), strict=True))
        report = self.results[row.name].report
        why = slower_because(
            row.speedup,
            fallbacks=report.fallbacks,
            leaves=report.leaves,
            quantized=any(layer.quantized for layer in report.layers),
        )
        size = size_words(told["size MB"], leaves=report.leaves, note=row.note)
        label = self.comparison.metric_label
        change = "" if row.change is None else f" ({told['change']})"
        speed = f"{told['p50 ms']} ms per batch ({told['speed-up']} the speed of {name})"
        latency = "latency not measured" if row.p50_ms is None else speed
        return f"{row.name}: {label} {told[label]}{change}, {latency}, {size}. {why}".rstrip()

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
        return code_for(self.state, self.inferred_axes, found)

    def refresh(self) -> None:
        """Look again at the names that the notebook has, and tell the front ends."""
        self._changed()

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after every change of choices or results; returns a function that ends this."""
        check_function("listener", listener, "listener()")
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def summary(self) -> BenchSummary:
        """What a front end shows: axes, layers with their precision and result, target, code; made once per change."""
        if self._summary is None:
            self._summary = self._summarize()
        return self._summary

    # -- how it shows itself -------------------------------------------------------------------------------------------

    def widget(self) -> Any:
        """The live widget (an ipywidgets ``VBox``): diagram, axes, layers, Compile button, progress, comparison."""
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
            f"  target        {self.state.target}",
            f"  failures      {len(self.collection.failures)}",
            f"  results       {', '.join(self.results) or 'none yet: bench.compile()'}",
        ]
        return "\n".join(lines)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _choose(self, state: BenchState) -> None:
        if state == self.state:
            return
        self._states = [*self._states[: self._position + 1], state]
        self._position += 1
        self._changed()

    def _move(self, step: int) -> None:
        self._position = min(max(self._position + step, 0), len(self._states) - 1)
        self._changed()

    def _changed(self) -> None:
        self._summary = None
        for listener in list(self._listeners):
            listener()

    def _matching(self, pattern: str) -> list[str]:
        names = list(self.state.precisions)
        found = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not found:
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
            hint = f"Nearest: {', '.join(near)}." if near else f"There are: {', '.join(names[:8]) or 'none'}."
            raise SettingsError(f"No quantizable layer matches {pattern!r}. {hint}")
        return found

    def _summarize(self) -> BenchSummary:
        failures = len(self.collection.failures)
        shown = self._shown_result()
        notes = {} if shown is None else {row.fqn: row.summary for row in self.results[shown].report.layers}
        differences = () if shown is None else self.state.differences(self._made_with[shown])
        return BenchSummary(
            title=type(self.model).__name__,
            subtitle=subtitle(len(self._layers), failures),
            axes=axis_summaries(self.axes),
            layers=tuple(
                replace(layer, precision=self.precisions[layer.fqn], note=notes.get(layer.fqn, ""))
                for layer in self._layers
            ),
            precisions=precision_choices(calibrated=bool(self.calibration_inputs)),
            target=self.state.target,
            targets=tuple(TARGETS),
            leaf_wrap=self.state.leaf_wrap,
            failures=failures,
            leaf_label=LEAF_LABEL,
            code=self.code(),
            stale=f"compiled with other choices: {'; '.join(differences)}" if differences else "",
            can_undo=self._position > 0,
            can_redo=self._position < len(self._states) - 1,
        )

    def _shown_result(self) -> str | None:
        """The result of the current choices; the newest where there is none."""
        same = [name for name in self.results if self._made_with[name] == self.state]
        return next(iter([*same, *reversed(self.results)]), None)

    def _keep(self, state: BenchState, compiled: CompiledModel) -> None:
        """Store a result under its label; other choices with the same label get a number."""
        name, number = state.label, 1
        while name in self._made_with and self._made_with[name] != state:
            number += 1
            name = f"{state.label} ({number})"
        self.results.pop(name, None)  # a repeated compile becomes the newest
        self.results[name] = compiled
        self._made_with[name] = state
        self._changed()


def _read(model: nn.Module, inputs: Iterable[Any] | None, name: str) -> list[Sample]:
    return [] if inputs is None else normalize_samples(model, inputs, name=name)
