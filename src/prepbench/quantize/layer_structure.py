"""The relations between layers of a graph: which follow each other, and which must be quantized together."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from torch import fx

from prepbench.quantize.layer_nodes import LayerNode, parameter_of
from prepbench.quantize.plan import Plan


def following_layers(nodes: Mapping[str, Iterable[LayerNode]]) -> list[tuple[str, str, str]]:
    """Return the layers that read a layer's output through operators that are no layers, in execution order.

    Args:
        nodes: of each layer, by FQN.

    Returns:
        (layer, next layer, name of the node that the next one reads), each pair of layers once for each such node.
    """
    owners = {layer.node: layer for layers in nodes.values() for layer in layers}
    found: dict[tuple[str, str, str], None] = {}
    for node, layer in owners.items():
        seen: set[fx.Node] = set()
        rest = list(node.users)
        while rest:
            user = rest.pop(0)
            if user in seen:
                continue
            seen.add(user)
            reader = owners.get(user)
            if reader is None:
                rest += user.users
            elif reader.fqn != layer.fqn:
                found[layer.fqn, reader.fqn, reader.input.name] = None
    return list(found)


def tied_layers(graph: fx.GraphModule, plan: Plan) -> tuple[frozenset[str], ...]:
    """Return groups of two or more layers that share weights.

    Args:
        graph: that the plan was made for.
        plan: of layers that are all quantized.
    """
    groups: dict[int, set[str]] = {}
    for fqn, nodes in plan.nodes.items():
        for weight in (weight for layer in nodes for weight in layer.weights):
            parameter = parameter_of(weight)
            assert parameter is not None
            groups.setdefault(id(operator.attrgetter(str(parameter.target))(graph)), set()).add(fqn)
    found = {frozenset(group): None for group in groups.values() if len(group) > 1}
    return tuple(found)
