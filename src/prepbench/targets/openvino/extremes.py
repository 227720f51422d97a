"""The largest and the smallest of many values, where integers are made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer

_EXTREMES = ("ReduceMax", "ReduceMin")


def keep_extremes_in_floats(model: Any) -> None:
    """Put a change of shape behind each maximum and minimum over dims, in place; the values stay the same.

    OpenVINO (2026.4) computes what follows in the same kernel, up to a quantizer, and then takes the maximum of values
    that are no integers yet as if they were. It computes nothing in that kernel that follows a change of shape.

    Args:
        model: an ``onnx_ir.Model``.
    """
    import onnx_ir

    if not any(node.op_type == "QuantizeLinear" for node in model.graph):
        return
    for node in [node for node in model.graph if node.op_type in _EXTREMES]:
        axes = _axes(node)
        if axes is None:
            continue
        result, keeps = node.outputs[0], node.attributes.get_int("keepdims", 1)
        if len(node.inputs) < 2 or node.inputs[1] is None:
            node.resize_inputs(2)
        names = add_initializer(model, f"{result.name}_axes", np.array(axes))
        node.replace_input_with(1, names)
        other = onnx_ir.node(node.op_type, list(node.inputs), {"keepdims": 0 if keeps else 1}, name=node.name)
        other.metadata_props.update(node.metadata_props)
        shaped = onnx_ir.node("Unsqueeze" if keeps else "Squeeze", [other.outputs[0], names])
        model.graph.insert_before(node, [other, shaped])
        onnx_ir.convenience.replace_all_uses_with(result, shaped.outputs[0], replace_graph_outputs=True)
        shaped.outputs[0].name, shaped.outputs[0].shape, shaped.outputs[0].dtype = (
            result.name,
            result.shape,
            result.dtype,
        )
        model.graph.remove(node, safe=True)


def _axes(node: Any) -> list[int] | None:
    """The dims that a node goes over, from 0 on, or None where they are not known or where it goes over none."""
    value, rank = node.inputs[0], None
    if value is not None and value.shape is not None:
        rank = len(value.shape)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if rank is None or (given is not None and given.const_value is None):
        return None
    if given is None:
        return None if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in given.const_value.numpy().reshape(-1)) or None
