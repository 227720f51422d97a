"""Weights of recurrent layers as the operators of ONNX take them, computed once and stored in their integers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prepbench.targets.onnx.weights import add_initializer, constant_of, remove_unused_nodes

Array = np.ndarray[Any, Any]

_LAYERS = ("LSTM", "GRU", "RNN")


def pack_recurrent_weights(model: Any) -> None:
    """Store the weights of recurrent layers in the order of ONNX, in place.

    Those in integers stay integers. Where a layer computes in float, a Cast and a product dequantize them, which
    runtimes compute once when they load the model; a DequantizeLinear they would compute in each call.

    Args:
        model: an ``onnx_ir.Model``.
    """
    made: dict[bytes, Any] = {}
    for node in [node for node in model.graph if node.op_type in _LAYERS]:
        found = [_evaluated(value) for value in node.inputs[1:4]]
        for index, weight in enumerate(found, start=1):
            if weight is not None and not isinstance(weight, _Integers):
                node.replace_input_with(index, _constant(model, made, f"{node.name}_{_NAMES[index]}", weight))
        if node.op_type == "LSTM" and "activations" in node.attributes:
            _compute_in_integers(model, made, node, found[:2])
            continue
        for index, weight in enumerate(found[:2], start=1):
            if isinstance(weight, _Integers):
                node.replace_input_with(index, _dequantized(model, made, node, index, weight))
        _dequantize_at_load(model, node)
    remove_unused_nodes(model)


_NAMES = ("x", "weights", "recurrent_weights", "biases")


class _Integers:
    """A weight in integers.

    Attributes:
        integers: int8 of any shape.
        scale: float32 of the same shape.
        zero_point: int8, likewise; None for none.
        block_size: how many neighbours along the last axis share a scale.
    """

    def __init__(self, integers: Array, scale: Array, zero_point: Array | None, block_size: int) -> None:
        self.integers, self.scale, self.zero_point, self.block_size = integers, scale, zero_point, block_size

    def mapped(self, function: Callable[[Array], Array]) -> _Integers:
        """The same with all parts moved alike."""
        zero_point = None if self.zero_point is None else function(self.zero_point)
        return _Integers(function(self.integers), function(self.scale), zero_point, self.block_size)


_Weight = Array | _Integers | None


def _evaluated(value: Any) -> _Weight:
    """What constants and operators that move values give; None for what is computed otherwise."""
    if value is None:
        return None
    if (array := constant_of(value)) is not None:
        return array if array.dtype in (np.float32, np.int64) else None
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "DequantizeLinear":
        return _from_quantized(node)
    operands: list[Any] = [_evaluated(operand) for operand in node.inputs]
    if any(operand is None for operand in operands):
        return None
    if node.op_type == "Concat":
        return _concatenated(operands, node.attributes.get_int("axis"))
    if node.op_type == "MatMul" and not any(isinstance(operand, _Integers) for operand in operands):
        return np.asarray(np.matmul(operands[0], operands[1]))
    if node.op_type == "Unsqueeze":
        axes = tuple(int(axis) for axis in operands[1])
        return _moved(operands[0], lambda array: np.expand_dims(array, axes))
    if node.op_type == "Split" and len(node.inputs) == 1:
        axis, count = node.attributes.get_int("axis", 0), len(node.outputs)
        place = next(i for i, output in enumerate(node.outputs) if output is value)
        return _moved(operands[0], lambda array: np.split(array, count, axis)[place])
    return None


def _from_quantized(node: Any) -> _Integers | None:
    arrays = [None if value is None else constant_of(value) for value in node.inputs]
    integers, scale, zero_point = arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None
    if integers is None or integers.ndim != 2 or scale is None:
        return None
    block = integers.shape[1] // scale.shape[1] if scale.ndim == 2 else integers.shape[1]

    def spread(array: Array) -> Array:
        """One for each integer."""
        wide = np.repeat(array, block, axis=1) if array.ndim == 2 else array.reshape(-1, 1)
        return np.broadcast_to(wide, integers.shape)

    zeros = None if zero_point is None or not zero_point.any() else spread(zero_point.astype(np.int8))
    return _Integers(integers.astype(np.int8), spread(scale), zeros, block)


def _moved(weight: Any, function: Callable[[Array], Array]) -> _Weight:
    return weight.mapped(function) if isinstance(weight, _Integers) else function(weight)


def _concatenated(parts: Sequence[Any], axis: int) -> _Weight:
    if not any(isinstance(part, _Integers) for part in parts):
        return np.concatenate(parts, axis)
    if not all(isinstance(part, _Integers) for part in parts) or len({part.block_size for part in parts}) > 1:
        return None
    zeros = [part.zero_point for part in parts]
    filled = [
        np.zeros(part.integers.shape, np.int8) if zero is None else zero
        for part, zero in zip(parts, zeros, strict=True)
    ]
    return _Integers(
        np.concatenate([part.integers for part in parts], axis),
        np.concatenate([part.scale for part in parts], axis),
        None if all(zero is None for zero in zeros) else np.concatenate(filled, axis),
        parts[0].block_size,
    )


def _compute_in_integers(model: Any, made: dict[bytes, Any], node: Any, weights: Sequence[Any]) -> None:
    """Make it an operator that takes integers, of shape (directions, inputs, gates), and a scale for each gate."""
    node.op_type, node.domain = "DynamicQuantizeLSTM", "com.microsoft"
    for name in ("layout", "input_forget"):
        node.attributes.pop(name, None)
    model.graph.opset_imports.setdefault("com.microsoft", 1)
    node.resize_inputs(12)
    for index, (name, weight) in enumerate(zip(_NAMES[1:3], weights, strict=True), start=1):
        scale = weight.scale[:, :, 0]
        integers = np.ascontiguousarray(weight.integers.transpose(0, 2, 1))
        parts = {index: integers, 6 + 2 * index: scale, 7 + 2 * index: np.zeros(scale.shape, np.int8)}
        for place, array in parts.items():
            node.replace_input_with(place, _constant(model, made, f"{node.name}_{name}_{place}", array))


def _dequantized(model: Any, made: dict[bytes, Any], node: Any, index: int, weight: _Integers) -> Any:
    """The weight as the product of its integers and scales."""
    import onnx_ir

    name, block = f"{node.name}_{_NAMES[index]}", weight.block_size
    shape = weight.integers.shape
    blocks = (*shape[:-1], shape[-1] // block, block)

    def add(kind: str, *inputs: Any, **attributes: Any) -> Any:
        new = onnx_ir.node(kind, list(inputs), attributes=attributes)
        model.graph.insert_before(node, new)
        return new.outputs[0]

    def constant(kind: str, array: Array) -> Any:
        return _constant(model, made, f"{name}_{kind}", array)

    def of_blocks(array: Array) -> Array:
        return array.reshape(blocks)[..., :1]

    result = add("Cast", constant("integers", weight.integers.reshape(blocks)), to=int(onnx_ir.DataType.FLOAT))
    if weight.zero_point is not None:
        result = add("Sub", result, constant("zeros", of_blocks(weight.zero_point).astype(np.float32)))
    result = add("Mul", result, constant("scales", of_blocks(weight.scale)))
    return add("Reshape", result, constant("shape", np.array(shape)))


def _dequantize_at_load(model: Any, node: Any) -> None:
    """Write what is left of DequantizeLinear in front of a layer as a product, where more than moving happens to it."""
    rest = [value.producer() for value in node.inputs[1:3] if value is not None and value.producer() is not None]
    while rest:
        before = rest.pop()
        weight = _from_quantized(before) if before.op_type == "DequantizeLinear" else None
        if weight is not None:
            import onnx_ir

            value = _dequantized(model, {}, before, 1, weight)
            onnx_ir.convenience.replace_all_uses_with(before.outputs[0], value)
            model.graph.remove(before, safe=True)
            continue
        if before.op_type in ("Concat", "MatMul", "Unsqueeze", "Split", "Transpose"):
            rest += [value.producer() for value in before.inputs if value is not None and value.producer() is not None]


def _constant(model: Any, made: dict[bytes, Any], name: str, array: Array) -> Any:
    """An initializer, the same for equal arrays."""
    array = np.ascontiguousarray(array)
    if array.dtype == np.int8 and array.size and array.min() >= -8 and array.max() <= 7 and "integers" in name:
        import ml_dtypes

        array = array.astype(ml_dtypes.int4)
    key = hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).digest()
    if key not in made:
        made[key] = add_initializer(model, name, array)
    return made[key]
