"""Exact Softplus for OpenVINO where the exponential is small beside one."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer

_TERMS = 7
_TYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64}


def keep_small_exponentials(model: Any) -> None:
    """Compute Softplus without adding a small exponential to one, in place.

    OpenVINO (2026.4) adds, so that nothing is left of values below -17, and at -10 one digit in a hundred is wrong. It
    also takes ``(1 + e) - 1`` for ``e``, so a sum is not corrected. ``log(1 + e)`` is twice the inverse hyperbolic
    tangent of ``e / (2 + e)``, which is a third at most: seven terms of its series are exact.

    Args:
        model: an ``onnx_ir.Model``.
    """
    import onnx_ir

    for node in [node for node in model.graph if node.op_type == "Softplus"]:
        x, result = node.inputs[0], node.outputs[0]
        kind = _TYPES.get(getattr(x.dtype, "name", ""))
        is_mish = all(user.op_type == "Tanh" for user in result.consumers())  # which has a kernel of its own
        if kind is None or is_mish:
            continue
        numbers = {
            name: add_initializer(model, f"{result.name}_{name}", np.array(value, kind))
            for name, value in (("two", 2.0), *((f"term_{place}", 2.0 / (2 * place + 1)) for place in range(_TERMS)))
        }
        made: list[Any] = []

        def add(operator: str, *inputs: Any, made: list[Any] = made) -> Any:
            made.append(onnx_ir.node(operator, list(inputs)))
            return made[-1].outputs[0]

        small = add("Exp", add("Neg", add("Abs", x)))
        share = add("Div", small, add("Add", small, numbers["two"]))
        square, series = add("Mul", share, share), numbers[f"term_{_TERMS - 1}"]
        for place in reversed(range(_TERMS - 1)):
            series = add("Add", add("Mul", series, square), numbers[f"term_{place}"])
        log = add("Mul", share, series)
        final = add("Add", add("Relu", x), log)
        for other in made:
            other.metadata_props.update(node.metadata_props)
        model.graph.insert_before(node, made)
        onnx_ir.convenience.replace_all_uses_with(result, final, replace_graph_outputs=True)
        final.name, final.shape, final.dtype = result.name, result.shape, result.dtype
        model.graph.remove(node, safe=True)
