"""Loops of dynamic length (``torch``'s scan) in the form that Inductor takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.scans import SCAN, symbols_in


def give_sizes(module: fx.GraphModule) -> bool:
    """Give each loop the sizes of what its steps give, in place; false if there is no loop.

    Inductor (torch 2.13) makes a while loop of it, and looks for these sizes among the inputs, as dynamo leaves them.
    """
    loops = [node for node in module.graph.nodes if node.target is SCAN]
    for node in loops:
        body, states, rows, others = node.args
        known = symbols_in([value.meta["val"] for value in others if isinstance(value.meta["val"], torch.SymInt)])
        wanted = symbols_in(node.meta["val"]).keys() - known.keys()
        found = _sizes(module.graph, node, wanted)
        steps = getattr(module, body.target)
        last = [each for each in steps.graph.nodes if each.op == "placeholder"][-1]
        for name, size in found.items():
            with steps.graph.inserting_after(last):
                last = steps.graph.placeholder(f"size_{name}")
                last.meta["val"] = size.meta["val"]
        steps.recompile()
        node.args = (body, states, rows, (*others, *found.values()))
    return bool(loops)


def _sizes(graph: fx.Graph, loop: fx.Node, wanted: Any) -> dict[str, fx.Node]:
    """A node for each symbol that is the size of a tensor before the loop."""
    found: dict[str, fx.Node] = {}
    for node in graph.nodes:
        if node is loop:
            break
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or node.op == "get_attr":
            continue
        for dim, size in enumerate(value.shape):
            name = str(size)
            if name in wanted and name not in found:
                with graph.inserting_before(loop):
                    found[name] = graph.call_function(torch.ops.aten.sym_size.int, (node, dim))
                    found[name].meta["val"] = size
    return found
