"""Passes over the ONNX graph that OpenVINO reads: where quantizers are, and which integers they write."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer

_MOVES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "MaxPool")


def hoist_quantizers(model: Any) -> None:
    """Move quantizers in front of changes of shape, in place; the values stay the same.

    A kernel of OpenVINO writes integers only where a quantizer follows directly. OpenVINO moves dequantizers forward
    through changes of shape, but does not move quantizers back.

    Args:
        model: an ``onnx_ir.Model``.
    """
    import onnx_ir

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
        model.graph.insert_before(first, [integers, floats])
        for reader in readers:
            onnx_ir.convenience.replace_all_uses_with(reader.outputs[0], moved)
        model.graph.remove([*readers, quantize], safe=True)
        first.replace_input_with(0, floats.outputs[0])


def use_signed_integers(model: Any) -> None:
    """Replace uint8 with a zero point of 128 by int8 without one, in place; the values stay the same.

    Products of int8 are faster, because the zero point of uint8 must be multiplied with the weights, too.

    Args:
        model: an ``onnx_ir.Model``.
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


def _has_middle_zero_point(quantize: Any) -> bool:
    zero_point = quantize.inputs[2].const_value if len(quantize.inputs) > 2 else None
    if zero_point is None or zero_point.size != 1:
        return False
    array = zero_point.numpy()
    return bool(array.dtype == np.uint8 and array.item() == 128)


def _first_move(value: Any) -> Any:
    """The first of the changes of shape that end in ``value`` and that nothing else reads."""
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
