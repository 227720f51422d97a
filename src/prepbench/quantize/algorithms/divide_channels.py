"""Dividing the channels of an activation: in the constants that made it, or by a multiplication before its readers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.quantize.algorithms.constants import (
    Constants,
    add_constant,
    bias_of,
    channels,
    consumers,
    keeps_channels_last,
    value_of,
)
from prepbench.quantize.layer_nodes import CONVOLUTIONS, TRANSPOSED, WEIGHTED, parameter_of

aten = torch.ops.aten

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
    """Dividing an axis of a constant, for one reader, instead of dividing what the reader computes."""

    constant: fx.Node
    reader: fx.Node
    axis: int


def is_closed(node: fx.Node, members: Collection[fx.Node]) -> bool:
    """Whether nothing but the input of these layers depends on the values of the node."""
    users = consumers(node)
    return bool(users) and all(_leads_in(node, user, members) for user in users)


def _leads_in(node: fx.Node, user: fx.Node, members: Collection[fx.Node]) -> bool:
    if user in members:
        return reads_as_input(user, node)
    return keeps_channels_last(user) and is_closed(user, members)


def reads_as_input(layer: fx.Node, node: fx.Node) -> bool:
    """Whether a layer's node multiplies ``node`` by its weight, and reads it nowhere else."""
    return layer.args[WEIGHTED[layer.target][0]] is node and sum(argument is node for argument in layer.args) == 1


def folds(constants: Constants, node: fx.Node, count: int) -> list[Fold] | None:
    """The constants to divide so that the node computes its value divided along the last axis; None if impossible."""
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
    """Multiply the activation of ``root`` by ``factor`` for the members only, as early as that is possible."""
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
    """The nodes to multiply, each with those of its users that then read the product."""
    users = consumers(node)
    inside = [user for user in users if _leads_in(node, user, members)]
    points = [(node, inside)] if inside else []
    for user in users:
        if user not in inside and user not in members and keeps_channels_last(user):
            points += _points(user, members)
    return points
