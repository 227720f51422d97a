"""Keep weights in half precision while their layers are quantized, and cast them where they are read."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn

from prepbench.quantize.layer_nodes import LOOKUPS, WEIGHTED, aten, parameter_of

_HALF = frozenset({torch.float16, torch.bfloat16})
_NORMS = frozenset([aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default])
# operators whose weight is a matrix, which no algorithm changes before it is quantized
_MATRICES = {
    target: place[1]
    for target, place in {**WEIGHTED, **LOOKUPS}.items()
    if target in (aten.linear.default, aten.addmm.default, aten.mm.default, aten.matmul.default, *LOOKUPS)
}


def weights_to_cast(program: torch.export.ExportedProgram) -> frozenset[str]:
    """Return the placeholders of weights in half precision that are cast only where layers read them.

    They are matrices that only layers read. Where batch norms may be folded into weights, there are none.
    """
    nodes = program.graph.nodes
    if any(node.target in _NORMS for node in nodes):
        return frozenset()
    parameters = program.graph_signature.inputs_to_parameters
    by_tensor: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if node.op == "placeholder" and node.name in parameters:
            by_tensor.setdefault(id(program.state_dict[parameters[node.name]]), []).append(node)
    return frozenset(node.name for same in by_tensor.values() if all(map(_is_weight_of_layers, same)) for node in same)


def _is_weight_of_layers(node: fx.Node) -> bool:
    value = node.meta["val"]
    return (
        value.dtype in _HALF
        and value.ndim == 2
        and all(
            user.target in _MATRICES
            and [place for place, one in enumerate(user.args) if one is node] == [_MATRICES[user.target]]
            for user in node.users
        )
    )


def cast_remaining_weights(graph: fx.GraphModule) -> None:
    """Convert half-precision weights whose layers stay in float to float32, in place."""
    made: dict[str, str] = {}
    for node in list(graph.graph.nodes):
        source = parameter_of(node)
        if source is None or source is node:
            continue
        if not node.users:
            graph.graph.erase_node(node)
            continue
        name = str(source.target)
        if name not in made:
            made[name] = f"{name}_in_float32".replace(".", "_")
            value = operator.attrgetter(name)(graph).detach().float()
            graph.register_parameter(made[name], nn.Parameter(value, requires_grad=False))
        with graph.graph.inserting_before(node):
            new = graph.graph.get_attr(made[name])
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        graph.graph.erase_node(node)
    graph.recompile()
