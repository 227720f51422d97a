"""Operators that a target lacks but that only parameters reach are computed while the model is compiled."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from prepbench._torch_compat.programs import with_constants
from prepbench.capture.aten.constant_nodes import ConstantNodes
from prepbench.quantize.statistics import written_nodes

Program = torch.export.ExportedProgram


@torch.no_grad()
def with_computed(program: Program, nodes: Collection[fx.Node]) -> Program | None:
    """Return a program that stores what follows from nodes that depend on parameters alone, in the place of them.

    Orthogonal weights are such (``torch.matrix_exp``), and the determinants of invertible layers.

    Returns:
        The program; None where no such node depends on parameters alone.

    Raises:
        Exception: what torch raises where it cannot compute them.
    """
    graph = program.graph
    if any(node.op != "placeholder" for node in written_nodes(graph)):
        return None  # which tensor such a view belongs to would have to be followed
    signature, written = program.graph_signature, {node.name for node in written_nodes(graph)}
    written |= set(signature.buffers_to_mutate.values())
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }

    def read(node: fx.Node) -> torch.Tensor | None:
        name = names.get(node.name)
        if name is None or name in written or node.name in written:
            return None
        found = program.state_dict.get(name, program.constants.get(name))
        return found if isinstance(found, torch.Tensor) else None

    constant, lacking = ConstantNodes(graph, read, with_created=True), set(nodes)
    values: dict[str, torch.Tensor] = {}
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        if node not in constant or not (node in lacking or behind.intersection(node.all_input_nodes)):
            continue
        behind.add(node)
        is_read = any(user not in constant for user in node.users)
        if is_read and isinstance(node.meta.get("val"), torch.Tensor):
            values[node.name] = constant.value(node).clone().contiguous()
    return with_constants(program, values) if values else None
