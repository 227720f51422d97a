"""Find which channels of a program can be removed together, by following each one through the operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload
from prepbench.adapt.channels.rules import rule_of
from prepbench.adapt.channels.values import (
    Call,
    ChannelClasses,
    Joiner,
    UnknownSizeError,
    Value,
    compact,
    dim_of,
    only,
    place_of,
    sizes_of,
    varying,
    weight_value,
)
from prepbench.quantize.layer_nodes import nodes_reached


@dataclass
class ChannelMap:
    """The channels of a program.

    Attributes:
        program: the program.
        classes: the channels that are removed together, and those that are kept, with the reason.
        values: the labels of each live node's result: a value, a list of values, or None if it is no tensor.
        parameters: the names of tensors in the program by placeholder.
        weights: the labels of parameters as they were given, also where they became one class.
    """

    program: torch.export.ExportedProgram
    classes: ChannelClasses
    values: dict[fx.Node, Any]
    parameters: Mapping[str, str] = field(default_factory=dict)
    weights: dict[fx.Node, Value] = field(default_factory=dict)


def channels_of(program: torch.export.ExportedProgram) -> ChannelMap:
    """Follow all channels of a program. Channels that reach an operator without a rule are kept.

    Dependencies between layers are found as in Fang et al., "DepGraph: Towards Any Structural Pruning", 2023, but
    between single channels, and from the operators of the graph and not from classes of layers.
    """
    signature = program.graph_signature
    constants = {**signature.inputs_to_lifted_tensor_constants, **signature.inputs_to_buffers}
    parameters = {**constants, **signature.inputs_to_parameters}
    found = ChannelMap(program, ChannelClasses(), {}, parameters)
    live = live_nodes(program.graph)
    for node in program.graph.nodes:
        if node in live:
            found.values[node] = _value(node, found)
    for node, value in found.values.items():
        if node.op == "placeholder" and node.name in parameters and isinstance(value, Value):
            found.weights[node] = value
    make_slabs(found.classes, found.values)
    return found


def live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that the results depend on; others, such as unused attention weights, are ignored."""
    return nodes_reached(graph.find_nodes(op="output"))


def _value(node: fx.Node, found: ChannelMap) -> Any:
    joiner = Joiner(found.classes, place_of(node) if node.op == "call_function" else "the model's output")
    if node.op == "output":
        for value in _operands(node, found.values):
            joiner.keep(value, "has them")
        return None
    made = node.meta.get("val")
    if node.op == "placeholder":
        if not isinstance(made, torch.Tensor):
            return None
        shape = _sizes(made)
        if shape is None:
            return None
        if node.name not in found.parameters:
            return Value(shape)
        learned = node.name in found.program.graph_signature.inputs_to_parameters
        # tables such as those of positions would tie what they multiply, head by head
        is_statistic = any("_norm" in str(user.target) for user in node.users)
        return weight_value(found.classes, shape) if learned or is_statistic else Value(shape, is_weight=True)
    if node.target is operator.getitem:
        whole = found.values.get(node.args[0])  # type: ignore[arg-type]
        return whole[int(node.args[1])] if isinstance(whole, list) else None  # type: ignore[arg-type]
    if node.op == "call_function" and isinstance(made, int | float | bool | torch.SymInt | torch.SymFloat | None):
        if node.target is torch.ops.aten.sym_size.int:
            _tie_read_size(node, found, joiner)
            return None
        if made is not None or not _operands(node, found.values):
            _keep_all(node, found, joiner, "reads them as a number")
            return None
    return _called(node, found, joiner)


def _tie_read_size(node: fx.Node, found: ChannelMap, joiner: Joiner) -> None:
    """Tie the channels of a dim whose size the graph computes with, so that the size never changes."""
    for value in _operands(node, found.values):
        for layer in value.layers:
            dim = dim_of(int(node.args[1]), len(value.shape))  # type: ignore[arg-type]
            if dim in varying(layer):
                joiner.tie(layer, dim, "computes with the number of channels")


