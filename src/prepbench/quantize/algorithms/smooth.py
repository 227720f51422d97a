"""SmoothQuant on an ATen graph: move outlier channels of activations into the weights."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.algorithms.channel_groups import ChannelStatistics, measure_channels
from prepbench.quantize.algorithms.constants import (
    Constants,
    add_constant,
    bias_of,
    channels,
    consumers,
    keeps_channels_last,
    source_of,
    value_of,
    writes,
)
from prepbench.quantize.layer_nodes import CONVOLUTIONS, TRANSPOSED, WEIGHTED, LayerNode, parameter_of
from prepbench.settings.numbers import INT8

aten = torch.ops.aten

_LOOKUPS = frozenset([aten.embedding.default])
# Channels that were never active, or that no weight reads, count as this fraction of the largest one.
_FLOOR = 1e-3


@dataclass(frozen=True)
class SmoothingGain:
    """The minimal gain of smoothing.

    Attributes:
        folding: by how much the estimated noise power must fall where constants take the division.
        multiplying: the same where a multiplication at run time must earn its time.
    """

    folding: float
    multiplying: float = math.inf


WHEN_REQUESTED = SmoothingGain(folding=1.05, multiplying=2.0)
# Without being asked for, only what costs nothing when the model runs, and where channels stand out.
BY_DEFAULT = SmoothingGain(folding=2.0)
# Strengths to try where none is given.
_STRENGTHS = (0.5, 0.65, 0.8, 0.95)


@dataclass(frozen=True)
class _Group:
    """Layers that read the same activation of ``root``, possibly moved or sliced but with the same channels."""

    root: fx.Node
    layers: tuple[LayerNode, ...]


@torch.no_grad()
def smooth(
    graph: fx.GraphModule,
    layers: Sequence[LayerNode],
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    strength: float | None = None,
    min_gain: SmoothingGain = WHEN_REQUESTED,
) -> list[str]:
    """Divide the channels of activations by scales, and multiply the weights that read them by the same.

    Linear layers that read the same activation share its scales, ``max|x| ** strength / max|w| ** (1 - strength)``
    for each channel. The division goes into the constants that made the activation (weight and bias of a
    normalisation, or the output channels of a linear layer); where other nodes read the activation too, or no
    constant can take the division, one multiplication is inserted. Both only where the estimated quantization noise
    falls, with uint8 activations per tensor and int8 weights per channel. Convolutions are left alone, and layers
    that share a weight with another layer outside the group.

    Args:
        graph: changed in place, the tensors that it shares with others are not.
        layers: the layers that may change, from :func:`prepbench.quantize.layer_nodes.layer_nodes`.
        samples: calls of the graph, each run once; empty if no group can reach the minimal gain.
        progress: called after each sample; may raise to cancel, and the graph is then as it was.
        strength: how much of the difficulty moves from the activations (0) to the weights (1), SmoothQuant's alpha;
            None for the value of least estimated noise in each group.
        min_gain: the minimal gain of smoothing.

    Returns:
        The layers of ``layers`` whose weights changed, in execution order.

    Example:
        >>> smooth(graph, layer_nodes(graph.graph, settings), samples)  # doctest: +SKIP
        ['encoder.layers.0.self_attn.q_proj', 'encoder.layers.0.self_attn.k_proj']

    Source: Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for
    Large Language Models", 2023, equation 4.
    """
    constants = Constants(graph)
    groups = _groups(constants, layers)
    if min_gain.multiplying == math.inf:
        groups = [group for group in groups if _folds(constants, group) is not None]
    if not groups:
        return []
    inputs = {layer.input: -1 for group in groups for layer in group.layers}
    activations = measure_channels(graph, inputs, samples, "smooth", progress)
    strengths = _STRENGTHS if strength is None else (strength,)
    changed: set[fx.Node] = set()
    for group in groups:
        found = [activations[layer.input] for layer in group.layers]
        if all(activation is not None for activation in found):
            changed |= _smooth_group(constants, group, [a for a in found if a is not None], strengths, min_gain)
    graph.graph.lint()
    graph.recompile()
    return list(dict.fromkeys(layer.fqn for layer in layers if layer.node in changed))


def _groups(constants: Constants, layers: Sequence[LayerNode]) -> list[_Group]:
    by_root: dict[fx.Node, list[LayerNode]] = {}
    for layer in layers:
        fits = not layer.is_convolution and reads_as_input(layer.node, layer.input) and _is_float32(layer.input)
        if fits and constants.can_scale(layer.weight):
            by_root.setdefault(_root(layer.input), []).append(layer)
    groups = []
    for root, members in by_root.items():
        if _is_written(root):
            continue
        nodes = {layer.node for layer in members}
        free = [layer for layer in members if all(_may_leave(n) for n in constants.readers(layer.weight) - nodes)]
        # a weight that is left alone takes its other readers along
        while len(free) < len(members):
            members, nodes = free, {layer.node for layer in free}
            free = [layer for layer in members if all(_may_leave(n) for n in constants.readers(layer.weight) - nodes)]
        if members:
            groups.append(_Group(root, tuple(members)))
    return groups


def _may_leave(reader: fx.Node) -> bool:
    """Return whether a reader of a weight keeps the old one for free: a lookup stays float, the layer becomes int8."""
    return reader.target in _LOOKUPS


def _is_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32 and channels(node) is not None


def _root(node: fx.Node) -> fx.Node:
    while keeps_channels_last(node):
        assert isinstance(node.args[0], fx.Node)
        node = node.args[0]
    return node


def _is_written(node: fx.Node) -> bool:
    """Return whether the tensor, or a view of it, is changed in place, so that its value depends on the moment."""
    return any(writes(user) or (keeps_channels_last(user) and _is_written(user)) for user in node.users)


def _smooth_group(
    constants: Constants,
    group: _Group,
    activations: Sequence[ChannelStatistics],
    strengths: Sequence[float],
    min_gain: SmoothingGain,
) -> set[fx.Node]:
    """Scale one group if that helps; return the nodes whose weights changed."""
    graph = constants.graph
    weights = [value_of(graph, layer.weight).transpose(0, layer.axis).float() for layer in group.layers]
    each = [_scales(activations, weights, strength) for strength in strengths]
    scales = [scale for scale in each if scale is not None]
    if not scales:
        return set()
    scale = min(scales, key=lambda scale: _noise(activations, weights, scale))
    gain = _noise(activations, weights, torch.ones_like(scale)) / max(_noise(activations, weights, scale), 1e-30)
    members = {layer.node for layer in group.layers}
    found = _folds(constants, group)
    if gain < (min_gain.multiplying if found is None else min_gain.folding):
        return set()
    for layer in {source_of(layer.weight).target: layer for layer in group.layers}.values():
        factor = scale.view(1, -1).transpose(0, layer.axis)
        constants.scale(layer.weight, factor, members)
    if found is None:
        insert_products(graph, group.root, members, 1 / scale)
        return members
    for fold in found:
        ndim = value_of(graph, fold.constant).ndim
        factor = (1 / scale).view([-1 if axis == fold.axis else 1 for axis in range(ndim)])
        constants.scale(fold.constant, factor, {fold.reader})
    return members | {fold.reader for fold in found}


def _folds(constants: Constants, group: _Group) -> list[Fold] | None:
    """Return the constants that can take the division; None if there are none, or if others read the activation too."""
    count = channels(group.root)
    is_alone = is_closed(group.root, {layer.node for layer in group.layers})
    return folds(constants, group.root, count) if is_alone and count is not None else None


def _scales(
    activations: Sequence[ChannelStatistics], weights: Sequence[torch.Tensor], strength: float
) -> torch.Tensor | None:
    x = torch.stack([activation.largest for activation in activations]).amax(0)
    w = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    if not (float(x.max()) > 0 and float(w.max()) > 0 and bool(w.isfinite().all())):
        return None
    x, w = x.clamp_min(float(x.max()) * _FLOOR), w.clamp_min(float(w.max()) * _FLOOR)
    scale = x**strength / w ** (1 - strength)
    return scale if bool((scale.isfinite() & (scale > 0) & (1 / scale).isfinite()).all()) else None


def _noise(activations: Sequence[ChannelStatistics], weights: Sequence[torch.Tensor], scale: torch.Tensor) -> float:
    """Return the estimated power of the quantization noise of the layers, each relative to the power of its output.

    Rounding errors are assumed to be uniform and independent, and so are the channels.
    """
    total = 0.0
    for activation, weight in zip(activations, weights, strict=True):
        squares = weight.square()
        step = float((activation.high / scale).max() - (activation.low / scale).min()) / INT8.steps
        of_activations = step**2 / 12 * float((squares * scale**2).sum())
        steps = (weight * scale).abs().amax(1) / INT8.high
        of_weights = float(steps.square().sum()) / 12 * float((activation.power / scale**2).sum())
        signal = float((squares * activation.power).sum())
        total += (of_activations + of_weights) / signal if signal > 0 else 0.0
    return total


# Dividing the channels of an activation: in the constants that made it, or by a multiplication before its readers.


# operator -> indices of weight and bias
_NORMS = {aten.layer_norm.default: (2, 3), aten.rms_norm.default: (2,)}
# f(x / s) == f(x) / s for s > 0, element by element
_HOMOGENEOUS = frozenset(
    [aten.relu.default, aten.relu_.default, aten.leaky_relu.default, aten.leaky_relu_.default, aten.dropout.default]
)
_ADDITIONS = frozenset([aten.add.Tensor])
_PRODUCTS = frozenset([aten.mul.Tensor])


@dataclass(frozen=True)
class Fold:
    """Dividing an axis of a constant, for one reader, instead of dividing the reader's result."""

    constant: fx.Node
    reader: fx.Node
    axis: int


