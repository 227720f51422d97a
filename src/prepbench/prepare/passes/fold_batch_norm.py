"""Fold batch normalisation into the convolution or linear layer in front of it."""

from __future__ import annotations

import copy

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from prepbench.errors import PreparationError
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import called, has_own_parameters, only_user, remove_module, replace_module
from prepbench.prepare.report import Change

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fold_batch_norm_(model: PreparedModel) -> list[Change]:
    """Fold each batch norm into the convolution or linear layer that it directly follows, unless that is shared.

    The layer becomes a new one with other weights; the original model keeps its own.

    Raises:
        PreparationError: the model is in training mode, where batch norm uses the statistics of the batch.
    """
    if model.training:
        raise PreparationError("Batch norm can be folded in evaluation mode only: call model.eval() first.")
    changes = []
    nodes: list[fx.Node] = list(model.graph.nodes)
    for node in nodes:
        norm = called(model, node)
        before = node.args[0] if norm is not None and node.args else None
        layer = called(model, before)
        if not isinstance(norm, _NORMS) or not isinstance(before, fx.Node) or only_user(before) is not node:
            continue
        folded = _folded(layer, norm, before)
        if folded is None or not has_own_parameters(model, str(before.target)):
            continue
        name, target = str(node.target), str(before.target)
        replace_module(model, target, folded)
        why, source = f"the weights of {target} now do what {name} did", node.meta.get("source")
        changes.append(Change("batch norm folded", before.name, target, type(layer).__name__, name, why, source))
        node.replace_all_uses_with(before)
        model.graph.erase_node(node)
        remove_module(model, name)
    return changes


def _folded(layer: nn.Module | None, norm: _Norm, node: fx.Node) -> nn.Module | None:
    if norm.running_mean is None or norm.training or _hooked(norm) or layer is None or _hooked(layer):
        return None
    if isinstance(layer, _CONVOLUTIONS):
        transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d)
        if transposed and layer.groups > 1:
            return None  # the fused weight of a grouped transposed convolution has its channels in another order
        folded: nn.Module = fuse_conv_bn_eval(copy.deepcopy(layer), copy.deepcopy(norm), transposed)
        return _trainable(folded)
    if isinstance(layer, nn.Linear) and node.meta.get("rank") == 2:
        # with more dims batch norm takes the second one for its channels, a linear layer the last one
        return _trainable(fuse_linear_bn_eval(copy.deepcopy(layer), copy.deepcopy(norm)))
    return None


def _trainable(layer: nn.Module) -> nn.Module:
    for parameter in layer.parameters():
        parameter.requires_grad_(True)
    return layer


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or torch.nn.utils.parametrize.is_parametrized(module)
    )
