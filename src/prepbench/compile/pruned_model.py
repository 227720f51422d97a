"""``pb.prune``: a smaller model in PyTorch, to inspect, train or compile."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from prepbench._torch_compat import pytree
from prepbench.adapt.prune import PrunedLayer, in_own_classes
from prepbench.calls.call_spec import CallSpec
from prepbench.checks import check_progress, check_type
from prepbench.compile.captured import captured_task, pruned_program, with_pruned
from prepbench.compile.compile_log import CompileLog, StageTimer
from prepbench.compile.request import CompileRequest, check_pruning, check_weights
from prepbench.compile.task import CompileTask
from prepbench.errors import sentence
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.objects.compare import ROUNDED, difference
from prepbench.progress_bar import shows_progress
from prepbench.running.unchanged import run
from prepbench.settings import (
    CompileOptions,
    EagerDeployment,
    LayerPruningSettings,
    PrunableLayer,
    PruningSettings,
    prunable_layers,
)


@dataclass(frozen=True)
class PrunedModel:
    """A pruned model in PyTorch.

    Attributes:
        model: of the user's own class with smaller weights, or, where its code does not take fewer channels, a module
            that runs the pruned graph.
        layers: the outcome for each layer.
        why_graph: why the model is not of its own class; empty where it is.
        masks: ones for weights that stay, by the name of the parameter, where single weights were removed.
    """

    model: nn.Module
    layers: tuple[PrunedLayer, ...]
    why_graph: str = ""
    masks: Mapping[str, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def sparsity(self) -> dict[str, float]:
        """The share of each layer's parameters that is removed or zero."""
        return {row.fqn: row.sparsity for row in self.layers}

    def __repr__(self) -> str:
        form = f"a graph, because {self.why_graph}" if self.why_graph else f"a {type(self.model).__name__}"
        return "\n".join([f"PrunedModel: {form}", *(f"  {row.fqn}: {row.summary}" for row in self.layers)])


@dataclass(frozen=True)
class Origin:
    """The origin of a pruned graph, from which it is prepared for training."""

    model: nn.Module
    rows: tuple[PrunableLayer, ...]
    calibration: tuple[Sample, ...]
    pruned: PrunedModel


class PrunedGraph(nn.Module):
    """Runs a pruned program with the call and the parameter names of the captured model.

    It computes what the model does in evaluation mode, in training mode as well.

    Attributes:
        origin: the data that it was made from.
    """

    origin: Origin

    def __init__(
        self, program: torch.export.ExportedProgram, call_spec: CallSpec, out_spec: pytree.TreeSpec | None
    ) -> None:
        super().__init__()
        self.body = program.module(check_guards=False)  # an fx.GraphModule of it has a `graph` of its own
        self._call_spec, self._out_spec = call_spec, out_spec

    def train(self, mode: bool = True) -> PrunedGraph:
        """Set the mode, which has no effect.

        Args:
            mode: True for training, False for evaluation.

        Returns:
            The model itself.
        """
        self.training = mode
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        return self._call_spec.result(self.body(*self._call_spec.flatten(args, kwargs)), self._out_spec)


@shows_progress("prune")
def prune(
    model: nn.Module,
    inputs: Iterable[Any],
    pruning_settings: PruningSettings,
    layer_pruning_settings: Mapping[str, LayerPruningSettings] | None = None,
    *,
    calibration_inputs: Iterable[Any] | None = None,
    progress: ProgressCallback = report_nothing,
) -> PrunedModel:
    """Prune a model and stay in PyTorch. The model itself is never changed.

    Training fills masked weights again; :func:`prepbench.trainable` with the same settings keeps them at zero.

    Args:
        model: the model; it is pruned in evaluation mode.
        inputs: samples whose sizes differ in the dims to make dynamic.
        pruning_settings: the weights to remove.
        layer_pruning_settings: overrides by FQN, glob, ``re:`` pattern or class name.
        calibration_inputs: representative samples, for scores and thresholds that look at activations.
        progress: receives a :class:`prepbench.Progress` for each step; may raise to stop.

    Returns:
        The smaller model, and what was removed of each layer.

    Raises:
        InputError: the samples do not fit the model or each other, or its weights have no data.
        SettingsError: as for ``compile_model``; or nothing would be pruned.
        CaptureError: the model cannot be captured as one graph.
        PreparationError: the smaller model does not compute what the one with zeros computes.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> found = prune(net, [torch.randn(2, 4), torch.randn(5, 4)], PruningSettings(mask_type="channels"))
        >>> found.model[0], found.layers[0].removed_channels
        (Linear(in_features=4, out_features=4, bias=True), 4)
    """
    check_type("model", model, nn.Module, "Give the module to prune.")
    check_type("pruning_settings", pruning_settings, PruningSettings, "Write pb.PruningSettings().")
    check_pruning(pruning_settings, layer_pruning_settings, calibration_inputs)
    check_progress(progress)
    check_weights(model)
    request = CompileRequest(
        model=model, tracing_inputs=inputs, calibration_inputs=calibration_inputs, samples_argument="inputs"
    )
    return pruned_model(request, prunable_layers(model, pruning_settings, layer_pruning_settings), progress)


def pruned_model(request: CompileRequest, rows: Sequence[PrunableLayer], progress: ProgressCallback) -> PrunedModel:
    """Return :func:`prune` for a request with checked arguments, and the decision for each layer."""
    stage = captured_task(
        replace(request, deployment_settings=EagerDeployment(), compile_options=CompileOptions()), progress
    )
    task = stage.task
    assert isinstance(task, CompileTask)  # with fullgraph, what cannot be captured is an error
    out_spec = task.captured.program.call_spec.out_spec
    pruned = pruned_program(task, rows, StageTimer(progress, CompileLog(None, task.name)), is_plan=False)
    task = with_pruned(task, pruned)
    graph = PrunedGraph(task.program, task.call_spec, out_spec)
    own, why = _own_form(stage.model, task, graph)
    found = PrunedModel(graph if own is None else own, task.pruned, why, pruned.masks)
    if own is None:
        graph.origin = Origin(copy.deepcopy(stage.model), tuple(rows), task.calibration, found)
    return found


def _own_form(model: nn.Module, task: CompileTask, graph: PrunedGraph) -> tuple[nn.Module | None, str]:
    """Return the model in its own class, if that equals the pruned graph; else the reason why not."""
    try:
        made = in_own_classes(model, task.program)
        for sample in task.captured.samples[:2]:
            expected, got = (run(each, sample, each) for each in (graph, made))
            found = difference(expected, got, ROUNDED)
            if not found.equal:
                return None, f"its code computes something else with fewer channels: {found.text}"
    except Exception as error:  # of the user's code
        raise_if_internal(error)
        return None, f"its code does not take fewer channels: {sentence(error)}"
    return made, ""
