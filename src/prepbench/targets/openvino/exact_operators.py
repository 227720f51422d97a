"""Keep OpenVINO exact for maxima, minima, ties, computed indices, Softplus and rounding to half precision."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.operators import OpOverload
from prepbench._torch_compat.sizes import SQRT
from prepbench.capture.aten.computed_in_float32 import is_rounding
from prepbench.capture.sizes.recurrent import has_lengths
from prepbench.errors import TargetError
from prepbench.packages import Deferred
from prepbench.running.source_lines import place_in_stack_trace
from prepbench.targets.complex_numbers import with_real_numbers
from prepbench.targets.dynamic_sizes import computed_from_sizes
from prepbench.targets.onnx.weights import add_initializer, adds_before, replace_node
from prepbench.targets.programs import is_complex

onnx_ir: Any = Deferred("onnx_ir")


_EXTREMES = ("ReduceMax", "ReduceMin")


def keep_extremes_in_floats(model: Any) -> None:
    """Insert a reshape behind each maximum and minimum over dims, in place; the values stay the same.

    OpenVINO (2026.4) computes what follows in the same kernel, up to a quantizer, and then takes the maximum of values
    that are no integers yet as if they were. It computes nothing in that kernel that follows a change of shape.
    """
    if not any(node.op_type == "QuantizeLinear" for node in model.graph):
        return
    for node in [node for node in model.graph if node.op_type in _EXTREMES]:
        axes = _axes(node)
        if axes is None:
            continue
        result, keeps = node.outputs[0], node.attributes.get_int("keepdims", 1)
        if len(node.inputs) < 2 or node.inputs[1] is None:
            node.resize_inputs(2)
        names = add_initializer(model, f"{result.name}_axes", np.array(axes))
        node.replace_input_with(1, names)
        other = onnx_ir.node(node.op_type, list(node.inputs), {"keepdims": 0 if keeps else 1}, name=node.name)
        other.metadata_props.update(node.metadata_props)
        shaped = onnx_ir.node("Unsqueeze" if keeps else "Squeeze", [other.outputs[0], names])
        model.graph.insert_before(node, [other, shaped])
        onnx_ir.convenience.replace_all_uses_with(result, shaped.outputs[0], replace_graph_outputs=True)
        shaped.outputs[0].name, shaped.outputs[0].shape, shaped.outputs[0].dtype = (
            result.name,
            result.shape,
            result.dtype,
        )
        model.graph.remove(node, safe=True)


def _axes(node: Any) -> list[int] | None:
    """Return the dims that a node reduces, from 0 on; None if they are unknown or empty."""
    value, rank = node.inputs[0], None
    if value is not None and value.shape is not None:
        rank = len(value.shape)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if rank is None or (given is not None and given.const_value is None):
        return None
    if given is None:
        return None if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in given.const_value.numpy().reshape(-1)) or None


# Ties in sorting and selection.


def keep_order_of_equals(model: Any) -> None:
    """Make the first of equal values come first, in place.

    ONNX specifies this order for TopK; OpenVINO (2026.4) has an attribute for it, which its ONNX reader does not set.
    OpenVINO rejects the attribute for unsorted results, so these are sorted, too.

    Args:
        model: an ``openvino.Model``.
    """
    for operation in model.get_ops():
        if operation.get_type_name() == "TopK" and "stable" in operation.get_attributes():
            if operation.get_attributes()["sort"] == "none":
                operation.set_attribute("sort", "value")
            operation.set_attribute("stable", True)


# Indices that a graph computes: OpenVINO reads and writes whatever memory they lead to.


_OF_ALL_DIMS = ("GatherND", "ScatterND")
_OF_ONE_DIM = ("GatherElements", "ScatterElements")


def keep_indices_inside(model: Any) -> None:
    """Clamp computed indices into bounds, in place.

    PyTorch raises for such an index, and so does ONNX Runtime. OpenVINO (2026.4) ends the process, or answers with what
    lies beside the table; it has no operator that raises.
    """
    for node in [node for node in model.graph if node.op_type in (*_OF_ALL_DIMS, *_OF_ONE_DIM)]:
        data, indices = node.inputs[:2]
        if indices.const_value is not None or indices.shape is None:
            continue
        if node.op_type in _OF_ONE_DIM:
            first, count = node.attributes.get_int("axis", 0), 1
            first = first % len(data.shape) if data.shape is not None else first
        else:
            first, count = node.attributes.get_int("batch_dims", 0), indices.shape[-1]
        if isinstance(count, int) and first >= 0:
            node.replace_input_with(1, _clipped(model, node, first, count))


def _clipped(model: Any, node: Any, first: int, count: int) -> Any:
    """Return the indices of a node clamped to the sizes of ``count`` dims of its data, and negative ones likewise."""

    def add(op: str, *inputs: Any, **attributes: Any) -> Any:
        made = onnx_ir.node(op, inputs, attributes=attributes)
        model.graph.insert_before(node, made)
        return made.outputs[0]

    def constant(kind: str, values: list[int]) -> Any:
        return add_initializer(model, f"{node.name}_{kind}", np.array(values))

    data, indices = node.inputs[:2]
    wide = add("Cast", indices, to=7)  # of int64, as sizes are
    sizes = add("Gather", add("Shape", data), constant("dims", list(range(first, first + count))), axis=0)
    inside = add("Min", wide, add("Sub", sizes, constant("one", [1])))
    inside = add("Max", inside, add("Neg", sizes))
    inside.shape = indices.shape
    return inside


# Integers of one byte.


_ARITHMETIC_OF_BYTES = ("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "BitShift", "MatMul")
_BYTES = ("INT8", "UINT8")


def keep_bytes_wrapping(model: Any) -> None:
    """Compute on integers of one byte in 32 bits, in place, and leave out the digits above a byte as PyTorch does.

    Arithmetic of OpenVINO (2026.4) on bytes ends at their limits, and so does a cast in the same kernel.
    """

    def constant(value: int) -> Any:
        return add_initializer(model, f"of_bytes_{value}", np.array(value, np.int32))

    for node in list(model.graph.all_nodes()):
        kind = node.inputs[0].dtype if node.op_type in _ARITHMETIC_OF_BYTES else None
        if kind is not None and kind.name in _BYTES:
            add = adds_before(node)
            operands = [add("Cast", value, to=onnx_ir.DataType.INT32.value) for value in node.inputs]
            attributes = {name: each.value for name, each in node.attributes.items()}
            lowest = add("BitwiseAnd", add(node.op_type, *operands, **attributes), constant(255))
            if kind.name == "INT8":
                lowest = add("Sub", add("BitwiseXor", lowest, constant(128)), constant(128))
            replace_node(node, add("Cast", lowest, to=kind.value))


# The integer types of an OpenVINO model's layers.


_TERMS = 7
_FLOAT_TYPES = {"FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64}


def keep_small_exponentials(model: Any) -> None:
    """Compute Softplus without adding a small exponential to one, in place.

    OpenVINO (2026.4) adds, so that nothing is left of values below -17, and at -10 one digit in a hundred is wrong. It
    also takes ``(1 + e) - 1`` for ``e``, so a sum is not corrected. ``log(1 + e)`` is twice the inverse hyperbolic
    tangent of ``e / (2 + e)``, which is a third at most: seven terms of its series are exact.
    """
    for node in [node for node in model.graph if node.op_type == "Softplus"]:
        x, result = node.inputs[0], node.outputs[0]
        kind = _FLOAT_TYPES.get(getattr(x.dtype, "name", ""))
        is_mish = all(user.op_type == "Tanh" for user in result.consumers())  # which has a kernel of its own
        if kind is None or is_mish:
            continue
        numbers = {
            name: add_initializer(model, f"{result.name}_{name}", np.array(value, kind))
            for name, value in (("two", 2.0), *((f"term_{place}", 2.0 / (2 * place + 1)) for place in range(_TERMS)))
        }
        made: list[Any] = []

        def add(operator: str, *inputs: Any, made: list[Any] = made) -> Any:
            made.append(onnx_ir.node(operator, list(inputs)))
            return made[-1].outputs[0]

        small = add("Exp", add("Neg", add("Abs", x)))
        share = add("Div", small, add("Add", small, numbers["two"]))
        square, series = add("Mul", share, share), numbers[f"term_{_TERMS - 1}"]
        for place in reversed(range(_TERMS - 1)):
            series = add("Add", add("Mul", series, square), numbers[f"term_{place}"])
        log = add("Mul", share, series)
        final = add("Add", add("Relu", x), log)
        for other in made:
            other.metadata_props.update(node.metadata_props)
        model.graph.insert_before(node, made)
        onnx_ir.convenience.replace_all_uses_with(result, final, replace_graph_outputs=True)
        final.name, final.shape, final.dtype = result.name, result.shape, result.dtype
        model.graph.remove(node, safe=True)


# of each half-precision type: the bits after the first one, the exponents that are told apart, and the largest number
_HALF = {"BFLOAT16": (7, -119, 127, float(torch.finfo(torch.bfloat16).max)), "FLOAT16": (10, -14, 15, 65504.0)}
_OF_FORM = frozenset({"Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Identity", "Slice", "Gather", "Split"})


def keep_rounding(model: Any) -> None:
    """Round by arithmetic what is cast to half precision and back, in place; the cast has nothing left to round.

    OpenVINO (2026.4) drops both casts. Here a number becomes a multiple of the last digit that the type has for its
    size, with ties to even. Below 1e-36, where bfloat16 has more digits than OpenVINO computes with, it has fewer.

    Args:
        model: an ``onnx_ir.Model``.
    """
    for node in [node for node in model.graph if node.op_type == "Cast"]:
        x, kind = node.inputs[0], onnx_ir.DataType(node.attributes.get_int("to", 0)).name
        if kind not in _HALF or x.dtype == onnx_ir.DataType.DOUBLE or not _is_cast_again(node):
            continue
        bits, lowest, highest, largest = _HALF[kind]
        made: list[Any] = []

        def add(operator: str, *inputs: Any, made: list[Any] = made, **attributes: Any) -> Any:
            made.append(onnx_ir.node(operator, list(inputs), attributes=attributes))
            return made[-1].outputs[0]

        def number(name: str, value: Any, kind: Any = np.float32, result: Any = node.outputs[0]) -> Any:
            return add_initializer(model, f"{result.name}_{name}", np.array(value, kind))

        x = add("Cast", x, to=onnx_ir.DataType.FLOAT.value)
        # beside a power of two the exponent may be off by one, and the result is the power all the same
        inside = add("Clip", add("Abs", x), number("least", 2.0**lowest), number("most", 1.5 * 2.0**highest))
        exponent = add("Floor", add("Mul", add("Log", inside), number("of_two", 1 / math.log(2))))
        place = add(
            "Clip",
            add("Sub", add("Cast", exponent, to=onnx_ir.DataType.INT64.value), number("first", lowest, np.int64)),
            number("zero", 0, np.int64),
            number("end", highest - lowest, np.int64),
        )
        units = 2.0 ** (np.arange(lowest, highest + 1) - bits)
        unit, inverse = (
            add("Gather", number(name, table), place) for name, table in (("unit", units), ("inverse", 1 / units))
        )
        rounded = add("Mul", add("Round", add("Mul", x, inverse)), unit)
        is_over = add("Greater", add("Abs", rounded), number("largest", largest))
        final = add("Where", is_over, add("Mul", rounded, number("infinity", np.inf)), rounded)
        for other in made:
            other.metadata_props.update(node.metadata_props)
        model.graph.insert_before(node, made)
        node.replace_input_with(0, final)


def _is_cast_again(node: Any) -> bool:
    """Return whether all that reads the result of a cast casts it again, as in :func:`is_rounding`."""
    rest, is_cast_again = [node.outputs[0]], False
    while rest:
        for user in rest.pop().consumers():
            if user.op_type == "Cast":
                is_cast_again = True
            elif user.op_type in _OF_FORM:
                rest += user.outputs
            else:
                return False
    return is_cast_again


_MULTIPLY = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul")
_MOVE = ("Reshape", "Transpose", "Convert")
_SCALE = (*_MOVE, "Multiply", "Subtract")
# quantizers are moved in front of these
_AFTER_QUANTIZER = (*_SCALE, "Squeeze", "Unsqueeze", "MaxPool", "ReduceMax", "ReduceMin")
_FEW_BITS = ("i4", "u4")


def is_all_integer(model: Any) -> bool:
    """Return whether activations are quantized, and no layer has weights or activations in float.

    A layer whose weights alone are quantized multiplies in the precision of the rest, which bfloat16 would round as
    coarsely as int8 does.
    """
    operations = model.get_ops()
    return any(operation.get_type_name() == "FakeQuantize" for operation in operations) and not any(
        _multiplies_in_float(*(operation.input_value(place).get_node() for place in (0, 1)))
        for operation in operations
        if operation.get_type_name() in _MULTIPLY
    )


# What turns a small rounding of its operands into a large one of its results: angles and exponents of large numbers,
# sums of many, places that are looked up, the steps of rounding, and choices of the largest.
_AMPLIFY = frozenset(
    {"Sin", "Cos", "Tan", "Exp", "CumSum", "Mod", "FloorMod", "Floor", "Ceiling", "Round", "GridSample", "TopK",
     "NonMaxSuppression", "DFT", "IDFT", "RDFT", "IRDFT"}
)  # fmt: skip


def amplifies_rounding(model: Any) -> bool:
    """Return whether an operator of floating-point numbers amplifies the rounding of its operands."""
    return any(
        operation.get_type_name() in _AMPLIFY and operation.get_input_element_type(0).is_real()
        for operation in model.get_ops()
    )


def multiplies_few_bits(model: Any) -> bool:
    """Return whether a layer multiplies by 4-bit integers; lookup tables do not count."""
    sources = (
        _constant_behind(operation.input_value(1).get_node(), _SCALE)
        for operation in model.get_ops()
        if operation.get_type_name() == "MatMul"
    )
    # others may have several results, and no type of their own
    constants = (source for source in sources if source.get_type_name() == "Constant")
    return any(constant.get_element_type().get_type_name() in _FEW_BITS for constant in constants)


def _multiplies_in_float(values: Any, weights: Any) -> bool:
    """Return whether a layer has weights in float, or integer ones for values that no quantizer has rounded."""
    weights = _constant_behind(weights, _MOVE)
    if weights.get_type_name() == "Constant":
        return bool(weights.get_element_type().is_real())
    is_layer = _constant_behind(weights, _SCALE).get_type_name() == "Constant"
    return is_layer and _constant_behind(values, _AFTER_QUANTIZER).get_type_name() not in ("FakeQuantize", "Constant")


def _constant_behind(operation: Any, passed: Collection[str]) -> Any:
    """Return the constant behind an operation, through operations of these kinds, or the node that ends the search."""
    while operation.get_type_name() in passed:
        operation = operation.input_value(0).get_node()
    return operation


# Operators that OpenVINO reads but computes wrongly.


Program = torch.export.ExportedProgram

_FOURIER = ("aten::fft_", "aten::_fft_", "aten::stft", "aten::istft")


def wrong_nodes(program: Program) -> list[torch.fx.Node]:
    """Return the nodes that :func:`check_right` would refuse."""
    return [node for node in program.graph.nodes if _what_is_wrong(node) and not _becomes_real(program, node)]


def check_right(program: Program) -> None:
    """Raise ``TargetError`` naming the first operator that OpenVINO would compute wrongly."""
    for node in program.graph.nodes:
        if size := _rounded_otherwise(node):
            place = place_in_stack_trace(node.meta.get("stack_trace"))
            raise TargetError(
                f"OpenVINO computes real numbers in float32, where {getattr(node.target, '__name__', node.target)} of "
                f"a size gives another whole number than in Python, for a size of {size} first"
                + (f" ({place[0]}:{place[1]})" if place else "")
                + ". Compute it from whole numbers, such as n * 7 // 10 for int(n * 0.7), or choose "
                "OnnxRuntimeDeployment()."
            )
        if (reason := _what_is_wrong(node)) and not _becomes_real(program, node):
            raise TargetError(
                f"OpenVINO computes {node.target} {reason}. Choose OnnxRuntimeDeployment() or InductorDeployment() "
                "for this model, or fullgraph=False, which leaves this operator to PyTorch."
            )


def _what_is_wrong(node: torch.fx.Node) -> str:
    """Return the bug of OpenVINO (2026.4) with an operator; "" for none."""
    if not isinstance(node.target, OpOverload):
        return ""
    if node.target.name().startswith(_FOURIER) and node.target not in computed_from_sizes():
        return "along the wrong axis"  # since version 20 of ONNX it is an input, which is ignored
    if is_rounding(node) and node.all_input_nodes[0].meta["val"].dtype == torch.float64:
        return "with two roundings, the first one to float32"
    if has_lengths(node):
        return "as if all sequences were of one length"
    return ""


def _becomes_real(program: Program, node: torch.fx.Node) -> bool:
    """Return whether a Fourier transform is computed as products of real numbers instead."""
    return any(map(is_complex, (node, *node.all_input_nodes))) and with_real_numbers(program) is not program


# sizes at which numbers are tried
_SIZES = 4096
_ROUNDING: dict[Any, Any] = {math.floor: np.floor, math.ceil: np.ceil, math.trunc: np.trunc, round: np.rint}
_ARITHMETIC: dict[Any, Any] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
    operator.truediv: operator.truediv,
    operator.pow: operator.pow,
    pow: operator.pow,
    operator.floordiv: operator.floordiv,
    operator.mod: operator.mod,
    torch.sym_float: operator.pos,
    torch.sym_max: np.maximum,
    torch.sym_min: np.minimum,
    SQRT: np.sqrt,
}


def _rounded_otherwise(node: torch.fx.Node) -> int:
    """Return the first size at which a rounded number differs in float32; 0 for none.

    Quotients of whole numbers are rounded by whole numbers, so they are right.
    """
    operand = node.args[0] if node.op == "call_function" and node.target in _ROUNDING else None
    if not isinstance(operand, torch.fx.Node) or not isinstance(operand.meta.get("val"), torch.SymFloat):
        return 0
    if operand.target is operator.truediv and not any(map(_is_real, operand.args)):
        return 0
    single, double = (_numbers(operand, dtype) for dtype in (np.float32, np.float64))
    if single is None or double is None:
        return 0
    rounded = _ROUNDING[node.target]
    wrong = np.flatnonzero(rounded(single) != rounded(double))
    return int(wrong[0]) + 1 if wrong.size else 0


def _is_real(value: Any) -> bool:
    found = value.meta.get("val") if isinstance(value, torch.fx.Node) else value
    return isinstance(found, float | torch.SymFloat)


def _numbers(node: Any, dtype: Any) -> Any:
    """Return the value of a number for sizes from 1 on, all equal; None if unknown."""
    if isinstance(node, int | float):
        return dtype(node)
    if not isinstance(node, torch.fx.Node):
        return None
    if node.target is torch.ops.aten.sym_size.int:
        return np.arange(1, _SIZES + 1).astype(dtype)
    operands = [_numbers(part, dtype) for part in node.args]
    if node.target not in _ARITHMETIC or any(part is None for part in operands):
        return None
    with np.errstate(all="ignore"):
        return _ARITHMETIC[node.target](*operands)
