"""Values whose channels may be scaled together, with their producers and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from prepbench.quantize.algorithms.constants import Constants, bias_of, consumers, keeps_channels_last, value_of
from prepbench.quantize.layer_nodes import LayerNode, parameter_of

aten = torch.ops.aten

_ADDITIONS = frozenset([aten.add.Tensor, aten.add_.Tensor])


@dataclass(frozen=True)
class ChannelGroup:
    """Values with the same channels.

    Attributes:
        count: how many channels they have.
        producers: the layers that make them.
        consumers: the layers that alone read them.
        axes: the axis of the channels in each value, from the end.
    """

    count: int
    producers: tuple[LayerNode, ...]
    consumers: tuple[LayerNode, ...]
    axes: Mapping[fx.Node, int]


def channel_groups(graph: fx.GraphModule, layers: Sequence[LayerNode]) -> list[ChannelGroup]:
    """Return the groups whose channels can be scaled by any positive factors without any other effect.

    Producers are divided by the factors, consumers multiplied. A group contains only operators that commute with
    such factors: ReLU, leaky ReLU, PReLU, pooling, dropout, means over places, and sums of two values with the same
    channels. Layers that are called several times, or that share their weight with something else, are in no group.

    Args:
        graph: batch norms are folded already.
        layers: those that may change.

    Returns:
        The groups in execution order.
    """
    constants = Constants(graph)
    scalable = {layer.node: layer for layer in layers if _can_scale(constants, layer)}
    groups: list[ChannelGroup] = []
    seen: set[fx.Node] = set()
    for node in scalable:
        if node not in seen:
            search = _Search(scalable, scalable[node])
            seen.update(search.axes)
            if search.is_closed and search.consumers:
                groups.append(search.group)
    return groups


def float_weight(graph: fx.GraphModule, layer: LayerNode) -> torch.Tensor:
    """Return a layer's weight in float32, also where it is stored in half precision and cast."""
    parameter = parameter_of(layer.weight)
    assert parameter is not None
    return value_of(graph, parameter).float()


def _can_scale(constants: Constants, layer: LayerNode) -> bool:
    parameter = parameter_of(layer.weight)
    if parameter is None or (layer.is_transposed and layer.groups > 1):
        return False  # the latter has its output channels along two axes
    if constants.readers(layer.weight) != {layer.node} or not constants.can_scale(layer.weight):
        return False
    try:
        bias_of(constants, layer.node)
    except ValueError:
        return False
    return value_of(constants.graph, parameter).ndim > 1


class _Search:
    """Collects everything that is connected with a layer's output through these operators."""

    def __init__(self, layers: Mapping[fx.Node, LayerNode], first: LayerNode) -> None:
        self._layers = layers
        self.count = int(first.node.meta["val"].shape[first.channels])
        self.axes: dict[fx.Node, int] = {}
        self.consumers: list[LayerNode] = []
        self.producers: list[LayerNode] = []
        self.is_closed = True
        left = [(first.node, first.channels)]
        while left:
            node, axis = left.pop()
            if node in self.axes:
                self.is_closed &= self.axes[node] == axis
                continue
            self.axes[node] = axis
            left += [*self._before(node, axis), *self._after(node, axis)]

    @property
    def group(self) -> ChannelGroup:
        return ChannelGroup(self.count, tuple(self.producers), tuple(self.consumers), dict(self.axes))

    def _before(self, node: fx.Node, axis: int) -> list[tuple[fx.Node, int]]:
        """Return the values that a value is computed from, with their channel axes."""
        made = self._layers.get(node)
        if made is not None and made.channels == axis:
            self.producers.append(made)
            return []
        if node.op == "call_function" and node.target in _ADDITIONS:
            operands = [one for one in node.args[:2] if isinstance(one, fx.Node) and _alike(one, node)]
            if len(operands) == 2:
                return [(one, axis) for one in operands]
        source = node.args[0] if node.op == "call_function" and node.args else None
        found = axis_before(node, source, axis, self.count) if isinstance(source, fx.Node) else None
        if found is None:
            self.is_closed = False
            return []
        assert isinstance(source, fx.Node)
        return [(source, found)]

    def _after(self, node: fx.Node, axis: int) -> list[tuple[fx.Node, int]]:
        """Return the values that are computed from a value, with their channel axes."""
        found = []
        for user in consumers(node):
            layer = self._layers.get(user)
            if layer is not None and layer.input is node and sum(one is node for one in user.args) == 1:
                if input_axis(layer) == axis:
                    self.consumers.append(layer)
                    continue
            elif user.target in _ADDITIONS and _alike(node, user):
                found.append((user, axis))
                continue
            elif (after := axis_after(node, user, axis, self.count)) is not None:
                found.append((user, after))
                continue
            self.is_closed = False
        return found


def input_axis(layer: LayerNode) -> int:
    """Return the axis of a layer's input that counts its channels, from the end."""
    return 1 - layer.weight.meta["val"].ndim if layer.is_convolution else -1


def _alike(one: fx.Node, other: fx.Node) -> bool:
    """Return whether two values have the same shape, so that neither is broadcast."""
    values = [node.meta.get("val") for node in (one, other)]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    shapes = [[str(size) for size in value.shape] for value in values]  # type: ignore[union-attr]
    return shapes[0] == shapes[1]


# Operators that keep the channels of a value apart and commute with positive factors for them.


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
# the same, over the places of one channel -> along how many axes these lie
_POOLS = {
    getattr(aten, f"{name}{rank}d").default: rank
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool")
    for rank in (1, 2, 3)
}
_FLATTENS = frozenset([aten.flatten.using_ints, aten.view.default, aten.reshape.default])


def axis_after(source: fx.Node, node: fx.Node, axis: int, count: int) -> int | None:
    """Return the axis of ``source``'s channels in the result of ``node``; None where they do not stay separate."""
    if node.op != "call_function" or not node.args or node.args[0] is not source:
        return None
    if node.target in _ELEMENTWISE:
        return axis if sum(one is source for one in node.args) == 1 else None
    if axis == -1:
        return -1 if keeps_channels_last(node) else None
    value, ranks = node.meta.get("val"), -1 - axis
    if node.target in _POOLS:
        return axis if _POOLS[node.target] == ranks else None
    if not isinstance(value, torch.Tensor):
        return None
    if node.target is aten.mean.dim:
        dims, keeps = node.args[1], len(node.args) > 2 and bool(node.args[2])
        if not isinstance(dims, list | tuple):
            return None
        found = {dim if isinstance(dim, int) and dim < 0 else _from_end(source, dim) for dim in dims}
        if not found <= set(range(-ranks, 0)):
            return None
        return axis if keeps else axis + len(found)
    shape = source.meta["val"].shape
    is_flat = value.ndim == len(shape) - ranks and value.shape[-1] == count
    ones = all(isinstance(size, int) and size == 1 for size in shape[axis + 1 :])
    return -1 if node.target in _FLATTENS and is_flat and ones else None


def axis_before(node: fx.Node, source: fx.Node, axis: int, count: int) -> int | None:
    """Return the axis in ``source`` of the channels of ``node``'s result."""
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    for other in range(-1, -1 - value.ndim, -1):
        if value.shape[other] == count and axis_after(source, node, other, count) == axis:
            return other
    return None


def _from_end(node: fx.Node, dim: object) -> int:
    assert isinstance(dim, int)
    return dim - int(node.meta["val"].ndim)
