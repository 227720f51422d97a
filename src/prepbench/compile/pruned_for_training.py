"""Pruning what is to be trained: a smaller model, and where its weights stay zero."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from prepbench.compile.compile_log import CompileLog
from prepbench.compile.prune_stage import pruned_program, with_pruned
from prepbench.compile.pruned_model import PrunedGraph, PrunedModel, pruned_model
from prepbench.compile.stage_timer import StageTimer
from prepbench.compile.task import CompileTask
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.running.module_state import state_bytes
from prepbench.settings import LayerPruningSettings, PrunableLayer, PruningSettings, prunable_layers


@dataclass(frozen=True)
class SmallerModel:
    """A model whose graph was pruned, because its own code does not take fewer channels.

    Attributes:
        task: with the pruned program.
        own: has the tensors of that program under the names of the model; its code does not run.
        zeros: where weights are zero, by the parameter.
    """

    task: CompileTask
    own: nn.Module
    zeros: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Unprepared:
    """A model before it is prepared.

    Attributes:
        model: as it was before it was pruned.
        layers: what is decided for each layer; empty where nothing is pruned.
        pruned: what came of it.
        calibration: samples that decide what goes.
        graph: which was pruned before, and whose weights are trained.
    """

    model: nn.Module
    layers: Sequence[PrunableLayer] = ()
    pruned: PrunedModel | None = None
    calibration: Sequence[Sample] = ()
    graph: PrunedGraph | None = None

    @classmethod
    def of(
        cls,
        model: nn.Module,
        settings: PruningSettings | None,
        rules: Mapping[str, LayerPruningSettings] | None,
        samples: list[Sample],
        calibration: Sequence[Sample],
        progress: ProgressCallback,
    ) -> Unprepared:
        """Prune a model, unless that is done."""
        if isinstance(model, PrunedGraph):
            origin = model.origin
            return cls(origin.model, origin.rows, origin.pruned, origin.calibration, model)
        if settings is None:
            return cls(model)
        layers = prunable_layers(model, settings, rules)
        return cls(model, layers, pruned_model(model, layers, samples, calibration, progress), calibration)


@torch.no_grad()
def _take_weights(own: nn.Module, graph: PrunedGraph) -> None:
    """Give a pruned model the weights that its graph has now."""
    held = {**dict(own.named_parameters(remove_duplicate=False)), **dict(own.named_buffers(remove_duplicate=False))}
    for name, value in graph.graph.state_dict(keep_vars=True).items():
        if name in held:
            held[name].copy_(value)


def zeros_of(own: nn.Module, masks: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Where weights are zero, by the parameter (layers may share it, and adapters give it another name)."""
    parameters = dict(own.named_parameters(remove_duplicate=False))
    return {id(parameters[name]): mask == 0 for name, mask in masks.items()}


def pruned_as_graph(task: CompileTask, own: nn.Module, before: Unprepared) -> SmallerModel:
    """Prune the graph of a model, and give a copy of the model its tensors.

    Args:
        task: of ``own``; pruning it was proven before.
        own: as it is.
        before: what is decided for each layer.
    """
    deciding = replace(task, calibration=tuple(before.calibration))
    pruned = pruned_program(
        deciding, before.layers, StageTimer(report_nothing, CompileLog(None, task.name)), is_plan=True
    )
    made = replace(with_pruned(task, pruned), dense_bytes=state_bytes(own))
    smaller = copy.deepcopy(own)
    modules = dict(smaller.named_modules(remove_duplicate=False))
    tensors: dict[int, torch.Tensor] = {}
    for name, tensor in {**pruned.program.state_dict, **pruned.program.constants}.items():
        holder, _, last = name.rpartition(".")
        module = modules.get(holder)
        if module is None or not isinstance(tensor, torch.Tensor):
            continue
        old = module._parameters.get(last)
        if old is not None:
            value = tensors.setdefault(id(tensor), nn.Parameter(tensor.detach().clone(), old.requires_grad))
            module._parameters[last] = value if isinstance(value, nn.Parameter) else nn.Parameter(value)
        elif last in module._buffers:
            module._buffers[last] = tensors.setdefault(id(tensor), tensor.detach().clone())
    if before.graph is not None:
        _take_weights(smaller, before.graph)
    return SmallerModel(made, smaller, zeros_of(smaller, pruned.masks))


def why_no_code(found: PrunedModel) -> str:
    """Why training runs the graph; empty where the model's own code takes what is left."""
    return (
        f"channels that the model's own code counts are gone, so its graph is trained: {found.why_graph}"
        if (found.why_graph)
        else ""
    )
