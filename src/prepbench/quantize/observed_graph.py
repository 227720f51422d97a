"""Graphs with observers: find the observers, switch their mode, and remove them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.quantize.plan import Plan


def observer_of(graph: torch.nn.Module, node: object) -> Any:
    """Return the observer that a node calls, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph.get_submodule(str(node.target))
    return module if hasattr(module, "calculate_qparams") else None


def all_observers(graph: fx.GraphModule) -> list[Any]:
    """Return the observers that the graph calls, each once."""
    found = (observer_of(graph, node) for node in graph.graph.nodes)
    return list({id(observer): observer for observer in found if observer is not None}.values())


def set_mode(graph: fx.GraphModule, mode: str) -> None:
    """Set the mode of all observers: ``"observe"`` learns ranges, ``"pass"`` does nothing, ``"simulate"`` quantizes."""
    for observer in all_observers(graph):
        observer.mode = mode


def simulate(graph: fx.GraphModule, plan: Plan) -> None:
    """Make the observers that ``plan`` names simulate quantization, and all others pass."""
    set_mode(graph, "pass")
    for node in graph.graph.nodes:
        observer = observer_of(graph, node)
        if observer is None:
            continue
        source = observed_value(graph, node).name
        edges = [(user.name, source) for user in node.users]
        if source in plan.outputs or any(edge in plan.inputs or edge in plan.weights for edge in edges):
            observer.mode = "simulate"


def observed_value(graph: torch.nn.Module, node: fx.Node) -> fx.Node:
    """Return the value that an observer sees, behind other observers."""
    while observer_of(graph, node) is not None:
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def remove_observers(graph: fx.GraphModule, plan: Plan) -> None:
    """Remove all observers that ``plan`` does not name, in place."""
    for node in list(graph.graph.nodes):
        if observer_of(graph, node) is None:
            continue
        source = observed_value(graph, node)
        if source.name in plan.outputs:
            continue
        for user in list(node.users):
            edge = (user.name, source.name)
            if edge not in plan.inputs and edge not in plan.weights and observer_of(graph, user) is None:
                user.replace_input_with(node, source)
        if not node.users:
            graph.graph.erase_node(node)
    graph.recompile()
