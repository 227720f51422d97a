"""SmoothQuant on an ATen graph: outlier channels of activations become larger weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.quantize.algorithms.constants import (
    add_constant,
    bias_of,
    can_scale,
    channels,
    consumers,
    keeps_channels_last,
    readers,
    scale_constant,
    value_of,
    writes,
)
from prepbench.quantize.layer_nodes import LayerNode

aten = torch.ops.aten

# operator -> (index of the weight, axis of the weight that counts output channels)
_LINEAR = {
    aten.linear.default: (1, 0),
    aten.addmm.default: (2, 1),
    aten.mm.default: (1, 1),
    aten.matmul.default: (1, 1),
}
# operator -> indices of weight and bias
_NORMS = {aten.layer_norm.default: (2, 3), aten.rms_norm.default: (2,)}
# f(x / s) == f(x) / s for s > 0, element by element
_HOMOGENEOUS = frozenset(
    [aten.relu.default, aten.relu_.default, aten.leaky_relu.default, aten.leaky_relu_.default, aten.dropout.default]
)
_ADDITIONS = frozenset([aten.add.Tensor])
_PRODUCTS = frozenset([aten.mul.Tensor])
_LOOKUPS = frozenset([aten.embedding.default])
# Channels that were never active, or that no weight reads, count as this fraction of the largest one.
_FLOOR = 1e-3
# By how much the estimated noise power must fall; a multiplication at run time must earn its time.
_WORTH_FOLDING = 1.05
_WORTH_MULTIPLYING = 2.0


@dataclass(frozen=True)
class _Group:
    """Layers that read the same activation, which ``root`` computes, maybe moved or cut but with the same channels."""

    root: fx.Node
    calls: tuple[LayerNode, ...]


class _Channels(nn.Module):
    """Passes a tensor on; keeps the smallest and largest value of each channel, and the mean of the squares."""

    def __init__(self) -> None:
        super().__init__()
        self.low: torch.Tensor | None = None
        self.high: torch.Tensor | None = None
        self.squares: torch.Tensor | None = None
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.detach().reshape(-1, x.shape[-1])
        if len(rows):
            low, high, squares = rows.amin(0), rows.amax(0), rows.square().sum(0, dtype=torch.float64)
            self.low = low if self.low is None else self.low.minimum(low)
            self.high = high if self.high is None else self.high.maximum(high)
            self.squares = squares if self.squares is None else self.squares + squares
            self.count += len(rows)
        return x


@dataclass(frozen=True)
class _Activation:
    """What one pass over the samples found in the channels of an activation; zero is in every range."""

    low: torch.Tensor
    high: torch.Tensor
    power: torch.Tensor

    @property
    def largest(self) -> torch.Tensor:
        return self.high.maximum(-self.low)


@dataclass(frozen=True)
class _Fold:
    """Dividing an axis of a constant, for one reader, instead of dividing what the reader computes."""

    constant: fx.Node
    reader: fx.Node
    axis: int


@torch.no_grad()
def smooth(
    graph: fx.GraphModule,
    calls: Sequence[LayerNode],
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    strength: float = 0.5,
) -> list[str]:
    """Divide the channels of activations by scales, and multiply the weights that read them by the same.

    Linear layers that read the same activation share its scales, ``max|x| ** strength / max|w| ** (1 - strength)`` for
    each channel. The division goes into the constants that made the activation (weight and bias of a normalisation, or
    the output channels of a linear layer); where other nodes read the activation too, or nothing can take the
    division, one multiplication is inserted. Both only where the estimated quantization noise falls, with uint8
    activations per tensor and int8 weights per channel. Convolutions are left alone, and layers that share a weight
    with another layer outside the group.

    Args:
        graph: changed in place, the tensors that it shares with others are not.
        calls: the layers that may change, from :func:`prepbench.quantize.layer_nodes.layer_nodes`.
        samples: calls of the graph, each run once.
        progress: called after each sample; may raise to cancel, and the graph is then as it was.
        strength: how much of the difficulty moves from the activations (0) to the weights (1).

    Returns:
        The layers of ``calls`` whose weights changed, in execution order.

    Example:
        >>> smooth(graph, layer_nodes(graph.graph, settings), samples)  # doctest: +SKIP
        ['encoder.layers.0.self_attn.q_proj', 'encoder.layers.0.self_attn.k_proj']

    Source: Xiao, Lin, Seznec, Wu, Demouth, Han, "SmoothQuant: Accurate and Efficient Post-Training Quantization for
    Large Language Models", 2023, equation 4.
    """
    groups = _groups(graph, calls)
    activations = _measure(graph, groups, samples, progress)
    changed: set[fx.Node] = set()
    for group in groups:
        found = [activations[call.input] for call in group.calls]
        if all(activation is not None for activation in found):
            changed |= _smooth_group(graph, group, [a for a in found if a is not None], strength)
    graph.graph.lint()
    graph.recompile()
    return list(dict.fromkeys(call.fqn for call in calls if call.node in changed))


def _groups(graph: fx.GraphModule, calls: Sequence[LayerNode]) -> list[_Group]:
    by_root: dict[fx.Node, list[LayerNode]] = {}
    for call in calls:
        fits = call.node.target in _LINEAR and _reads_as_input(call.node, call.input) and _is_float32(call.input)
        if fits and can_scale(graph, call.weight):
            by_root.setdefault(_root(call.input), []).append(call)
    groups = []
    for root, members in by_root.items():
        if _is_written(root):
            continue
        nodes = {call.node for call in members}
        free = [call for call in members if all(_may_leave(n) for n in readers(graph, call.weight) - nodes)]
        # a weight that is left alone takes its other readers along
        while len(free) < len(members):
            members, nodes = free, {call.node for call in free}
            free = [call for call in members if all(_may_leave(n) for n in readers(graph, call.weight) - nodes)]
        if members:
            groups.append(_Group(root, tuple(members)))
    return groups


def _may_leave(reader: fx.Node) -> bool:
    """Whether a reader of a weight can keep the old one at no cost: a lookup stays float, the layer becomes int8."""
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
    """Whether something changes the tensor, or a view of it, in place: its value then depends on the moment."""
    return any(writes(user) or (keeps_channels_last(user) and _is_written(user)) for user in node.users)


def _measure(
    graph: fx.GraphModule, groups: Sequence[_Group], samples: Sequence[Sample], progress: ProgressCallback
) -> dict[fx.Node, _Activation | None]:
    """Run the samples with recorders in the graph; None for an activation without values, or with infinite ones."""
    inputs = dict.fromkeys(call.input for group in groups for call in group.calls)
    records = {node: _Channels() for node in inputs}
    with _recorders(graph, records):
        progress(Progress("smooth", 0, len(samples)))
        for done, sample in enumerate(samples, start=1):
            sample.call(graph)
            progress(Progress("smooth", done, len(samples)))
    return {node: _activation(record) for node, record in records.items()}


@contextmanager
def _recorders(graph: fx.GraphModule, records: Mapping[fx.Node, _Channels]) -> Iterator[None]:
    """Modules that see the values of nodes; the graph is as before afterwards, whatever happens."""
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


def _activation(record: _Channels) -> _Activation | None:
    if record.low is None or record.high is None or record.squares is None:
        return None
    if not bool((record.low.isfinite() & record.high.isfinite()).all()):
        return None
    power = (record.squares / record.count).to(record.low.dtype)
    return _Activation(record.low.clamp_max(0), record.high.clamp_min(0), power)


def _smooth_group(
    graph: fx.GraphModule, group: _Group, activations: Sequence[_Activation], strength: float
) -> set[fx.Node]:
    """Scale one group where that pays; returns the nodes whose weights changed."""
    weights = [value_of(graph, call.weight).transpose(0, call.axis) for call in group.calls]
    scale = _scales(activations, weights, strength)
    if scale is None:
        return set()
    gain = _noise(activations, weights, torch.ones_like(scale)) / max(_noise(activations, weights, scale), 1e-30)
    members = {call.node for call in group.calls}
    folds = _folds(graph, group.root, scale.numel()) if _is_closed(group.root, members) else None
    if gain < (_WORTH_MULTIPLYING if folds is None else _WORTH_FOLDING):
        return set()
    for call in {call.weight.target: call for call in group.calls}.values():
        factor = scale.view(1, -1).transpose(0, call.axis)
        scale_constant(graph, call.weight, factor, members)
    if folds is None:
        _insert_products(graph, group.root, members, 1 / scale)
        return members
    for fold in folds:
        ndim = value_of(graph, fold.constant).ndim
        factor = (1 / scale).view([-1 if axis == fold.axis else 1 for axis in range(ndim)])
        scale_constant(graph, fold.constant, factor, {fold.reader})
    return members | {fold.reader for fold in folds}


def _scales(
    activations: Sequence[_Activation], weights: Sequence[torch.Tensor], strength: float
) -> torch.Tensor | None:
    x = torch.stack([activation.largest for activation in activations]).amax(0)
    w = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    if not (float(x.max()) > 0 and float(w.max()) > 0 and bool(w.isfinite().all())):
        return None
    x, w = x.clamp_min(float(x.max()) * _FLOOR), w.clamp_min(float(w.max()) * _FLOOR)
    scale = x**strength / w ** (1 - strength)
    return scale if bool((scale.isfinite() & (scale > 0) & (1 / scale).isfinite()).all()) else None


def _noise(activations: Sequence[_Activation], weights: Sequence[torch.Tensor], scale: torch.Tensor) -> float:
    """The estimated power of the quantization noise of the layers, each relative to the power of its output.

    Rounding errors are taken as uniform and independent, and so are the channels.
    """
    total = 0.0
    for activation, weight in zip(activations, weights, strict=True):
        squares = weight.square()
        step = float((activation.high / scale).max() - (activation.low / scale).min()) / 255
        of_activations = step**2 / 12 * float((squares * scale**2).sum())
        steps = (weight * scale).abs().amax(1) / 127
        of_weights = float(steps.square().sum()) / 12 * float((activation.power / scale**2).sum())
        signal = float((squares * activation.power).sum())
        total += (of_activations + of_weights) / signal if signal > 0 else 0.0
    return total


def _is_closed(node: fx.Node, members: Collection[fx.Node]) -> bool:
    """Whether nothing but the input of these layers depends on the values of the node."""
    users = consumers(node)
    return bool(users) and all(_leads_in(node, user, members) for user in users)


def _leads_in(node: fx.Node, user: fx.Node, members: Collection[fx.Node]) -> bool:
    if user in members:
        return _reads_as_input(user, node)
    return keeps_channels_last(user) and _is_closed(user, members)


def _reads_as_input(layer: fx.Node, node: fx.Node) -> bool:
    index = 1 if layer.target is aten.addmm.default else 0
    return layer.args[index] is node and sum(argument is node for argument in layer.args) == 1


def _folds(graph: fx.GraphModule, node: fx.Node, count: int) -> list[_Fold] | None:
    """The constants to divide so that the node computes its value divided along the last axis; None if impossible."""
    if node.op != "call_function" or channels(node) != count:
        return None
    target: Any = node.target
    if target in _HOMOGENEOUS or keeps_channels_last(node):
        return _folds_of_input(graph, node.args[0], count)
    if target in _NORMS:
        return _folds_of_norm(graph, node, count)
    if target in _LINEAR:
        return _folds_of_linear(graph, node)
    if target in _ADDITIONS | _PRODUCTS:
        each = [_folds_of_operand(graph, node, operand, count) for operand in node.args[:2]]
        if target in _PRODUCTS:
            return next((folds for folds in each if folds is not None), None)
        one, two = each
        return None if one is None or two is None else one + two
    return None


def _folds_of_input(graph: fx.GraphModule, node: object, count: int) -> list[_Fold] | None:
    if not isinstance(node, fx.Node) or len(consumers(node)) != 1:
        return None
    return _folds(graph, node, count)


def _folds_of_operand(graph: fx.GraphModule, node: fx.Node, operand: object, count: int) -> list[_Fold] | None:
    if not isinstance(operand, fx.Node) or sum(argument is operand for argument in node.args) != 1:
        return None
    if operand.op == "get_attr":
        return _folds_of_vector(graph, operand, node, count)
    return _folds_of_input(graph, operand, count)


def _folds_of_vector(graph: fx.GraphModule, constant: object, reader: fx.Node, count: int) -> list[_Fold] | None:
    if not isinstance(constant, fx.Node) or constant.op != "get_attr" or not can_scale(graph, constant):
        return None
    shape = value_of(graph, constant).shape
    return [_Fold(constant, reader, len(shape) - 1)] if shape[-1:] == (count,) else None


def _folds_of_norm(graph: fx.GraphModule, node: fx.Node, count: int) -> list[_Fold] | None:
    shape = node.args[1]
    if not isinstance(shape, list | tuple) or len(shape) != 1:
        return None
    weight_index, *rest = _NORMS[node.target]  # type: ignore[index]
    weight = node.args[weight_index] if len(node.args) > weight_index else None
    biases = [node.args[i] for i in rest if len(node.args) > i and node.args[i] is not None]
    each = [_folds_of_vector(graph, constant, node, count) for constant in (weight, *biases)]
    return None if any(folds is None for folds in each) else [fold for folds in each if folds for fold in folds]


def _folds_of_linear(graph: fx.GraphModule, node: fx.Node) -> list[_Fold] | None:
    weight_index, axis = _LINEAR[node.target]  # type: ignore[index]
    weight = node.args[weight_index]
    if not isinstance(weight, fx.Node) or weight.op != "get_attr" or not can_scale(graph, weight):
        return None
    if value_of(graph, weight).ndim != 2 or readers(graph, weight) != {node}:
        return None
    try:
        bias = bias_of(graph, node)
    except ValueError:
        return None
    return [_Fold(weight, node, axis)] + ([_Fold(bias, node, 0)] if bias is not None else [])


def _insert_products(graph: fx.GraphModule, root: fx.Node, members: Collection[fx.Node], factor: torch.Tensor) -> None:
    """Multiply the activation by ``factor`` for the members only, as early as no other node is touched."""
    places = _places(root, members)
    with graph.graph.inserting_before(min(user for _, users in places for user in users)):
        constant = add_constant(graph, "_smooth_scale", factor)
    constant.meta["val"] = root.meta["val"].new_empty(factor.shape)
    for node, users in places:
        with graph.graph.inserting_before(min(users)):
            product = graph.graph.call_function(aten.mul.Tensor, (node, constant))
        served = users[0]
        while served not in members:
            served = consumers(served)[0]
        product.meta = {**served.meta, "val": node.meta["val"], "tensor_meta": node.meta.get("tensor_meta")}
        for user in users:
            user.replace_input_with(node, product)


def _places(node: fx.Node, members: Collection[fx.Node]) -> list[tuple[fx.Node, list[fx.Node]]]:
    """The nodes to multiply, each with those of its users that then read the product."""
    users = consumers(node)
    inside = [user for user in users if _leads_in(node, user, members)]
    places = [(node, inside)] if inside else []
    for user in users:
        if user not in inside and user not in members and keeps_channels_last(user):
            places += _places(user, members)
    return places
