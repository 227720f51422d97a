"""Edit the finished ONNX graph: enforce exact results in runtimes, and remove private data."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer, dequantized_from

# int8 kernels for these add the bias as an integer; with a float bias they are not used
_BIASED = ("Conv", "Gemm")


def quantize_biases(model: Any) -> None:
    """Store the biases of layers with quantized inputs and weights as int32, in place.

    Their scale is the product of the scales of input and weight, as ONNX Runtime's fusions of QuantizeLinear and
    DequantizeLinear expect. Otherwise a linear layer whose output stays in float would run in float. So do layers that
    read integers of 4 bits: their product of scales is too coarse for a bias.

    Args:
        model: an ``onnx_ir.Model``. Biases fit into int32, see :func:`prepbench.quantize.biases.fit_biases`.
    """
    import onnx_ir

    for node in list(model.graph):
        if node.op_type not in _BIASED or len(node.inputs) < 3:
            continue
        operands = [_scale(value) for value in node.inputs[:2]]
        bias = node.inputs[2].const_value if node.inputs[2] is not None else None  # an initializer, or none
        if bias is None or any(scale is None for scale in operands) or _has_few_bits(node.inputs[0]):
            continue
        scale = np.asarray(operands[0] * operands[1], dtype=np.float32).squeeze()
        info = np.iinfo(np.int32)
        rounded = np.round(bias.numpy().astype(np.float64) / scale.astype(np.float64))
        integers = rounded.clip(info.min, info.max).astype(np.int32)
        inputs = [
            add_initializer(model, f"{node.name}_bias_{kind}", array)
            for kind, array in (("quantized", integers), ("scale", scale))
        ]
        dequantize = onnx_ir.node("DequantizeLinear", inputs, attributes={"axis": 0} if scale.ndim else {})
        model.graph.insert_before(node, dequantize)
        node.replace_input_with(2, dequantize.outputs[0])


def type_by_zero_point(model: Any) -> None:
    """Let only the zero point of a quantizer determine its integer type, in place.

    ONNX Runtime copies quantizers past operators that move values. It copies the attribute ``output_dtype`` but not
    the zero point, and then refuses its own copy when the integers are signed.
    """
    for node in model.graph:
        if node.op_type == "QuantizeLinear" and len(node.inputs) > 2 and node.inputs[2] is not None:
            node.attributes.pop("output_dtype", None)


def write_dropout_out(model: Any) -> None:
    """Expand each active Dropout into its operations, in place.

    ONNX Runtime (1.31) skips those whose mask has no reader, whatever their training mode, and OpenVINO has none.
    """
    import onnx_ir

    def node(op: str, *inputs: Any, **attributes: Any) -> Any:
        made = onnx_ir.node(op, inputs, attributes=attributes)
        model.graph.insert_before(dropout, made)
        return made.outputs[0]

    for dropout in [node for node in model.graph if node.op_type == "Dropout" and _is_active(node)]:
        x, ratio = dropout.inputs[0], _number(dropout.inputs[1], 0.5)
        limit = add_initializer(model, f"{dropout.name}_ratio", np.float32(ratio))
        factor = add_initializer(model, f"{dropout.name}_factor", np.float32(1 / (1 - ratio) if ratio < 1 else 0))
        zero = add_initializer(model, f"{dropout.name}_zero", np.float32(0))
        kept = node("GreaterOrEqual", node("RandomUniformLike", x, dtype=1), limit)
        # selected, not multiplied, because zero times infinity is NaN
        result = node("Where", kept, node("Mul", x, node("CastLike", factor, x)), node("CastLike", zero, x))
        for old, new in zip(dropout.outputs, (result, kept), strict=False):
            new.shape, new.type = old.shape, old.type
            onnx_ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        model.graph.remove(dropout, safe=True)


def _is_active(dropout: Any) -> bool:
    return len(dropout.inputs) > 2 and bool(_number(dropout.inputs[2], 0)) and _number(dropout.inputs[1], 0.5) > 0


def _number(value: Any, default: float) -> float:
    return default if value is None or value.const_value is None else float(value.const_value.numpy())


def forget_origin(model: Any) -> None:
    """Remove the exporter's notes on the origin of nodes, in place: they are large and contain file paths."""
    for graph in (model.graph, *model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            node.doc_string = None
            for value in node.outputs:
                value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()


def _has_few_bits(value: Any) -> bool:
    """Return whether a dequantized value has fewer bits than its integer type, by clipping."""
    clipped = value.producer().inputs[0].producer()
    return clipped is not None and clipped.op_type == "Clip"


def _scale(value: Any) -> Any:
    """Return the scale of a value that comes from a DequantizeLinear; None for others."""
    producer = dequantized_from(value)
    if producer is None or producer.inputs[1].const_value is None:
        return None
    return producer.inputs[1].const_value.numpy()