def is_closed(node: fx.Node, members: Collection[fx.Node]) -> bool:
    """Return whether only the input of these layers depends on the values of the node."""
    users = consumers(node)
    return bool(users) and all(_leads_in(node, user, members) for user in users)


def _leads_in(node: fx.Node, user: fx.Node, members: Collection[fx.Node]) -> bool:
    if user in members:
        return reads_as_input(user, node)
    return keeps_channels_last(user) and is_closed(user, members)


def reads_as_input(layer: fx.Node, node: fx.Node) -> bool:
    """Return whether a layer's node multiplies ``node`` by its weight, and reads it nowhere else."""
    return layer.args[WEIGHTED[layer.target][0]] is node and sum(argument is node for argument in layer.args) == 1


def folds(constants: Constants, node: fx.Node, count: int) -> list[Fold] | None:
    """Return the constants to divide so that the node's result is divided along the last axis; None if impossible."""
    if node.op != "call_function" or channels(node) != count:
        return None
    target: Any = node.target
    if target in _HOMOGENEOUS or keeps_channels_last(node):
        return _folds_of_input(constants, node.args[0], count)
    if target in _NORMS:
        return _folds_of_norm(constants, node, count)
    if target in WEIGHTED and target not in CONVOLUTIONS | TRANSPOSED:
        return _folds_of_linear(constants, node)
    if target in _ADDITIONS | _PRODUCTS:
        each = [_folds_of_operand(constants, node, operand, count) for operand in node.args[:2]]
        if target in _PRODUCTS:
            return next((found for found in each if found is not None), None)
        one, two = each
        return None if one is None or two is None else one + two
    return None


