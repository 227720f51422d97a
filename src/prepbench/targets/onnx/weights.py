"""Quantized weights of float layers in an ``onnx_ir.Model``: packed, in the layout of kernels that unpack them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prepbench.packages import Deferred
from prepbench.settings.numbers import INT4, INT8, NumberFormat

onnx: Any = Deferred("onnx")
onnx_ir: Any = Deferred("onnx_ir")

_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def pack_weights(model: Any) -> None:
    """Rewrite the weights of layers whose activations stay in float, in place.

    A matrix becomes the right operand of its product, because only there ONNX Runtime uses a kernel that unpacks
    weights while it multiplies (``MatMulNBits``). Integers from -8 to 7 are stored in 4 bits. Layers with quantized
    activations keep 8 bits, which is what their kernels read.
    """
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or constant_of(node.inputs[0]) is None:
            continue
        readers = _readers(node.outputs[0])
        if not readers or not all(_is_weights_only(reader, index) for reader, index in readers):
            continue
        turned = _turn(model, node)
        _replace_integers(model, node, turned)


_CONVOLUTIONS = ("Conv", "ConvTranspose")


def dequantize_at_load(model: Any) -> None:
    """Rewrite the dequantizers of convolutions whose activations stay in float as products of constants, in place.

    ONNX Runtime has no kernel of convolutions that unpacks weights. It computes such products once, when it loads the
    file, and a DequantizeLinear in each call.
    """
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or any(constant_of(value) is None for value in node.inputs):
            continue
        uses, output = list(node.outputs[0].uses()), node.outputs[0]
        in_float = all(user.op_type in _CONVOLUTIONS and _is_weights_only(user, index) for user, index in uses)
        if uses and in_float and not output.is_graph_output() and "block_size" not in node.attributes:
            _multiply_constants(model, node)


def adds_before(node: Any) -> Callable[..., Any]:
    """Return a function that puts an operator in front of a node and returns its first result."""

    def add(kind: str, *inputs: Any, **attributes: Any) -> Any:
        new = onnx_ir.node(kind, list(inputs), attributes=attributes)
        node.graph.insert_before(node, new)
        return new.outputs[0]

    return add


def replace_node(node: Any, result: Any) -> None:
    """Remove a node with one result, in whose place another value stands."""
    import onnx_ir

    old = node.outputs[0]
    result.producer().metadata_props.update(node.metadata_props)
    onnx_ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    result.name, result.shape, result.dtype = old.name, old.shape, old.dtype
    node.graph.remove(node, safe=True)


def _multiply_constants(model: Any, node: Any) -> None:
    integers, scale, *zero_points = node.inputs
    rank, axis = len(integers.const_value.shape), node.attributes.get_int("axis", 1)
    shape = [-1 if place == axis % rank else 1 for place in range(rank)] if constant_of(scale).size > 1 else [1] * rank

    def constant(value: Any) -> Any:
        array = constant_of(value).astype(np.float32).reshape(shape)
        return add_initializer(model, f"{value.name}_of_channels", array)

    add = adds_before(node)

    result = add("Cast", integers, to=int(onnx_ir.DataType.FLOAT))
    for zero_point in zero_points:
        result = add("Sub", result, constant(zero_point))
    result = add("Mul", result, constant(scale))
    result.shape, result.dtype = node.outputs[0].shape, node.outputs[0].dtype
    onnx_ir.convenience.replace_all_uses_with(node.outputs[0], result)
    model.graph.remove(node, safe=True)


def dequantized_from(value: Any) -> Any:
    """Return the DequantizeLinear that a value comes from; None for others."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == "DequantizeLinear" else None


def add_initializer(model: Any, name: str, array: Any) -> Any:
    """Add an initializer with this value, whose name is made unique."""
    return _add(model, name, lambda unique: onnx_ir.tensor(array, name=unique))


def _add_four_bits(model: Any, name: str, array: Any) -> Any:
    """Add an initializer with these numbers from -8 to 7, stored in half a byte each."""
    numbers = array.reshape(-1).view(np.uint8)
    numbers = np.pad(numbers, (0, 1)) if numbers.size % 2 else numbers
    packed = (numbers[0::2] & 15) | (numbers[1::2] << 4)
    four_bits = onnx_ir.DataType.INT4
    return _add(model, name, lambda unique: onnx_ir.PackedTensor(packed, four_bits, shape=array.shape, name=unique))


def _add(model: Any, name: str, tensor: Callable[[str], Any]) -> Any:
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
    small = all(array.dtype == np.int8 and array.size and INT4.holds(array) for array in integers)
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
    return onnx_ir.AttrInt64(name, value)


# Integer embedding tables: only the looked-up rows are unpacked.


# sizes of blocks that ``MatMulNBits`` takes
_BLOCKS = (256, 128, 64, 32, 16)


