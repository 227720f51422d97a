"""Indices that a graph computes: OpenVINO reads and writes whatever memory they lead to."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer

_OF_ALL_DIMS = ("GatherND", "ScatterND")
_OF_ONE_DIM = ("GatherElements", "ScatterElements")


def keep_indices_inside(model: Any) -> None:
    """Take the nearest index that is there for each computed one that is not, in place.

    PyTorch raises for such an index, and so does ONNX Runtime. OpenVINO (2026.4) ends the process, or answers with what
    lies beside the table; it has no operator that raises.

    Args:
        model: an ``onnx_ir.Model``.
    """
    for node in [node for node in model.graph if node.op_type in (*_OF_ALL_DIMS, *_OF_ONE_DIM)]:
        data, indices = node.inputs[:2]
        if indices.const_value is not None or indices.shape is None:
            continue
        if node.op_type in _OF_ONE_DIM:
            first, count = node.attributes.get_int("axis", 0), 1
            first = first % len(data.shape) if data.shape is not None else first
        else:
            first, count = node.attributes.get_int("batch_dims", 0), indices.shape[-1]
        if isinstance(count, int) and first >= 0:
            node.replace_input_with(1, _clipped(model, node, first, count))


def _clipped(model: Any, node: Any, first: int, count: int) -> Any:
    """The indices of a node, between the sizes of ``count`` dims of what it indexes, and these below zero."""
    import onnx_ir

    def add(op: str, *inputs: Any, **attributes: Any) -> Any:
        made = onnx_ir.node(op, inputs, attributes=attributes)
        model.graph.insert_before(node, made)
        return made.outputs[0]

    def constant(kind: str, values: list[int]) -> Any:
        return add_initializer(model, f"{node.name}_{kind}", np.array(values))

    data, indices = node.inputs[:2]
    wide = add("Cast", indices, to=7)  # of int64, as sizes are
    sizes = add("Gather", add("Shape", data), constant("dims", list(range(first, first + count))), axis=0)
    inside = add("Min", wide, add("Sub", sizes, constant("one", [1])))
    inside = add("Max", inside, add("Neg", sizes))
    inside.shape = indices.shape
    return inside