def _folds_of_input(constants: Constants, node: object, count: int) -> list[Fold] | None:
    if not isinstance(node, fx.Node) or len(consumers(node)) != 1:
        return None
    return folds(constants, node, count)


def _folds_of_operand(constants: Constants, node: fx.Node, operand: object, count: int) -> list[Fold] | None:
    if not isinstance(operand, fx.Node) or sum(argument is operand for argument in node.args) != 1:
        return None
    if operand.op == "get_attr":
        return _folds_of_vector(constants, operand, node, count)
    return _folds_of_input(constants, operand, count)


def _folds_of_vector(constants: Constants, constant: object, reader: fx.Node, count: int) -> list[Fold] | None:
    if not isinstance(constant, fx.Node) or constant.op != "get_attr" or not constants.can_scale(constant):
        return None
    shape = value_of(constants.graph, constant).shape
    return [Fold(constant, reader, len(shape) - 1)] if shape[-1:] == (count,) else None


def _folds_of_norm(constants: Constants, node: fx.Node, count: int) -> list[Fold] | None:
    shape = node.args[1]
    if not isinstance(shape, list | tuple) or len(shape) != 1:
        return None
    weight_index, *rest = _NORMS[node.target]  # type: ignore[index]
    weight = node.args[weight_index] if len(node.args) > weight_index else None
    biases = [node.args[i] for i in rest if len(node.args) > i and node.args[i] is not None]
    each = [_folds_of_vector(constants, constant, node, count) for constant in (weight, *biases)]
    return None if any(found is None for found in each) else [fold for found in each if found for fold in found]


def _folds_of_linear(constants: Constants, node: fx.Node) -> list[Fold] | None:
    _, weight_index, axis = WEIGHTED[node.target]
    weight = node.args[weight_index]
    if not isinstance(weight, fx.Node) or parameter_of(weight) is None or not constants.can_scale(weight):
        return None
    if value_of(constants.graph, weight).ndim != 2 or constants.readers(weight) != {node}:
        return None
    try:
        bias = bias_of(constants, node)
    except ValueError:
        return None
    return [Fold(weight, node, axis)] + ([Fold(bias, node, 0)] if bias is not None else [])


def insert_products(graph: fx.GraphModule, root: fx.Node, members: Collection[fx.Node], factor: torch.Tensor) -> None:
    """Multiply the activation of ``root`` by ``factor`` for the members only, as early as possible."""
    points = _points(root, members)
    with graph.graph.inserting_before(min(user for _, users in points for user in users)):
        constant = add_constant(graph, "_smooth_scale", factor)
    constant.meta["val"] = root.meta["val"].new_empty(factor.shape)
    for node, users in points:
        with graph.graph.inserting_before(min(users)):
            product = graph.graph.call_function(aten.mul.Tensor, (node, constant))
        served = users[0]
        while served not in members:
            served = consumers(served)[0]
        product.meta = {**served.meta, "val": node.meta["val"], "tensor_meta": node.meta.get("tensor_meta")}
        for user in users:
            user.replace_input_with(node, product)


def _points(node: fx.Node, members: Collection[fx.Node]) -> list[tuple[fx.Node, list[fx.Node]]]:
    """Return the nodes to multiply, each with those of its users that then read the product."""
    users = consumers(node)
    inside = [user for user in users if _leads_in(node, user, members)]
    points = [(node, inside)] if inside else []
    for user in users:
        if user not in inside and user not in members and keeps_channels_last(user):
            points += _points(user, members)
    return points
