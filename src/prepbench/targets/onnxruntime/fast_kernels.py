"""Write operators whose kernels in ONNX Runtime are slow by others that are fast and give the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from prepbench.packages import Deferred
from prepbench.targets.onnx.weights import add_initializer, adds_before, constant_of, replace_node

onnx_ir: Any = Deferred("onnx_ir")

_FEW = 4096
"""Numbers of a tensor up to which one slow kernel costs less than starting several fast ones."""

_SOME = 256
"""What a dim of unknown size, such as a length or a height, is taken for."""


def use_fast_kernels(model: Any) -> None:
    """Replace operators on float32, in place.

    Each of them computes number by number in ONNX Runtime (1.31), without vector instructions; what replaces it takes a
    tenth to a third of the time. ``python -m tests.benchmarks kernels`` measures them.
    """
    nodes = list(model.graph.all_nodes())
    # pools first, because they look at the operators in front of them
    for node in sorted(nodes, key=lambda node: node.op_type != "MaxPool"):
        write = _WRITTEN.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if write is None or not node.inputs or node.inputs[0].dtype != onnx_ir.DataType.FLOAT or _is_small(node):
            continue
        result = write(_Writer(model, node), node)
        if result is not None:
            replace_node(node, result)


def _is_small(node: Any) -> bool:
    """Return whether few numbers go in and out, where a batch has one row and other unknown dims have some."""
    found = [dims for value in (node.inputs[0], node.outputs[0]) if (dims := _dims(value)) is not None]
    counts = [
        math.prod(dim if isinstance(dim, int) else _SOME if place else 1 for place, dim in enumerate(dims))
        for dims in found
    ]
    return bool(counts) and max(counts) < _FEW


def _dims(value: Any) -> list[Any] | None:
    """Return the dims of a value, names for those that are not known; None if their number is not known either."""
    return None if value.shape is None else list(value.shape)


class _Writer:
    """Puts operators in front of a node."""

    def __init__(self, model: Any, node: Any) -> None:
        self._model, self._node, self._name = model, node, node.outputs[0].name

    def add(self, kind: str, *inputs: Any, **attributes: Any) -> Any:
        result = adds_before(self._node)(kind, *inputs, **attributes)
        result.producer().metadata_props.update(self._node.metadata_props)  # of the same layer
        return result

    def number(self, value: float) -> Any:
        return add_initializer(self._model, f"{self._name}_number", np.array(value, np.float32))

    def integers(self, *values: int) -> Any:
        return add_initializer(self._model, f"{self._name}_integers", np.array(values))


def _leaky(writer: _Writer, node: Any) -> Any:
    x, slope = node.inputs
    if x.shape is None or len(x.shape) < 3:  # rows as long as the slopes are fast
        return None
    below = writer.add("Mul", writer.add("Min", x, writer.number(0)), slope)
    return writer.add("Add", writer.add("Relu", x), below)


def _mish(writer: _Writer, node: Any) -> Any:
    """Compute tanh(log(1 + e**x)) as n / (n + 2) with n = e**x (e**x + 2); from 20 on it is 1."""
    x = node.inputs[0]
    power = writer.add("Exp", writer.add("Min", x, writer.number(20)))
    n = writer.add("Mul", power, writer.add("Add", power, writer.number(2)))
    return writer.add("Mul", x, writer.add("Div", n, writer.add("Add", n, writer.number(2))))


def _softplus(writer: _Writer, node: Any) -> Any:
    """Compute max(x, 0) + log(1 + p) with p = e**-|x|, where the quotient makes up for the digits that 1 + p loses."""
    x, one = node.inputs[0], writer.number(1)
    power = writer.add("Exp", writer.add("Neg", writer.add("Abs", x)))
    total = writer.add("Add", power, one)
    rest = writer.add("Sub", total, one)
    logarithm = writer.add("Mul", writer.add("Log", total), writer.add("Div", power, rest))
    logarithm = writer.add("Where", writer.add("Equal", rest, writer.number(0)), power, logarithm)
    return writer.add("Add", writer.add("Max", x, writer.number(0)), logarithm)


def _power(writer: _Writer, node: Any) -> Any:
    """Compute powers that are roots, reciprocals and products, as PyTorch does."""
    x, constant = node.inputs[0], constant_of(node.inputs[1])
    exponent = float(constant) if constant is not None and constant.size == 1 else 0.0
    if exponent not in (-4, -2, -1, -0.5, 0.5, 4):  # its kernel is fast for 2 and 3
        return None
    result = writer.add("Sqrt", x) if abs(exponent) == 0.5 else x
    for _ in range(round(math.log2(max(abs(exponent), 1)))):
        result = writer.add("Mul", result, result)
    return writer.add("Reciprocal", result) if exponent < 0 else result


def _softmax(writer: _Writer, node: Any) -> Any:
    """Compute a softmax over a dim that is not the last: its kernel goes through such dims with large steps."""
    x, dims, axis = node.inputs[0], _dims(node.inputs[0]), node.attributes.get_int("axis", -1)
    if dims is None or axis % len(dims) == len(dims) - 1 or not isinstance(dims[axis], int) or not dims[axis]:
        return None
    at = writer.integers(axis)
    x = writer.add("Sub", x, writer.add("ReduceMax", x, at))
    power = writer.add("Exp", x)
    total = writer.add("ReduceSum", power, at)
    is_softmax = node.op_type == "Softmax"
    return writer.add("Div", power, total) if is_softmax else writer.add("Sub", x, writer.add("Log", total))


_UNARY = frozenset({"Relu", "PRelu", "LeakyRelu", "Clip", "Sigmoid", "HardSwish", "HardSigmoid", "Elu", "Tanh"})
_WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def _pool_in_float(writer: _Writer, node: Any) -> Any:
    """Keep ONNX Runtime from moving a quantizer in front of a pool that no layer in integers feeds.

    It pools integers fast only in the layout of such a layer; maxima of others take fifteen times as long.
    """
    readers = [use.node for use in node.outputs[0].uses()]
    if len(node.outputs) > 1 or not readers or any(reader.op_type != "QuantizeLinear" for reader in readers):
        return None
    source = node.inputs[0].producer()
    while source is not None and source.op_type in _UNARY:
        source = source.inputs[0].producer()
    values = () if source is None else source.inputs[:1] if source.op_type in _WEIGHTED else source.inputs
    fed = [source, *(value.producer() for value in values if value is not None)]
    if any(each is not None and each.op_type == "DequantizeLinear" for each in fed):
        return None
    attributes = {name: each.value for name, each in node.attributes.items()}
    pooled = writer.add("MaxPool", *node.inputs, **attributes)
    # a maximum with the lowest number, which it does not move quantizers over
    return writer.add("Max", pooled, writer.number(float(np.finfo(np.float32).min)))


def _in_two_dims(writer: _Writer, node: Any) -> Any:
    """Compute a long depthwise convolution over one dim over two, for which there is a kernel."""
    weight = node.inputs[1]
    if constant_of(weight) is None:  # computed in integers
        return None
    sizes, group = _dims(weight), node.attributes.get_int("group", 1)
    if sizes is None or len(sizes) != 3 or group != sizes[0] or sizes[1] != 1:
        return None
    at = writer.integers(2)
    attributes: dict[str, Any] = {name: each.value for name, each in node.attributes.items()}
    for name, before in (("kernel_shape", 1), ("strides", 1), ("dilations", 1)):
        if name in attributes:
            attributes[name] = [before, *attributes[name]]
    if "pads" in attributes:
        first, last = attributes["pads"]
        attributes["pads"] = [0, first, 0, last]
    wide = writer.add("Unsqueeze", weight, at)
    made = writer.add("Conv", writer.add("Unsqueeze", node.inputs[0], at), wide, *node.inputs[2:], **attributes)
    return writer.add("Squeeze", made, at)


_WRITTEN: dict[str, Callable[[_Writer, Any], Any]] = {
    "PRelu": _leaky,
    "Mish": _mish,
    "Softplus": _softplus,
    "Pow": _power,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "MaxPool": _pool_in_float,
    "Conv": _in_two_dims,
}
