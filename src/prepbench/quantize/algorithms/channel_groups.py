"""Values whose channels may be scaled together, with their producers and consumers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize.algorithms.constants import Constants, bias_of, consumers, keeps_channels_last, value_of
from prepbench.quantize.calibration import run_sample
from prepbench.quantize.layer_nodes import LayerNode, parameter_of
from prepbench.quantize.statistics import preserved_buffers

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


# Ranges and powers of activation channels on samples, from which scales are chosen.


@dataclass(frozen=True)
class ChannelStatistics:
    """The statistics of an activation's channels from one pass over the samples.

    Attributes:
        low: the smallest value of each channel, or zero if that is smaller.
        high: the largest value of each channel, or zero if that is larger.
        power: the mean of the squares of each channel.
    """

    low: torch.Tensor
    high: torch.Tensor
    power: torch.Tensor

    @property
    def largest(self) -> torch.Tensor:
        """Return the largest absolute value of each channel."""
        return self.high.maximum(-self.low)


def measure_channels(
    graph: fx.GraphModule,
    axes: Mapping[fx.Node, int],
    samples: Sequence[Sample],
    stage: str,
    progress: ProgressCallback,
    known: MutableMapping[tuple[Any, ...], ChannelStatistics | None] | None = None,
) -> dict[fx.Node, ChannelStatistics | None]:
    """Run the samples and measure the results of nodes; None for a result without values, or with infinite ones.

    Args:
        graph: it is as before afterwards, with the buffers that it writes to.
        axes: of the channels, by node.
        samples: calls of the graph.
        stage: the stage in progress reports.
        progress: called after each sample; may raise to cancel.
        known: earlier measurements of the same graph and samples, by the name of the node and the axis; new ones are
            added. The samples run only where one is missing.

    Raises:
        CalibrationError: the graph cannot run on a sample.
    """
    known = {} if known is None else known
    found = {node: (node.name, axis) for node, axis in axes.items()}
    left = {node: axes[node] for node, key in found.items() if key not in known}
    if left:
        records = {node: _ChannelRecorder(axis) for node, axis in left.items()}
        with preserved_buffers(graph), _recorders(graph, records):
            progress(Progress(stage, 0, len(samples)))
            for done, sample in enumerate(samples, start=1):
                run_sample(graph, graph.forward, sample)  # without the hook that wants the sizes of the tracing inputs
                progress(Progress(stage, done, len(samples)))
        known.update({found[node]: _statistics(record) for node, record in records.items()})
    return {node: known[key] for node, key in found.items()}


@contextmanager
def _recorders(graph: fx.GraphModule, records: Mapping[fx.Node, _ChannelRecorder]) -> Iterator[None]:
    """Insert modules that see the values of nodes; the graph is restored afterwards, also after an error."""
    added = []
    try:
        for number, (node, record) in enumerate(records.items()):
            graph.add_submodule(f"_channels_{number}", record)
            after = node if node.op != "placeholder" else _last_placeholder(graph)
            with graph.graph.inserting_after(after):
                added.append(graph.graph.call_module(f"_channels_{number}", (node,)))
        graph.recompile()
        yield
    finally:
        for added_node in added:
            graph.graph.erase_node(added_node)
            graph.delete_submodule(str(added_node.target))
        graph.recompile()


def _last_placeholder(graph: fx.GraphModule) -> fx.Node:
    placeholders: list[fx.Node] = [node for node in graph.graph.nodes if node.op == "placeholder"]
    return placeholders[-1]


def _statistics(record: _ChannelRecorder) -> ChannelStatistics | None:
    if record.low is None or record.high is None or record.squares is None:
        return None
    if not bool((record.low.isfinite() & record.high.isfinite()).all()):
        return None
    power = (record.squares / record.count).to(record.low.dtype)
    return ChannelStatistics(record.low.clamp_max(0), record.high.clamp_min(0), power)


class _ChannelRecorder(nn.Module):
    """Passes a tensor on; records the smallest and largest value of each channel, and the sum of the squares."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.low: torch.Tensor | None = None
        self.high: torch.Tensor | None = None
        self.squares: torch.Tensor | None = None
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().movedim(self.axis, -1).reshape(-1, x.shape[self.axis])
        if len(rows):
            low, high, squares = rows.amin(0), rows.amax(0), rows.square().sum(0, dtype=torch.float64)
            self.low = low if self.low is None else self.low.minimum(low)
            self.high = high if self.high is None else self.high.maximum(high)
            self.squares = squares if self.squares is None else self.squares + squares
            self.count += len(rows)
        return x