def look_up_integers(model: Any) -> None:
    """Look rows up before dequantizing them, in place.

    ONNX Runtime would dequantize the whole table in each call. Integers from -8 to 7 are stored as two in a byte, and
    where a product multiplies by the same table, ``MatMulNBits`` reads the same bytes.
    """
    for node in list(model.graph):
        table = constant_of(node.inputs[0]) if node.op_type == "DequantizeLinear" else None
        lookups = [user for user, index in node.outputs[0].uses() if _is_lookup(user, index)]
        if table is None or table.ndim != 2 or not lookups or node.outputs[0].is_graph_output():
            continue
        products = _products(node)
        stored = _stored(model, node, table.astype(np.int8), shared=bool(products))
        for lookup in lookups:
            _replace(model, lookup, _rows(model, stored, lookup))
        if stored.is_shared:
            _share(model, products, stored)
        if not node.outputs[0].uses():
            model.graph.remove(node, safe=True)


@dataclass(frozen=True)
class _Table:
    """A table in its stored form.

    Attributes:
        integers: int8 of shape (rows, columns); or uint8 of shape (rows, blocks, bytes of a block), the integers with
            ``middle`` added.
        scale: float32 of shape (rows, blocks).
        zero_point: likewise; None for none.
        columns: of the table.
        middle: the offset of the bytes.
        format: int4 or int8.
        is_shared: whether the bytes are as ``MatMulNBits`` reads them, and read by it.
    """

    integers: Any
    scale: Any
    zero_point: Any
    columns: int
    middle: int
    format: NumberFormat
    is_shared: bool


