"""Whether all layers of an OpenVINO model are quantized."""

from __future__ import annotations

from typing import Any

_MULTIPLY = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul")
_MOVE = ("Reshape", "Transpose", "Convert")


def is_all_integer(model: Any) -> bool:
    """Whether activations are quantized and no layer has weights in float.

    Args:
        model: an ``openvino.Model``.
    """
    operations = model.get_ops()
    return any(operation.get_type_name() == "FakeQuantize" for operation in operations) and not any(
        _is_float_constant(operation.input_value(1).get_node())
        for operation in operations
        if operation.get_type_name() in _MULTIPLY
    )


def _is_float_constant(operation: Any) -> bool:
    while operation.get_type_name() in _MOVE:
        operation = operation.input_value(0).get_node()
    return bool(operation.get_type_name() == "Constant" and operation.get_element_type().is_real())
