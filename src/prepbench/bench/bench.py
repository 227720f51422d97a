"""``Bench``: the workbench, which a notebook shows as a widget and which also works in a script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from prepbench._display import view
from prepbench.bench.captures import draft_cell
from prepbench.bench.code import code_for
from prepbench.bench.layer_summaries import layer_facts
from prepbench.bench.names import Named, given_to, named, user_namespace
from prepbench.bench.saved import load_bench, report_bench, save_bench
from prepbench.bench.searching import Searching
from prepbench.bench.state import PRECISIONS, BenchState, check_steps, display_name
from prepbench.bench.summarize import summarize
from prepbench.bench.summary import BenchSummary
from prepbench.capture.modules.collection import GraphCollection
from prepbench.checks import check_function, check_progress, check_switch, check_table, described
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.measure.generation import Generation
from prepbench.measure.metrics import token_agreement
from prepbench.running.alike_samples import alike_samples


class Bench(Searching):
    """A workbench for one model: see what can be captured, fix it, choose axes and precisions, compile, compare.

    A notebook shows it as a widget. Every control of the widget is a method here, every change can be undone, and
    :meth:`code` writes the Python lines that do the same without a bench.

    Args:
        model: the model to prepare. It is never changed.
        tracing_inputs: samples that differ in the dims to make dynamic; the calibration inputs if left out.
        calibration_inputs: representative samples, for int8 activations; needed only to quantize.
        data: ``(input, target)`` pairs to compare on; without it the candidates are compared on the calibration
            inputs by their distance from the float model (SQNR, in dB). A :class:`prepbench.Generation` has them
            generate text, which is shown side by side as it comes.
        metric: ``metric(output, target) -> number`` for ``data``, e.g. ``pb.metrics.accuracy``.
        decode: makes text of the token numbers of a generation, such as ``tokenizer.decode``; the numbers are shown
            when left out.
        training_data: batches to train back on, see :meth:`start_recovery`: ``(input, target)`` pairs where there is a
            ``loss``, else inputs. Without it the calibration inputs are, with the float model as the teacher.
        loss: ``loss(output, target)`` returns the number that training minimizes, e.g. ``F.cross_entropy``.

    Attributes:
        selected: the FQN of the module that is selected in all views; "" for none.
        comparison: the newest comparison; None before the first.
        trained: the model of the newest training with its best weights, even if it was cancelled, and its result; None
            before the first.

    Raises:
        InputError: no samples, samples of different structure, a metric without data or one that is no metric of
            generated tokens, or ``decode`` where nothing is generated.

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
        data: Iterable[Any] | Generation | None = None,
        metric: Callable[[Any, Any], Any] | None = None,
        decode: Callable[[list[int]], str] | None = None,
        training_data: Iterable[Any] | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        _check_arguments(model, tracing_inputs, calibration_inputs, data, metric, decode)
        _check_training(training_data, loss)
        arguments = {"tracing_inputs": tracing_inputs, "calibration_inputs": calibration_inputs, "data": data}
        self._arguments = {"model": model, **arguments, "metric": metric, "decode": decode}
        self._arguments |= {"training_data": training_data, "loss": loss}
        calibration = _read(model, calibration_inputs, "calibration_inputs")
        tracing = _read(model, tracing_inputs, "tracing_inputs") or calibration
        compared = data if data is None or isinstance(data, Generation) else list(data)
        often = list(training_data) if isinstance(training_data, Iterator) else training_data
        super().__init__(model, tracing, calibration, compared, metric, decode, often, loss)
        self._facts = layer_facts(model, self.layer_rules.layers)
        self._summary: BenchSummary | None = None

    # -- capture -------------------------------------------------------------------------------------------------------

    @property
    def collection(self) -> GraphCollection:
        """The graphs of the model with the applied fixes."""
        return self._captures.collection(self.state.fixes)

    def capture(self, progress: ProgressCallback = report_nothing) -> None:
        """Trace the model again, capture it with the current choices, and verify it at sizes that no sample had.

        The findings appear in the steps "Capture" and "Axes".

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.

        Raises:
            CaptureError: the model cannot be captured with these choices; every failing module is listed.
        """
        check_progress(progress)
        self._captures.capture(self.state, progress)
        self._changed()

    def find_fixes(self, progress: ProgressCallback = report_nothing) -> None:
        """Search for source changes that let the failing modules be captured, and prove them, as
        :func:`prepbench.fix` does.

        The cards of :meth:`summary` show them afterwards. The widget does this by itself, in the background.

        Args:
            progress: receives each step; it may raise :class:`prepbench.Cancelled`.
        """
        check_progress(progress)
        if not self._captures.searched:
            try:
                self._captures.search(progress)
            finally:
                self._changed()

    def apply_fix(self, fqn: str, *, anyway: bool = False) -> None:
        """Apply the proven fix of a failing module to a copy of the model.

        Args:
            fqn: the module.
            anyway: apply it also where it takes something for granted beyond the samples.

        Raises:
            SettingsError: there is none; the message says why.
        """
        check_switch("anyway", anyway)
        self._captures.check_fix(fqn, anyway=anyway)
        if fqn not in self.state.fixes:
            self._choose(fixes=(*self.state.fixes, fqn))

    def apply_fixes(self) -> None:
        """Apply every proven fix except those that rest on an assumption, in one step; the page's "Apply all".

        Raises:
            SettingsError: there is none that is not applied.
        """
        known = {id(self._captures.fixes.get(fqn)) for fqn in self.state.fixes}
        proven = [fqn for fqn in self._captures.proven() if id(self._captures.fixes[fqn]) not in known]
        if not proven:
            raise SettingsError("There is no proven fix that is not applied. bench.summary().failures says why.")
        self._choose(fixes=(*self.state.fixes, *proven))

    def draft_code(self, fqn: str, namespace: Mapping[str, Any] | None = None) -> str:
        """Return the Python source of the draft for a failing module, to edit and run in a cell where the model is.

        Args:
            fqn: the module.
            namespace: the variables there, as for :meth:`code`.

        Returns:
            The lines of the cell.

        Raises:
            SettingsError: there is no draft; the message says why.
        """
        check_table("namespace", namespace, "globals()", optional=True)
        return draft_cell(self.model, self._captures.draft(fqn), self._named(namespace, only="model"))

    def remove_fix(self, fqn: str) -> None:
        """Take back an applied fix.

        Args:
            fqn: the module.

        Raises:
            SettingsError: none is applied to the module.
        """
        if fqn not in self.state.fixes:
            known = ", ".join(map(repr, self.state.fixes)) or "none"
            raise SettingsError(f"fqn: no fix is applied to {described(fqn)}. Choose one of: {known}.")
        self._choose(fixes=tuple(other for other in self.state.fixes if other != fqn))

    # -- taking it away ------------------------------------------------------------------------------------------------

    def code(self, namespace: Mapping[str, Any] | None = None) -> str:
        """Return Python source that does the same as the current choices, to paste where the bench was made.

        Args:
            namespace: the variables among which the model, samples and data are looked up; by default those of the
                notebook or script. An object without a variable is read from the bench; if the bench has none either,
                the code begins with a line to fill in.

        Returns:
            The lines, which run where the bench was made.
        """
        check_table("namespace", namespace, "globals()", optional=True)
        found = self._named(namespace)
        writes = isinstance(self.data, Generation)
        training = self._training_data() if self.state.recovery is not None else None
        given = (self.state, self.inferred_axes, self.explained, found, self.float_name)
        return code_for(*given, writes=writes, training=training, training_done=self._training_done())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the bench to ``*.bench.json``, which JupyterLab opens in a tab, and its runs to the journal beside it.

        From then on each run is written to the journal at once.

        Args:
            path: of the file.

        Returns:
            The path.

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
            given: ``tracing_inputs``, ``calibration_inputs``, ``data``, ``metric``, ``decode``, ``training_data`` and
                ``loss``, as for a new bench.

        Returns:
            A bench of the same kind as the one that was saved.

        Raises:
            DocumentError: the file is damaged, of a newer version, or no saved bench.
            InputError: it is of another model (the names that differ are listed), or the samples have other inputs.
        """
        return load_bench(cls, path, model, **given)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with the diagram, choices, runs, layers and code; it needs no network.

        Args:
            path: of the file.

        Returns:
            Its path.
        """
        return report_bench(self, path)

    def take_over(self, states: Sequence[BenchState], position: int) -> None:
        """Set the steps of undo and redo; fixes in them are proven on the samples first.

        Args:
            states: as :attr:`steps` returns them.
            position: which of them is the current one.

        Raises:
            SettingsError: choices that do not fit the model, or a fix that is not proven.
        """
        check_steps(states, position)
        for fqn in dict.fromkeys(fqn for state in states for fqn in state.fixes):
            self._captures.check_fix(fqn, anyway=True)
        super().take_over(states, position)

    def refresh(self) -> None:
        """Update what depends on the notebook's variables, and notify the front ends."""
        self._changed()

    def summary(self) -> BenchSummary:
        """Return what front ends show; computed once per change."""
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

    def _named(self, namespace: Mapping[str, Any] | None, only: str = "") -> Named:
        """Return how code refers to the arguments that the bench was given, or to one of them."""
        sizes = tuple((axis.path, axis.sizes[0]) for axis in self.axes.axes)
        given = tuple(each for each in given_to(self._arguments, sizes) if only in ("", each.argument))
        return named(given, self, user_namespace() if namespace is None else namespace)

    def _selected(self) -> None:
        if self._summary is not None:  # nothing else has changed
            self._summary = replace(self._summary, selected=self.selected)
        super()._changed()

    def _changed(self) -> None:
        self._summary = None
        super()._changed()


