"""Passes that change weights: cross-layer equalization, and batch norms folded into the layer before them."""

from __future__ import annotations

import copy

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from prepbench.errors import PreparationError
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import called, has_own_parameters, only_user, remove_module, replace_module
from prepbench.prepare.report import Change

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
# f(s * x) == s * f(x) for s > 0
_HOMOGENEOUS = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
                nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d)  # fmt: skip
_ROUNDS = 20


def equalize_(model: PreparedModel) -> list[Change]:
    """Scale the output channels of a layer down and the same input channels of the next layer up, to balance ranges.

    Layers count as neighbours when nothing but ReLU, leaky ReLU, pooling, identity or dropout lies between them. The
    scale of channel i is ``sqrt(r1[i] / r2[i])`` for the largest absolute weights ``r1`` and ``r2`` of the two layers.

    Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
    Correction", 2019, section 4.1.
    """
    pairs = _pairs(model)
    for name in sorted({name for pair in pairs for name in pair}):
        replace_module(model, name, copy.deepcopy(model.get_submodule(name)))
    for _ in range(_ROUNDS):
        steps = [_equalize(model.get_submodule(one), model.get_submodule(two)) for one, two in pairs]
        if all(step < 1e-3 for step in steps):
            break
    return [
        Change(
            "weights equalised",
            "",
            one,
            type(model.get_submodule(one)).__name__,
            one,
            f"its output channels were scaled so that their weights have the range of those of {two}",
        )
        for one, two in pairs
    ]


def _pairs(model: PreparedModel) -> list[tuple[str, str]]:
    pairs = []
    for node in model.graph.nodes:
        if type(called(model, node)) not in _LAYERS:
            continue
        after = only_user(node)
        while after is not None and type(called(model, after)) in _HOMOGENEOUS:
            after = only_user(after)
        if after is None or type(called(model, after)) not in _LAYERS:
            continue
        one, two = str(node.target), str(after.target)
        if one != two and _fit(model, node, after) and all(has_own_parameters(model, name) for name in (one, two)):
            pairs.append((one, two))
    return pairs


def _fit(model: PreparedModel, first: fx.Node, second: fx.Node) -> bool:
    one, two = called(model, first), called(model, second)
    if isinstance(one, nn.Linear) != isinstance(two, nn.Linear):
        return False  # a reshape in between turns channels into features
    if isinstance(one, nn.Linear):
        return bool(one.out_features == getattr(two, "in_features", None))
    assert one is not None
    assert two is not None
    return one.out_channels == two.in_channels and two.groups in (1, two.in_channels)


@torch.no_grad()
def _equalize(one: nn.Module, two: nn.Module) -> float:
    """Scale one pair; return how far the largest scale is from 1."""
    first, second = _weight(one), _weight(two)
    depthwise = getattr(two, "groups", 1) > 1
    r1 = first.abs().flatten(1).amax(1)
    r2 = (second if depthwise else second.transpose(0, 1)).abs().flatten(1).amax(1)
    used = (r1 > 0) & (r2 > 0)
    scale = torch.where(used, (r1 / r2.clamp_min(1e-12)).sqrt(), torch.ones_like(r1))
    first /= scale.view([-1] + [1] * (first.dim() - 1))
    if isinstance(one.bias, torch.Tensor):
        one.bias /= scale
    second *= scale.view(([-1, 1] if depthwise else [1, -1]) + [1] * (second.dim() - 2))
    return float((scale - 1).abs().max())


def _weight(layer: nn.Module) -> torch.Tensor:
    assert isinstance(layer.weight, torch.Tensor)
    return layer.weight


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
