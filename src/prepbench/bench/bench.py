"""``Bench``: the workbench, which a notebook shows as a widget and which also works in a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from prepbench._display import view
from prepbench.bench.captures import Captures, Fixing, draft_cell
from prepbench.bench.choices import Changes, Choices, History
from prepbench.bench.code import code_for
from prepbench.bench.compiling import Compiling
from prepbench.bench.differing import Differing
from prepbench.bench.input_checks import opening_notes
from prepbench.bench.inputs import Inputs
from prepbench.bench.inspecting import Inspecting
from prepbench.bench.layer_costs import Costs
from prepbench.bench.queue import Jobs
from prepbench.bench.recovering import Trained, Training
from prepbench.bench.runs import Runs
from prepbench.bench.saved import load_bench, report_bench, save_bench
from prepbench.bench.searching import Search
from prepbench.bench.shown import attribute_of, method_of, value_of
from prepbench.bench.summarize import summarize, text_of
from prepbench.bench.summary import BenchSummary
from prepbench.bench.variables import names_of
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_table, described
from prepbench.compile import KeptStages
from prepbench.error_display import MODELS, SAMPLES, failed_call, repairable_error
from prepbench.errors import InputError, TargetError
from prepbench.inputs import Sample
from prepbench.measure.comparison import Comparison
from prepbench.measure.generation import Generation
from prepbench.measure.modality import SAMPLING_RATE, Modality
from prepbench.search.search_result import SearchResult
from prepbench.settings import DeploymentSettings


class Bench:
    """A workbench for one model: see what can be captured, fix it, choose axes and precisions, compile, compare.

    A notebook shows it as a widget. What the widget does is a method here or of a part, every change can be undone, and
    :meth:`code` writes the Python lines that do the same without a bench.

    Args:
        model: the model to prepare. It is never changed, except that :meth:`again` gives it newer code.
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
        tokenizer: makes tensors of texts where samples and data hold texts, called as
            ``tokenizer(texts, return_tensors="pt", padding=True)``.
        transform: applied to each sample and to each element of data and training data first, of a data set of torch or
            Hugging Face ``datasets`` or of any other form: makes of it what the model is called with, batch dimension
            and all, with the target beside it.
        modality: how samples are shown, as for :meth:`prepbench.Comparison.worst`: ``"image"``, ``"audio"``, ``"text"``
            or ``"numbers"``, or a table of these by the name of an input or output; read off the values if left out.
        sampling_rate: of audio, in values a second.

    Attributes:
        selected: the FQN of the module that is selected in all views; "" for none.
        comparison: the newest comparison; None before the first.
        trained: the model of the newest training with its best weights, even if it was cancelled, and its result; None
            before the first.
        search_result: of the newest search; None before its end.
        opening_notes: what is wrong with samples, data and metric, and how they were read, in lines.
        inputs, choices, captures, fixing, run_history, jobs, training, compiling, costs, inspecting, found, differing:
            the parts that do the work.

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
        tokenizer: Callable[..., Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
        modality: Modality | Mapping[str, Modality] | None = None,
        sampling_rate: int = SAMPLING_RATE,
    ) -> None:
        samples = {"tracing_inputs": tracing_inputs, "calibration_inputs": calibration_inputs}
        compared = {"data": data, "metric": metric, "decode": decode}
        trained = {"training_data": training_data, "loss": loss}
        looks = {"modality": modality, "sampling_rate": sampling_rate}
        read = {"tokenizer": tokenizer, "transform": transform}
        self.inputs = Inputs.of({"model": model, **samples, **compared, **trained, **looks, **read})
        self.opening_notes = opening_notes(self.inputs)
        tracing, calibrated = self.inputs.tracing_inputs, bool(self.inputs.calibration_inputs)
        self.captures = Captures(model, tracing)
        self.captures.collection()  # samples that the model does not take are refused here
        self.changes = Changes()
        self.choices = Choices(model, DynamicAxes.infer(tracing, model), self.changes, calibrated=calibrated)
        self.history = self.choices.history
        self.fixing = Fixing(self.captures, self.choices, self.changes)
        self.run_history = Runs(self.choices, self.changes)
        self.jobs = Jobs(self.choices, self.run_history, self.changes, self.captures.found_fixes)
        self.training = Training(self.inputs, self.choices)
        self.training.watch.listen(self.jobs.following.train)
        parts = (self.inputs, self.captures, self.choices, self.run_history, self.jobs, KeptStages(), self.changes)
        self.compiling = Compiling(*parts, self.training)
        self.costs = Costs(*parts)
        self.inspecting = Inspecting(*parts, self.costs)
        self.found = Search(*parts)
        self.differing = Differing(self.inputs, self.choices, self.run_history, self.jobs, self.changes)
        self._summary: tuple[int, BenchSummary] | None = None

    # -- what its parts have and do ------------------------------------------------------------------------------------

    model: nn.Module = attribute_of("inputs.model")
    tracing_inputs: list[Sample] = attribute_of("inputs.tracing_inputs")
    calibration_inputs: list[Sample] = attribute_of("inputs.calibration_inputs")
    data: list[Any] | Generation | None = attribute_of("inputs.data")
    metric: Callable[[Any, Any], Any] | None = attribute_of("inputs.metric")
    decode: Callable[[list[int]], str] | None = attribute_of("inputs.decode")
    training_data: Iterable[Any] | None = attribute_of("inputs.training_data")
    loss: Callable[[Any, Any], Any] | None = attribute_of("inputs.loss")

    selected: str = attribute_of("choices.selected")
    state = value_of("choices", Choices.state)
    axes = value_of("choices", Choices.axes)
    explained = value_of("choices", Choices.explained)
    precisions = value_of("choices", Choices.precisions)
    pruning = value_of("choices", Choices.pruning)
    set_axis = method_of("choices", Choices.set_axis)
    name_axis = method_of("choices", Choices.name_axis)
    limit_axis = method_of("choices", Choices.limit_axis)
    linked_axes = method_of("choices", Choices.linked_axes)
    set_precision = method_of("choices", Choices.set_precision)
    set_rule = method_of("choices", Choices.set_rule)
    set_rules = method_of("choices", Choices.set_rules)
    set_layers = method_of("choices", Choices.set_layers)
    clear_rules = method_of("choices", Choices.clear_rules)
    set_quantization = method_of("choices", Choices.set_quantization)
    set_options = method_of("choices", Choices.set_options)
    set_pruning = method_of("choices", Choices.set_pruning)
    prune_layers = method_of("choices", Choices.prune_layers)
    change_pruning = method_of("choices", Choices.change_pruning)
    clear_pruning_rules = method_of("choices", Choices.clear_pruning_rules)
    set_recovery = method_of("choices", Choices.set_recovery)
    set_target = method_of("choices", Choices.set_target)
    set_targets = method_of("choices", Choices.set_targets)
    set_leaf_wrap = method_of("choices", Choices.set_leaf_wrap)
    set_leaf = method_of("choices", Choices.set_leaf)
    select = method_of("choices", Choices.select)
    steps = value_of("history", History.steps)
    undo = method_of("history", History.undo)
    redo = method_of("history", History.redo)
    on_change = method_of("changes", Changes.on_change)
    collection = value_of("fixing", Fixing.collection)
    capture = method_of("fixing", Fixing.capture)
    newer_code = value_of("fixing", Fixing.newer_code)
    again = method_of("fixing", Fixing.again)
    find_fixes = method_of("fixing", Fixing.find_fixes)
    apply_fix = method_of("fixing", Fixing.apply_fix)
    apply_fixes = method_of("fixing", Fixing.apply_fixes)
    remove_fix = method_of("fixing", Fixing.remove_fix)
    take_over = method_of("fixing", Fixing.take_over)
    job = value_of("jobs", Jobs.job)
    queue = value_of("jobs", Jobs.queue)
    status = value_of("jobs", Jobs.status)
    cancel = method_of("jobs", Jobs.cancel)
    compile = method_of("compiling", Compiling.compile)
    start = method_of("compiling", Compiling.start)
    start_recovery = method_of("compiling", Compiling.start_recovery)
    compare = method_of("compiling", Compiling.compare)
    compare_with_float = method_of("compiling", Compiling.compare_with_float)
    start_comparing_with_float = method_of("compiling", Compiling.start_comparing_with_float)
    trained: Trained | None = attribute_of("training.trained")
    stop_training = method_of("training", Training.stop_training)
    measure_layers = method_of("costs", Costs.measure_layers)
    start_measuring = method_of("costs", Costs.start_measuring)
    search_result: SearchResult | None = attribute_of("found.result")
    search = method_of("found", Search.search)
    start_search = method_of("found", Search.start_search)
    use_candidate = method_of("found", Search.use_candidate)
    comparison: Comparison | None = attribute_of("run_history.comparison")
    results = value_of("run_history", Runs.results)
    runs = value_of("run_history", Runs.runs)
    journal_path = value_of("run_history", Runs.journal_path)
    show_elsewhere = method_of("run_history", Runs.show_elsewhere)
    show_results = method_of("run_history", Runs.show_results)
    rename_run = method_of("run_history", Runs.rename_run)
    pin_run = method_of("run_history", Runs.pin_run)
    delete_run = method_of("run_history", Runs.delete_run)
    update_runs = method_of("run_history", Runs.update_runs)
    restore_run = method_of("run_history", Runs.restore_run)
    compare_runs = method_of("run_history", Runs.compare_runs)
    worst_samples = method_of("differing", Differing.worst_samples)
    start_comparing = method_of("differing", Differing.start_comparing)
    all_results = method_of("run_history", Runs.all_results)
    outcome = method_of("run_history", Runs.outcome)
    export_onnx = method_of("run_history", Runs.export_onnx)
    save_model = method_of("run_history", Runs.save_model)

    # -- taking it away ------------------------------------------------------------------------------------------------

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
        found = names_of(self, self.inputs.arguments, self.axes, namespace, only="model")
        return draft_cell(self.model, self.captures.draft(fqn), found)

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
        found = names_of(self, self.inputs.arguments, self.axes, namespace)
        writes = isinstance(self.data, Generation)
        training = self.training.data() if self.state.recovery is not None else None
        given = (self.state, self.choices.inferred_axes, self.explained, found, self.run_history.float_name)
        return code_for(*given, writes=writes, training=training, training_done=self.training.ended_early())

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
            given: ``tracing_inputs``, ``calibration_inputs``, ``data``, ``metric``, ``decode``, ``training_data``,
                ``loss``, ``tokenizer`` and ``transform``, as for a new bench.

        Returns:
            A bench of the same kind as the one that was saved.

        Raises:
            DocumentError: the file is damaged, of a newer version, or no saved bench.
            InputError: it is of another model (the names that differ are listed), or the samples have other inputs.
        """
        return load_bench(cls, path, model, **given)

    @classmethod
    def of_error(cls, error: BaseException | int | None = None) -> Bench:
        """Open a bench on the model and the samples of a call that failed, to repair it there.

        Args:
            error: what the call raised, or the number of the notebook's cell that showed it; by default the last error
                shown of a call with a model and samples.

        Returns:
            A bench with the arguments of that call and its target; it opens on what cannot be captured, or on what the
            target lacks.

        Raises:
            InputError: nothing has failed, or not a call with a model and samples that the model takes.

        Example:
            >>> class Branch(torch.nn.Module):
            ...     def forward(self, x):
            ...         return x if x.sum() > 0 else -x
            >>> try:
            ...     pb.capture(Branch(), [torch.ones(2), torch.ones(3)])
            ... except pb.PrepbenchError as error:
            ...     bench = pb.Bench.of_error(error)
            >>> len(bench.summary().failures)
            1
        """
        return bench_of_error(cls, error)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with the diagram, choices, runs, layers and code; it needs no network.

        Args:
            path: of the file.

        Returns:
            Its path.
        """
        return report_bench(self, path)

    def refresh(self) -> None:
        """Update what depends on the notebook's variables, and notify the front ends."""
        self.changes()

    def summary(self) -> BenchSummary:
        """Return what front ends show; computed once per change."""
        count = self.changes.count
        if self._summary is None or self._summary[0] != count:
            self._summary = count, summarize(self, self.code())
        else:  # nothing else has changed but these
            selected, inspection = self.selected, self.inspecting.summary
            known = self._summary[1]
            if known.selected != selected or known.inspection is not inspection:
                self._summary = count, replace(known, selected=selected, inspection=inspection)
        return self._summary[1]

    def widget(self) -> Any:
        """The live widget (an ipywidgets ``VBox``): the steps, the diagram, the chart of all runs, the code."""
        return view("widgets.bench", "bench_widget", self)

    def _display_(self) -> Any:
        """Return the live view of a marimo notebook, which asks for it by this name."""
        return view("widgets.bench", "marimo_view", self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(view("widgets.bench", "bench_bundle", self))

    def __repr__(self) -> str:
        return text_of(self)


B = TypeVar("B", bound="Bench")

_NAMES = {"inputs": "tracing_inputs", "data_transform_fn": "transform"}
_GIVEN = (*SAMPLES, "data", "metric", "tokenizer", "data_transform_fn", "transform")


def bench_of_error(kind: Callable[..., B], error: BaseException | int | None) -> B:
    """Open a bench on the model and the samples of the call that raised an error; see :meth:`Bench.of_error`."""
    if type(error) is int:
        cell, error = error, repairable_error(error)
        if error is None:
            raise InputError(
                f"No failed call of cell [{cell}] is known: only the last few calls with a model and samples are kept, "
                "until the kernel restarts. Run the cell again, and press the button of its new card."
            )
    if error is None:
        error = getattr(sys, "last_value", None)
        if error is None or failed_call(error) is None:
            error = repairable_error() or error
    if not isinstance(error, BaseException):
        if error is not None:
            raise InputError(
                f"error must be what a call of prepbench raised, or the number of its cell, got {described(error)}."
            )
        raise InputError("No call has failed: give the error that a call of prepbench raised, as error=.")
    given = failed_call(error)
    if given is None:
        raise InputError(
            f"{type(error).__name__} was raised by no call with a model and its samples. Make the bench with both: "
            "pb.Bench(model, tracing_inputs=samples)."
        )
    model = next(given[name] for name in MODELS if isinstance(given.get(name), nn.Module))
    found = {_NAMES.get(name, name): _listed(given[name]) for name in _GIVEN if given.get(name) is not None}
    bench = kind(model, **found)
    if isinstance(target := given.get("deployment_settings"), DeploymentSettings):
        bench.set_targets([target])
    if isinstance(error, TargetError):
        bench.jobs.show_failure(error, "compile")
    return bench


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, torch.Tensor) else value  # one sample, as pb.capture takes it