def _called(node: fx.Node, found: ChannelMap, joiner: Joiner) -> Any:
    """Return the value of a call; without a rule, all channels of its operands are kept."""
    tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor | list | tuple)]
    known = all(found.values.get(each) is not None for each in tensors)
    if isinstance(node.target, OpOverload) and known:
        rule = rule_of(node)
        try:
            result = rule(Call(node, found.values, found.classes)) if rule is not None else None
        except (UnknownSizeError, RuntimeError):  # labels that the operator does not take
            result = None
        if result is not None:
            return _with_reason(result, node, found) if isinstance(result, Value) else result
    _keep_all(node, found, joiner, "is an operator without a rule for channels")
    made = node.meta.get("val")
    shapes = [_sizes(each) for each in (made if isinstance(made, list | tuple) else [made])]
    if None in shapes:
        return None
    values = [Value(shape) for shape in shapes if shape is not None]
    return values if isinstance(made, list | tuple) else values[0]


def _with_reason(result: Value, node: fx.Node, found: ChannelMap) -> Value:
    """Return a result whose channels are kept, for the reason for which an operand's are."""
    if result.layers:
        return result
    for value in _operands(node, found.values):
        labels = (int(layer.reshape(-1)[0]) for layer in value.layers if layer.numel())
        why = value.why or next(filter(None, map(found.classes.why_kept, labels)), "")
        if why:
            return replace(result, why=why)
    return result


def _keep_all(node: fx.Node, found: ChannelMap, joiner: Joiner, why: str) -> None:
    for value in _operands(node, found.values):
        joiner.keep(value, why)


def _operands(node: fx.Node, values: Mapping[fx.Node, Any]) -> list[Value]:
    found = (values.get(each) for each in node.all_input_nodes)
    return [value for each in found for value in (each if isinstance(each, list) else [each]) if value is not None]


def _sizes(made: Any) -> tuple[int, ...] | None:
    try:
        return sizes_of(made)
    except UnknownSizeError:
        return None


# Labels as slabs: what goes of a tensor are whole indices of its dims.


def make_slabs(classes: ChannelClasses, values: dict[fx.Node, Any]) -> None:
    """Tie channels until only whole indices of a tensor's dims can be removed, and never all of them."""
    before = -1
    while before != classes.joins:
        before = classes.joins
        for node, value in values.items():
            joiner = Joiner(classes, place_of(node) if node.op == "call_function" else node.name)
            if isinstance(value, list):
                values[node] = [_in_slabs(each, joiner) for each in value]
            elif value is not None:
                values[node] = _in_slabs(value, joiner)


def _in_slabs(value: Value, joiner: Joiner) -> Value:
    layers = []
    for layer in value.layers:
        layer = joiner.settled(layer)
        if len(varying(layer)) > 1:
            best = _dim_of_most_units(layer, joiner.classes)
            for dim in varying(layer):
                if dim != best:
                    layer = joiner.tie(layer, dim, "splits a dim, and only whole parts can be removed")
        if varying(layer):
            layers.append(compact(layer))
    return Value(value.shape, tuple(layers), value.is_weight)


def _dim_of_most_units(layer: torch.Tensor, classes: ChannelClasses) -> int:
    """Return the dim with the most indices that can be removed one by one."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    dims = varying(layer)
    small = only(layer, dims)
    numbers, places = torch.unique(small, return_inverse=True)
    kept = torch.tensor([bool(classes.why_kept(int(number))) for number in numbers])

    def units(dim: int) -> int:
        rows = torch.arange(small.shape[dim]).reshape([-1 if d == dim else 1 for d in range(small.ndim)])
        row, label = rows.expand(small.shape).reshape(-1), places.reshape(-1) + small.shape[dim]
        size = small.shape[dim] + len(numbers)
        graph = coo_matrix((torch.ones(len(row)).numpy(), (row.numpy(), label.numpy())), shape=(size, size))
        _, found = connected_components(graph, directed=False)
        fixed = set(found[small.shape[dim] :][kept.numpy()].tolist())
        return len(set(found.tolist()) - fixed)

    return max(dims, key=lambda dim: (units(dim), -dim))
