"""Quantized weights of float layers: packed, and in the layout of the kernels that unpack them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def pack_weights(model: Any) -> None:
    """Rewrite the weights of layers whose activations stay in float, in place.

    A matrix becomes the right operand of its product, because only there ONNX Runtime uses a kernel that unpacks
    weights while it multiplies (``MatMulNBits``). Integers from -8 to 7 are stored in 4 bits. Layers with quantized
    activations keep 8 bits, which is what their kernels read.

    Args:
        model: an ``onnx_ir.Model``.
    """
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or constant_of(node.inputs[0]) is None:
            continue
        readers = _readers(node.outputs[0])
        if not readers or not all(_is_weights_only(reader, index) for reader, index in readers):
            continue
        turned = _turn(model, node)
        _replace_integers(model, node, turned)


def dequantized_from(value: Any) -> Any:
    """Return the DequantizeLinear that a value comes from; None for others."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == "DequantizeLinear" else None


def add_initializer(model: Any, name: str, array: Any) -> Any:
    """Add an initializer with this value, whose name is made unique."""
    import onnx_ir

    return _add(model, name, lambda unique: onnx_ir.tensor(array, name=unique))


def _add_four_bits(model: Any, name: str, array: Any) -> Any:
    """Add an initializer with these numbers from -8 to 7, stored in half a byte each."""
    import onnx_ir

    numbers = array.reshape(-1).view(np.uint8)
    numbers = np.pad(numbers, (0, 1)) if numbers.size % 2 else numbers
    packed = (numbers[0::2] & 15) | (numbers[1::2] << 4)
    four_bits = onnx_ir.DataType.INT4
    return _add(model, name, lambda unique: onnx_ir.PackedTensor(packed, four_bits, shape=array.shape, name=unique))


def _add(model: Any, name: str, tensor: Callable[[str], Any]) -> Any:
    import onnx_ir

    while name in model.graph.initializers:
        name += "_"
    value = onnx_ir.Value(name=name, const_value=tensor(name))
    model.graph.register_initializer(value)
    return value


def constant_of(value: Any) -> Any:
    """Return the array of a constant value; None for others."""
    return None if value is None or value.const_value is None else value.const_value.numpy()


def remove_unused_nodes(model: Any) -> None:
    """Remove the nodes whose results nothing reads, in place."""
    for node in reversed(list(model.graph)):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            model.graph.remove(node, safe=True)


def remove_unused_initializers(model: Any) -> None:
    """Remove the initializers that nothing reads, in place."""
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        if not model.graph.initializers[name].is_graph_output():
            del model.graph.initializers[name]


def _readers(value: Any) -> list[tuple[Any, int]]:
    """Return the nodes that read a weight, directly or transposed."""
    result = []
    for node, index in value.uses():
        if node.op_type == "Transpose" and not node.outputs[0].is_graph_output():
            result += [(reader, place) for reader, place in node.outputs[0].uses()]
        else:
            result.append((node, index))
    return result


def _is_weights_only(reader: Any, index: int) -> bool:
    if reader.op_type == "Gather" and index == 0:
        return True
    return reader.op_type in _WEIGHTED and index == 1 and dequantized_from(reader.inputs[0]) is None


def _turn(model: Any, node: Any) -> bool:
    """Make the weight the right operand of its products, if all of them transpose it."""
    import onnx_ir

    uses = list(node.outputs[0].uses())
    if constant_of(node.inputs[0]).ndim != 2 or node.outputs[0].is_graph_output():
        return False
    if not all(_transposes(user) for user, _ in uses):
        return False
    for user, _ in uses:
        if user.op_type == "Gemm":
            user.attributes["transB"] = _integer("transB", 0)
        else:
            onnx_ir.convenience.replace_all_uses_with(user.outputs[0], node.outputs[0])
            model.graph.remove(user, safe=True)
    node.attributes["axis"] = _integer("axis", 1 - (node.attributes.get_int("axis", 1) % 2))
    node.outputs[0].shape = None
    return True


def _transposes(user: Any) -> bool:
    if user.op_type == "Gemm":
        return bool(user.attributes.get_int("transB", 0) == 1)
    return user.op_type == "Transpose" and not user.outputs[0].is_graph_output()


def _replace_integers(model: Any, node: Any, turned: bool) -> None:
    """Replace the inputs of a DequantizeLinear by transposed and packed arrays."""
    if len(node.inputs) > 2 and _is_zero(node.inputs[2]):
        node.resize_inputs(2)
    arrays = [constant_of(value) for value in node.inputs]
    integers = [array for array in (arrays[0], *arrays[2:]) if array is not None]
    small = all(array.dtype == np.int8 and array.size and -8 <= array.min() <= array.max() <= 7 for array in integers)
    for index, array in enumerate(arrays):
        if array is None:
            continue
        result = np.ascontiguousarray(array.T) if turned and array.ndim == 2 else array
        name = f"{node.inputs[index].name}_packed"
        if small and index != 1:
            node.replace_input_with(index, _add_four_bits(model, name, result))
        elif result is not array:
            node.replace_input_with(index, add_initializer(model, name, result))


def _is_zero(value: Any) -> bool:
    array = constant_of(value)
    return array is not None and not array.any()


def _integer(name: str, value: int) -> Any:
    import onnx_ir

    return onnx_ir.AttrInt64(name, value)