def _stored(model: Any, node: Any, table: np.ndarray[Any, Any], *, shared: bool) -> _Table:
    """Return the table, if its integers and scales are initializers."""
    name = node.inputs[0].name
    scale = constant_of(node.inputs[1])
    zero = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale.ndim < 2:
        scale = np.broadcast_to(scale.reshape(-1, 1), (len(table), 1))
        zero = None if zero is None else np.broadcast_to(zero.reshape(-1, 1), scale.shape)
    zero = None if zero is None or not zero.any() else zero.astype(np.float32)
    columns = table.shape[1]
    block = columns // scale.shape[1]
    if shared and block not in _BLOCKS:
        block = next((size for size in _BLOCKS if block % size == 0), 0)
        shared = block > 0
        repeats = columns // block // scale.shape[1] if shared else 1
        scale, zero = (None if value is None else np.repeat(value, repeats, axis=1) for value in (scale, zero))
    kind = INT4 if INT4.holds(table) and (columns // scale.shape[1]) % 2 == 0 else INT8
    integers, middle = node.inputs[0], 0
    if shared or kind is INT4:
        middle = -int(kind.low)
        packed: Any = (table.astype(np.int16) + middle).astype(np.uint8).reshape(len(table), scale.shape[1], -1)
        if kind is INT4:
            packed = packed[..., 0::2] | (packed[..., 1::2] << 4)
        integers = add_initializer(model, f"{name}_table", np.ascontiguousarray(packed))
    return _Table(
        integers,
        add_initializer(model, f"{name}_scales", np.ascontiguousarray(scale)),
        None if zero is None else add_initializer(model, f"{name}_zeros", np.ascontiguousarray(zero)),
        columns,
        middle,
        kind,
        shared,
    )


def _is_lookup(user: Any, index: int) -> bool:
    return user.op_type == "Gather" and index == 0 and user.attributes.get_int("axis", 0) == 0


def _rows(model: Any, table: _Table, lookup: Any) -> list[Any]:
    """Return the nodes that compute the result of a lookup, in order."""
    nodes: list[Any] = []

    def add(kind: str, *inputs: Any, **attributes: Any) -> Any:
        nodes.append(onnx_ir.node(kind, list(inputs), attributes=attributes))
        return nodes[-1].outputs[0]

    def constant(name: str, value: Any) -> Any:
        return add_initializer(model, f"{table.integers.name}_{name}", value)

    index = lookup.inputs[1]
    rank = len(index.shape)
    blocks = table.scale.const_value.shape[1]
    found = add("Gather", table.integers, index, axis=0)
    if table.format is INT4:
        parts = [
            add("Unsqueeze", part, constant("last", np.array([-1])))
            for part in (
                add("BitwiseAnd", found, constant("mask", np.array(15, np.uint8))),
                add("BitShift", found, constant("shift", np.array(4, np.uint8)), direction="RIGHT"),
            )
        ]
        found = add("Concat", *parts, axis=-1)
    found = add("Reshape", found, constant("blocks", np.array([0] * rank + [blocks, table.columns // blocks])))
    found = add("Cast", found, to=int(onnx_ir.DataType.FLOAT))
    if table.middle:
        found = add("Sub", found, constant("middle", np.array(table.middle, np.float32)))
    last = constant("each", np.array([-1]))
    if table.zero_point is not None:
        found = add("Sub", found, add("Unsqueeze", add("Gather", table.zero_point, index, axis=0), last))
    found = add("Mul", found, add("Unsqueeze", add("Gather", table.scale, index, axis=0), last))
    add("Reshape", found, constant("columns", np.array([0] * rank + [table.columns])))
    return nodes


def _replace(model: Any, lookup: Any, nodes: list[Any]) -> None:
    old, new = lookup.outputs[0], nodes[-1].outputs[0]
    new.shape, new.dtype = old.shape, old.dtype
    name, is_output = old.name, old.is_graph_output()
    model.graph.insert_before(lookup, nodes)
    onnx_ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    model.graph.remove(lookup, safe=True)
    if is_output:
        new.name = name


def _products(node: Any) -> dict[Any, list[Any]]:
    """Return the products that multiply by the transposed table, by the node that transposes it."""
    found = {}
    for turn, _ in node.outputs[0].uses():
        users = [user for user, _ in turn.outputs[0].uses()]
        is_inside = turn.op_type == "Transpose" and not turn.outputs[0].is_graph_output()
        if is_inside and all(user.op_type == "MatMul" and user.inputs[1] is turn.outputs[0] for user in users):
            found[turn] = users
    return found


def _share(model: Any, products: Mapping[Any, Sequence[Any]], table: _Table) -> None:
    """Make products read the bytes of the lookup table."""
    rows, blocks, _ = table.integers.const_value.shape
    attributes = {"K": table.columns, "N": rows, "bits": table.format.bits, "block_size": table.columns // blocks}
    zeros = _packed_zeros(model, table)
    model.graph.opset_imports.setdefault("com.microsoft", 1)
    for turn, users in products.items():
        for product in users:
            operands = [product.inputs[0], table.integers, table.scale, *zeros]
            node = onnx_ir.node("MatMulNBits", operands, attributes=attributes, domain="com.microsoft")
            _replace(model, product, [node])
        model.graph.remove(turn, safe=True)


def _packed_zeros(model: Any, table: _Table) -> list[Any]:
    if table.zero_point is None:
        return []
    zeros = (table.zero_point.const_value.numpy() + table.middle).astype(np.uint8)
    if table.format is INT4:
        zeros = np.pad(zeros, ((0, 0), (0, zeros.shape[1] % 2)))
        zeros = zeros[:, 0::2] | (zeros[:, 1::2] << 4)
    return [add_initializer(model, f"{table.integers.name}_packed_zeros", np.ascontiguousarray(zeros))]


# What an ONNX file stores: read from the file itself, without its weights.


def stored_bits(file: Path) -> dict[str, int]:
    """Return the bits of each constant in a file, by name; weights may lie beside it, and are not read.

    Numbers of 4 bits take half a byte each.
    """
    model = onnx.load(str(file), load_external_data=False)
    return {one.name: math.prod(one.dims) * _bits(one.data_type) for one in model.graph.initializer}


def _bits(data_type: int) -> int:
    """Return the bits of one number of a type."""
    name = onnx.TensorProto.DataType.Name(data_type)  # such as INT4
    if name == "STRING":
        return 0
    few = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
    return few.get(name) or int(onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8


# Other names for the inputs and outputs of an ONNX file.


def rename_ends(file: Path, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Rename inputs and outputs of a file, in place; those in bfloat16 become float32, for NumPy arrays.

    Weights beside the file stay as they are.
    """
    model: Any = onnx_ir.load(file)
    for value in list(model.graph.inputs):
        name = inputs.get(value.name, value.name)
        value.name = f"{name} inside"  # outputs may have the name for now
        if value.dtype == onnx_ir.DataType.BFLOAT16:
            _widen_input(model, value)
    for place, name in enumerate(outputs):
        _name_output(model, place, name)
    for value in model.graph.inputs:
        value.name = value.name.removesuffix(" inside")
    names = model.metadata_props.get("prepbench.inputs", "").split("\n")
    model.metadata_props["prepbench.inputs"] = "\n".join(inputs.get(name, name) for name in names)
    onnx_ir.save(model, file)


def _widen_input(model: Any, value: Any) -> None:
    uses = list(value.uses())
    cast = onnx_ir.node("Cast", [value], attributes={"to": onnx_ir.DataType.BFLOAT16})
    inside = cast.outputs[0]
    inside.dtype, inside.shape = onnx_ir.DataType.BFLOAT16, value.shape
    for node, place in uses:
        node.replace_input_with(place, inside)
    model.graph.insert_before(model.graph[0], cast)
    value.dtype = onnx_ir.DataType.FLOAT


def _name_output(model: Any, place: int, name: str) -> None:
    """Name an output; one that has other roles, or is in bfloat16, becomes a separate value."""
    value = model.graph.outputs[place]
    before = list(model.graph.outputs)[:place]
    is_narrow = value.dtype == onnx_ir.DataType.BFLOAT16
    if not is_narrow and not value.is_graph_input() and not any(value is other for other in before):
        value.name = name
        return
    to = {"to": onnx_ir.DataType.FLOAT} if is_narrow else {}
    node = onnx_ir.node("Cast" if is_narrow else "Identity", [value], attributes=to)
    made = node.outputs[0]
    made.dtype, made.shape, made.name = onnx_ir.DataType.FLOAT if is_narrow else value.dtype, value.shape, name
    if value.name == name:
        value.name = f"{name} inside"
    model.graph.append(node)
    model.graph.outputs[place] = made
