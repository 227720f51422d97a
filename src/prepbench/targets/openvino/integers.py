"""Which integers the layers of an OpenVINO model multiply by."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_MULTIPLY = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul")
_MOVE = ("Reshape", "Transpose", "Convert")
_SCALE = (*_MOVE, "Multiply", "Subtract")
_FEW_BITS = ("i4", "u4")


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


def multiplies_few_bits(model: Any) -> bool:
    """Whether a layer multiplies by integers of 4 bits; a table that is only looked up in counts for nothing.

    Args:
        model: an ``openvino.Model``.
    """
    sources = (
        _constant_behind(operation.input_value(1).get_node(), _SCALE)
        for operation in model.get_ops()
        if operation.get_type_name() == "MatMul"
    )
    # others may have several results, and no type of their own
    constants = (source for source in sources if source.get_type_name() == "Constant")
    return any(constant.get_element_type().get_type_name() in _FEW_BITS for constant in constants)


def _is_float_constant(operation: Any) -> bool:
    operation = _constant_behind(operation, _MOVE)
    return bool(operation.get_type_name() == "Constant" and operation.get_element_type().is_real())


def _constant_behind(operation: Any, passed: Collection[str]) -> Any:
    """What an operation is made from by operations of these kinds: a constant, or what else stops the search."""
    while operation.get_type_name() in passed:
        operation = operation.input_value(0).get_node()
    return operation
