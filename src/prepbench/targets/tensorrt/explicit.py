"""TensorRT's rules for explicit quantization: symmetric, signed, with constant scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.errors import TargetError

_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")


def check_explicit(model: Any) -> None:
    """Raise ``TargetError`` naming the first quantizer that TensorRT would refuse or read otherwise.

    Args:
        model: an ``onnx.ModelProto``.
    """
    from onnx import TensorProto, numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
            if value is not None:
                constants[node.output[0]] = value
    signed = (TensorProto.INT8, TensorProto.INT4)
    for node in model.graph.node:
        if node.op_type not in _QUANTIZERS:
            continue
        if node.input[1] not in constants:
            raise _refused(node, "its scale is computed in the graph; a constant is needed")
        if len(node.input) > 2 and node.input[2]:
            zero = constants.get(node.input[2])
            if zero is None or zero.data_type not in signed or np.any(numpy_helper.to_array(zero).astype(np.int32)):
                raise _refused(node, "it has a zero point, or integers without sign; symmetric int8 is needed")
        elif node.op_type == "QuantizeLinear":
            raise _refused(node, "it names no type of integers, which means unsigned ones; symmetric int8 is needed")


def _refused(node: Any, reason: str) -> TargetError:
    return TargetError(
        f"TensorRT cannot take {node.op_type} {node.name or node.output[0]!r}: {reason}. Compile with "
        "deployment_settings=TensorRtDeployment(), which places such quantizers, from a model that has none of its own."
    )
