"""Passes over the ONNX graph, an ``onnx_ir.Model``, for OpenVINO: the places of quantizers, and their integer types."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.packages import Deferred
from prepbench.targets.onnx.weights import add_initializer, dequantized_from

onnx_ir: Any = Deferred("onnx_ir")


_SMALLEST_BIAS = 2.0**-100
_FLOAT = np.finfo(np.float32)
# none of them changes what a value is rounded to: the largest of integers is that of the values
_MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "ReduceMax", "ReduceMin")


def hoist_quantizers(model: Any) -> None:
    """Move quantizers in front of reshapes and maxima, in place; the values stay the same.

    A kernel of OpenVINO writes integers only where a quantizer follows directly. OpenVINO moves dequantizers forward
    through these, but does not move quantizers back.
    """
    for quantize in list(model.graph):
        moved = quantize.inputs[0] if quantize.op_type == "QuantizeLinear" else None
        first = _first_move(moved)
        readers = [node for node, _ in quantize.outputs[0].uses()]
        if moved is None or first is None or not _is_per_tensor(quantize):
            continue
        if any(node.op_type != "DequantizeLinear" for node in readers):
            continue
        integers = onnx_ir.node("QuantizeLinear", [first.inputs[0], *quantize.inputs[1:]])
        floats = onnx_ir.node("DequantizeLinear", [integers.outputs[0], *quantize.inputs[1:]])
        floats.outputs[0].shape, floats.outputs[0].dtype = first.inputs[0].shape, first.inputs[0].dtype
        model.graph.insert_before(first, [integers, floats])
        for reader in readers:
            onnx_ir.convenience.replace_all_uses_with(reader.outputs[0], moved)
        model.graph.remove([*readers, quantize], safe=True)
        first.replace_input_with(0, floats.outputs[0])


def use_signed_integers(model: Any) -> None:
    """Replace uint8 with a zero point of 128 by int8 without one, in place; the values stay the same.

    Products of int8 are faster, because the zero point of uint8 must be multiplied with the weights, too.
    """
    for quantize in list(model.graph):
        if quantize.op_type != "QuantizeLinear" or not _has_middle_zero_point(quantize):
            continue
        readers = [node for node, _ in quantize.outputs[0].uses()]
        if quantize.outputs[0].is_graph_output() or any(node.op_type != "DequantizeLinear" for node in readers):
            continue
        zero_point = add_initializer(model, f"{quantize.name}_zero_point", np.zeros((), np.int8))
        for node in (quantize, *readers):
            node.replace_input_with(2, zero_point)
        quantize.outputs[0].dtype = zero_point.const_value.dtype


def add_biases(model: Any) -> None:
    """Add a bias to each integer convolution without one whose result has several readers, in place.

    Where one of the readers is a quantizer, OpenVINO (2026.4) mistakes the scale of what that receives, unless a bias
    is added in between. A bias of 0 would be removed first, so this one is tiny: it changes no number that is not
    tiny, too, and is still a normal number when it is divided by the scales.
    """
    for node in [node for node in model.graph if node.op_type == "Conv"]:
        result = node.outputs[0]
        if len(result.uses()) + result.is_graph_output() < 2:
            continue
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        if has_bias or any(dequantized_from(value) is None for value in node.inputs[:2]):
            continue
        channels = dequantized_from(node.inputs[1]).inputs[0].shape[0]
        bias = add_initializer(model, f"{node.name}_bias", np.full(channels, _SMALLEST_BIAS, np.float32))
        node.resize_inputs(3)
        node.replace_input_with(2, bias)


def multiply_rows(model: Any) -> None:
    """Compute products of an integer vector with a matrix as those of a row, in place.

    OpenVINO (2026.4) moves the scales of the weights behind the step that makes a vector of the row again, and keeps
    their two dims, so the result is a row. It does not move them past a limit, here that of all numbers.
    """
    for node in [node for node in model.graph if node.op_type == "MatMul"]:
        vector = node.inputs[0]
        if dequantized_from(vector) is None or vector.shape is None or len(vector.shape) != 1:
            continue
        axes = add_initializer(model, f"{node.name}_axes", np.array([0]))
        limits = [
            add_initializer(model, f"{node.name}_{kind}", np.array(value, np.float32))
            for kind, value in (("least", _FLOAT.min), ("most", _FLOAT.max))
        ]
        row = onnx_ir.node("Unsqueeze", [vector, axes])
        product = onnx_ir.node("MatMul", [row.outputs[0], node.inputs[1]])
        clipped = onnx_ir.node("Clip", [product.outputs[0], *limits])
        squeezed = onnx_ir.node("Squeeze", [clipped.outputs[0], axes])
        model.graph.insert_before(node, [row, product, clipped, squeezed])
        onnx_ir.convenience.replace_all_uses_with(node.outputs[0], squeezed.outputs[0], replace_graph_outputs=True)
        squeezed.outputs[0].name, squeezed.outputs[0].shape = node.outputs[0].name, node.outputs[0].shape
        squeezed.outputs[0].dtype = node.outputs[0].dtype
        model.graph.remove(node, safe=True)


def _has_middle_zero_point(quantize: Any) -> bool:
    zero_point = quantize.inputs[2].const_value if len(quantize.inputs) > 2 else None
    if zero_point is None or zero_point.size != 1:
        return False
    array = zero_point.numpy()
    return bool(array.dtype == np.uint8 and array.item() == 128)


def _first_move(value: Any) -> Any:
    """Return the first of the reshapes that end in ``value`` and have no other reader."""
    first = None
    while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
        producer = value.producer()
        if producer is None or producer.op_type not in _MOVES:
            break
        first, value = producer, producer.inputs[0]
    return first


def _is_per_tensor(quantize: Any) -> bool:
    scale = quantize.inputs[1].const_value
    return scale is not None and scale.size == 1
