"""Weights that several layers read, dequantized once."""

from __future__ import annotations

import hashlib
from typing import Any

from prepbench.targets.onnx.weights import constant_of


def merge_tables(model: Any) -> None:
    """Let one node dequantize a table that several dequantize in the same way, in place."""
    import onnx_ir

    first: dict[Any, Any] = {}
    for node in [node for node in model.graph if node.op_type == "DequantizeLinear"]:
        arrays = [None if value is None else constant_of(value) for value in node.inputs]
        if arrays[0] is None or arrays[0].ndim != 2 or node.outputs[0].is_graph_output():
            continue
        digests = [None if array is None else hashlib.sha256(array.tobytes()).digest() for array in arrays]
        places = tuple(node.attributes.get_int(name, 0) for name in ("axis", "block_size"))
        kept = first.setdefault((arrays[0].shape, *digests, *places), node)
        if kept is not node:
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], kept.outputs[0])
            model.graph.remove(node, safe=True)
