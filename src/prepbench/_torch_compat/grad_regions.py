"""Gradient-mode regions such as ``with torch.enable_grad()`` in exported programs (``torch.ops.higher_order``)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.programs import with_graph

with needed_for("blocks that switch gradients"):
    _BLOCK = torch.ops.higher_order.wrap_with_set_grad_enabled


def without_grad_regions(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Inline the operators of gradient-mode regions into the program.

    The result is the same, and passes that look for layers, operators or sizes find them. In regions that enable
    gradients, decomposing would also trace a derivative of the whole.

    Args:
        program: it is not changed.

    Returns:
        The changed program, or ``program`` itself where it has no such block.
    """
    if not program.graph.find_nodes(op="call_function", target=_BLOCK):
        return program
    module = _copy(program.graph_module)
    _unwrap(module)
    return with_graph(program, module)


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def _unwrap(module: fx.GraphModule) -> None:
    for node in module.graph.find_nodes(op="call_function", target=_BLOCK):
        _, block, *operands = node.args
        body = _copy(getattr(module, block.target))
        _unwrap(body)
        results = _inserted(module, node, body, operands)
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        if not block.users:
            module.graph.erase_node(block)
            delattr(module, block.target)
    module.recompile()


def _inserted(module: fx.GraphModule, before: fx.Node, body: fx.GraphModule, operands: list[Any]) -> Any:
    """Copy the nodes of a body in front of a node; return its result."""
    values = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(before):
        for node in body.graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], values.__getitem__)
            if node.op == "get_attr":
                name = f"{before.name}_{node.target}".replace(".", "_")
                setattr(module, name, getattr(body, node.target))
                values[node] = module.graph.get_attr(name)
                values[node].meta = copy.copy(node.meta)
            elif node.op != "placeholder":
                values[node] = module.graph.node_copy(node, values.__getitem__)
    raise AssertionError("a graph without an output")
