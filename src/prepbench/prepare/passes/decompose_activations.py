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
        kind = type(module).__name__
        gate = nn.Sigmoid() if kind == "SiLU" else nn.Hardsigmoid()
        was = str(node.target)
        scope = was.rpartition(".")[0]
        product: nn.Module = modules.CLASSES["Multiply"]()
        first = names.add(scope, "sigmoid" if kind == "SiLU" else "hardsigmoid", gate.train(model.training))
        second = names.add(scope, "mul", product.train(model.training))
        with model.graph.inserting_before(node):
            gated = model.graph.call_module(first, (node.args[0],))
            result = model.graph.call_module(second, (node.args[0], gated))
        gated.meta, result.meta = {**node.meta, "fqn": first, "origin": None}, {**node.meta, "fqn": second}
        node.replace_all_uses_with(result)
        model.graph.erase_node(node)
        remove_module(model, was)
        changes.append(
            Change(
                "activation decomposed",
                result.name,
                second,
                "Multiply",
                was,
                f"{kind} is x * {first}(x) now",
                result.meta.get("source"),
            )
        )
    return changes
