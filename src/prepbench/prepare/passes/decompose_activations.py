"""SiLU and Hardswish as primitives, for targets without kernels for them."""

from __future__ import annotations

from torch import fx, nn

from prepbench.prepare import modules
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.passes.graph_edits import Names, called, remove_module
from prepbench.prepare.report import Change


def decompose_activations_(model: PreparedModel) -> list[Change]:
    """Replace ``SiLU`` by ``x * sigmoid(x)`` and ``Hardswish`` by ``x * hardsigmoid(x)``, as modules.

    Values change by rounding: the fused activations compute in one step.
    """
    names, changes = Names(model), []
    for node in list(model.graph.nodes):
        module = called(model, node)
        if type(module) not in (nn.SiLU, nn.Hardswish) or not isinstance(node.args[0], fx.Node):
            continue
        kind, was, scope = type(module).__name__, str(node.target), str(node.target).rpartition(".")[0]
        gate = nn.Sigmoid() if kind == "SiLU" else nn.Hardsigmoid()
        product: nn.Module = modules.CLASSES["Multiply"]()
        first = names.add(scope, type(gate).__name__.lower(), gate.train(model.training))
        second = names.add(scope, "mul", product.train(model.training))
        result = _gated(model, node, first, second)
        remove_module(model, was)
        why, source = f"{kind} is x * {first}(x) now", result.meta.get("source")
        changes.append(Change("activation decomposed", result.name, second, "Multiply", was, why, source))
    return changes


def _gated(model: PreparedModel, node: fx.Node, gate: str, product: str) -> fx.Node:
    """Replace ``node`` by ``product(x, gate(x))``."""
    with model.graph.inserting_before(node):
        gated = model.graph.call_module(gate, (node.args[0],))
        result = model.graph.call_module(product, (node.args[0], gated))
    gated.meta, result.meta = {**node.meta, "fqn": gate, "origin": None}, {**node.meta, "fqn": product}
    node.replace_all_uses_with(result)
    model.graph.erase_node(node)
    return result