def _check_arguments(
    model: Any, tracing_inputs: Any, calibration_inputs: Any, data: Any, metric: Any, decode: Any
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, got {described(model)}. Give the module itself.")
    generates = isinstance(data, Generation)
    check_function("decode", decode, "decode(tokens)", optional=True)
    if decode is not None and not generates:
        raise InputError("decode is for generated tokens. Give data=pb.Generation(prompts), or leave decode out.")
    if generates and metric is not None and metric is not token_agreement:
        raise InputError(
            "metric: a generation is scored by the tokens that agree with the float model's. Leave metric out, or give "
            "other data for it, such as pairs of inputs and targets."
        )
    if not generates and data is not None and (isinstance(data, str | bytes | type) or not isinstance(data, Iterable)):
        raise InputError(f"data must be an iterable of pairs, got {described(data)}. Give [(input, target), ...].")
    check_function("metric", metric, "metric(output, target)", optional=True)
    if tracing_inputs is None and calibration_inputs is None:
        raise InputError("Bench needs samples: give tracing_inputs, calibration_inputs, or both.")
    if metric is not None and data is None:
        raise InputError("metric was given without data: give data=[(input, target), ...] to compare on.")


def _check_training(data: Any, loss: Any) -> None:
    check_function("loss", loss, "loss(output, target)", optional=True)
    if data is not None and (
        isinstance(data, torch.Tensor | str | bytes | type | Mapping) or not isinstance(data, Iterable)
    ):
        raise InputError(
            f"training_data must be an iterable of batches, got {described(data)}. Give a list or a DataLoader."
        )
    if loss is not None and data is None:
        raise InputError("loss was given without training_data: give training_data=[(input, target), ...] to train on.")


def _read(model: nn.Module, inputs: Iterable[Any] | None, name: str) -> list[Sample]:
    return [] if inputs is None else alike_samples(model, inputs, name=name)
