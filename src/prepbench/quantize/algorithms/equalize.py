"""Cross-layer equalisation of an ATen graph: neighbouring layers get weights of like ranges, channel by channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from prepbench.quantize.algorithms.constants import (
    Readers,
    bias_of,
    can_scale,
    consumers,
    keeps_channels_last,
    readers,
    scale_constant,
    value_of,
)
from prepbench.quantize.layer_nodes import LayerNode

aten = torch.ops.aten

# f(s * x) == s * f(x) for s > 0, element by element
_ELEMENTWISE = frozenset(
    [
        aten.relu.default,
        aten.relu_.default,
        aten.leaky_relu.default,
        aten.leaky_relu_.default,
        aten.prelu.default,
        aten.dropout.default,
        aten.clone.default,
        aten.contiguous.default,
    ]
)
# the same, over the places of one channel
_POOLS = frozenset(
    getattr(aten, f"{name}{rank}d").default
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool")
    for rank in (1, 2, 3)
)
_ROUNDS = 20
_ENOUGH = 1e-3
# How many standard deviations an output is taken to reach, for inputs of deviation 1.
_DEVIATIONS = 3.0


@dataclass
class _ScaledLayer:
    """A layer's weight with output channels first, not copied, and the scales found so far."""

    layer: LayerNode
    weight: torch.Tensor
    bias: fx.Node | None
    outputs: torch.Tensor
    inputs: torch.Tensor

    def scaled(self) -> torch.Tensor:
        return (self.weight * self.factor()).abs()

    def factor(self) -> torch.Tensor:
        return self.inputs * _along(self.outputs, 0, self.weight.ndim)

    def output_ranges(self, graph: fx.GraphModule) -> torch.Tensor:
        """The largest weight of each output channel, or of a weight that would make as large outputs as the bias does.

        Without the latter a channel of tiny weights and a large bias, as folded batch norms leave them, would be scaled
        up until its bias alone fills the range of the activations.
        """
        rows = self.scaled().flatten(1)
        ranges, norms = rows.amax(1), rows.norm(dim=1)
        live = norms > 0
        if self.bias is None or not bool(live.any()):
            return ranges
        share = (ranges[live] / norms[live]).median() / _DEVIATIONS
        return ranges.maximum(value_of(graph, self.bias).abs() * self.outputs * share)

    def input_ranges(self, count: int) -> torch.Tensor:
        if self.weight.shape[1] == count:
            return self.scaled().transpose(0, 1).flatten(1).amax(1)
        return self.scaled().reshape(count, -1).amax(1)  # depthwise: each group of outputs has one input

    def scale_inputs(self, scale: torch.Tensor) -> None:
        if self.weight.shape[1] == len(scale):
            self.inputs = self.inputs * _along(scale, 1, self.weight.ndim)
        else:
            each = scale.repeat_interleave(len(self.weight) // len(scale))
            self.inputs = self.inputs * _along(each, 0, self.weight.ndim)


@torch.no_grad()
def equalize(graph: fx.GraphModule, layers: Sequence[LayerNode]) -> list[str]:
    """Scale the output channels of a layer down and the same input channels of the next one up, so that ranges agree.

    Layers count as neighbours when only ReLU, leaky ReLU, PReLU, pooling or dropout lies between them, nothing else
    reads what they hand on, and no other layer has their weights. The scale of channel i is ``sqrt(r1[i] / r2[i])``
    for the largest absolute weights ``r1`` and ``r2`` of the two layers.

    Args:
        graph: batch norms are folded already; it is changed in place, the tensors that it shares with others are not.
        layers: the layers that may change, from :func:`prepbench.quantize.layer_nodes.layer_nodes`.

    Returns:
        The layers whose weights changed, in execution order.

    Example:
        >>> equalize(graph, layer_nodes(graph.graph, settings))  # doctest: +SKIP
        ['stem.conv', 'block.depthwise']

    Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
    Correction", 2019, section 4.1.
    """
    scaled = {layer.node: one for layer in layers if (one := _scaled_layer(graph, layer)) is not None}
    pairs = [(one, after) for one in scaled.values() if (after := _next(one, scaled)) is not None]
    for _ in range(_ROUNDS):
        steps = [_equalize_pair(graph, one, two) for one, two in pairs]
        if all(step < _ENOUGH for step in steps):
            break
    changed = [one for one in scaled.values() if _write(graph, one)]
    graph.recompile()
    return list(dict.fromkeys(one.layer.fqn for one in changed))


def _scaled_layer(graph: fx.GraphModule, layer: LayerNode) -> _ScaledLayer | None:
    if layer.is_transposed and layer.groups > 1:
        return None  # its output channels lie along two axes
    if not can_scale(graph, layer.weight) or readers(graph, layer.weight) != {layer.node}:
        return None
    try:
        bias = bias_of(Readers(graph), layer.node)
    except ValueError:
        return None
    weight = value_of(graph, layer.weight).transpose(0, layer.axis)
    ones = torch.ones(len(weight), device=weight.device)
    return _ScaledLayer(layer, weight, bias, ones, torch.ones([1] * weight.ndim, device=weight.device))


def _next(one: _ScaledLayer, others: dict[fx.Node, _ScaledLayer]) -> _ScaledLayer | None:
    """The neighbour that alone reads what the layer computes."""
    node = one.layer.node
    while len(consumers(node)) == 1:
        (user,) = consumers(node)
        after = others.get(user)
        if after is not None:
            return after if after.layer.input is node and _fit(one, after) else None
        passes = user.target in _ELEMENTWISE or (
            user.target in _POOLS if one.layer.is_convolution else keeps_channels_last(user)
        )
        if not passes or user.args[0] is not node:
            return None
        node = user
    return None


def _fit(one: _ScaledLayer, two: _ScaledLayer) -> bool:
    if one.layer.is_convolution != two.layer.is_convolution:
        return False  # channels become features in between
    channels, groups = len(one.weight), two.layer.groups
    return groups in (1, channels) and two.weight.shape[1] * groups == channels


def _equalize_pair(graph: fx.GraphModule, one: _ScaledLayer, two: _ScaledLayer) -> float:
    """Scale one pair; returns how far the largest scale is from 1."""
    r1 = one.output_ranges(graph)
    r2 = two.input_ranges(len(r1))
    used = (r1 > 0) & (r2 > 0) & r1.isfinite() & r2.isfinite()
    scale = torch.where(used, (r1 / r2).sqrt(), 1.0)
    scale = torch.where(scale.isfinite() & (scale > 0), scale, 1.0)
    step = float((scale - 1).abs().max())
    if step >= _ENOUGH:
        one.outputs = one.outputs / scale
        two.scale_inputs(scale)
    return step


def _write(graph: fx.GraphModule, one: _ScaledLayer) -> bool:
    if bool((one.inputs == 1).all()) and bool((one.outputs == 1).all()):
        return False
    layer = one.layer
    scale_constant(graph, layer.weight, one.factor().transpose(0, layer.axis), {layer.node})
    if one.bias is not None:
        scale_constant(graph, one.bias, one.outputs, {layer.node})
    return True


def _along(vector: torch.Tensor, axis: int, ndim: int) -> torch.Tensor:
    return vector.view([-1 if i == axis else 1 for i in range(ndim)])
