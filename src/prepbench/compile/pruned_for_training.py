"""Pruning what is to be trained: a smaller model, and where its weights stay zero."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from prepbench.compile.compile_log import CompileLog
from prepbench.compile.prune_stage import pruned_program, with_pruned
from prepbench.compile.pruned_model import PrunedModel
from prepbench.compile.stage_timer import StageTimer
from prepbench.compile.task import CompileTask
from prepbench.jobs import report_nothing
from prepbench.running.module_state import state_bytes
from prepbench.settings import PrunableLayer


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


def zeros_of(own: nn.Module, masks: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Where weights are zero, by the parameter (layers may share it, and adapters give it another name)."""
    parameters = dict(own.named_parameters(remove_duplicate=False))
    return {id(parameters[name]): mask == 0 for name, mask in masks.items()}


def pruned_as_graph(task: CompileTask, own: nn.Module, layers: Sequence[PrunableLayer]) -> SmallerModel:
    """Prune the graph of a model, and give a copy of the model its tensors.

    Args:
        task: of ``own``; pruning it was proven before.
        own: as it is.
        layers: what is decided for each layer.
    """
    pruned = pruned_program(task, layers, StageTimer(report_nothing, CompileLog(None, task.name)), is_plan=True)
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
    return SmallerModel(made, smaller, zeros_of(smaller, pruned.masks))


def why_no_code(found: PrunedModel) -> str:
    """Why training runs the graph; empty where the model's own code takes what is left."""
    return (
        f"channels that the model's own code counts are gone, so its graph is trained: {found.why_graph}"
        if (found.why_graph)
        else ""
    )
