"""Keep ONNX Runtime exact for integers of 64 bits whose upper half counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prepbench.packages import Deferred
from prepbench.targets.onnx.weights import add_initializer, adds_before, replace_node

onnx_ir: Any = Deferred("onnx_ir")

_HALF = 2**32
_SMALL = 2**31
_NARROW = ("BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")


def keep_large_integers(model: Any) -> None:
    """Compute on int64 by other operators what kernels of ONNX Runtime (1.31) compute wrongly, in place.

    Maxima, minima, limits and signs compare two numbers with equal upper halves by lower halves with a sign. Sums over
    dims and remainders towards zero go through float64. Comparisons, choices, products and divisions are right. What
    is computed from sizes alone stays, because sizes are small.
    """
    sizes: set[Any] = set()
    for node in list(model.graph.all_nodes()):
        operands = [value for value in node.inputs if value is not None]
        if node.op_type in ("Shape", "Size") or (operands and all(_is_small(each, sizes) for each in operands)):
            sizes.update(node.outputs)
            continue
        write = _WRITTEN.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if write is None or not operands or _kind(operands[0]) != "INT64":
            continue
        result = write(_Writer(model, node), node)
        if result is not None:
            replace_node(node, result)


def _is_small(value: Any, sizes: set[Any]) -> bool:
    """Return whether a value comes from sizes and small constants alone."""
    array = _constant(value)
    return value in sizes if array is None else not array.size or bool(array.min() >= -_SMALL and array.max() < _SMALL)


def _constant(value: Any) -> Any:
    """Return the array of a constant int64; None for others."""
    tensor = onnx_ir.convenience.get_const_tensor(value)
    return tensor.numpy() if tensor is not None and tensor.dtype == onnx_ir.DataType.INT64 else None


def _kind(value: Any) -> str:
    return "" if value.dtype is None else str(value.dtype.name)


class _Writer:
    """Puts operators in front of a node.

    Args:
        model: an ``onnx_ir.Model``.
        node: one of its nodes.
    """

    def __init__(self, model: Any, node: Any) -> None:
        self._model, self._name = model, node.outputs[0].name
        self.add = adds_before(node)

    def number(self, value: int) -> Any:
        return add_initializer(self._model, f"{self._name}_{value}", np.array(value))

    def larger(self, x: Any, y: Any) -> Any:
        return self.add("Where", self.add("Less", x, y), y, x)

    def smaller(self, x: Any, y: Any) -> Any:
        return self.add("Where", self.add("Less", y, x), y, x)

    def halves(self, x: Any) -> tuple[Any, Any]:
        """Return the upper half of a number, with its sign, and the lower half, from 0 on."""
        lower = self.add("BitwiseAnd", x, self.number(_HALF - 1))
        return self.add("Div", self.add("Sub", x, lower), self.number(_HALF)), lower

    def joined(self, upper: Any, lower: Any) -> Any:
        return self.add("Add", self.add("Mul", upper, self.number(_HALF)), lower)


def _choice(choose: Callable[[_Writer, Any, Any], Any]) -> Callable[[_Writer, Any], Any]:
    def write(writer: _Writer, node: Any) -> Any:
        result, *others = node.inputs
        for other in others:
            result = choose(writer, result, other)
        return result if others else None

    return write


def _limited(writer: _Writer, node: Any) -> Any:
    x, low, high = (*node.inputs, None, None)[:3]
    result = x if low is None else writer.larger(x, low)
    result = result if high is None else writer.smaller(result, high)
    return None if result is x else result


def _sign(writer: _Writer, node: Any) -> Any:
    x, zero = node.inputs[0], writer.number(0)
    above, below = (
        writer.add("Cast", truth, to=x.dtype.value)
        for truth in (writer.add("Less", zero, x), writer.add("Less", x, zero))
    )
    return writer.add("Sub", above, below)


def _extreme(writer: _Writer, node: Any) -> Any:
    """Compute the extreme upper half, and that of the lower halves that stand below it, each small enough."""
    upper, lower = writer.halves(node.inputs[0])
    axes, keeps = node.inputs[1:2], node.attributes.get_int("keepdims", 1)
    is_empty = node.attributes.get_int("noop_with_empty_axes", 0)

    def reduced(x: Any, keepdims: int) -> Any:
        return writer.add(node.op_type, x, *axes, keepdims=keepdims, noop_with_empty_axes=is_empty)

    middle = writer.number(_SMALL)
    others = writer.number(-_SMALL if node.op_type == "ReduceMax" else _SMALL - 1)
    is_extreme = writer.add("Equal", upper, reduced(upper, 1))
    candidates = writer.add("Where", is_extreme, writer.add("Sub", lower, middle), others)
    return writer.joined(reduced(upper, keeps), writer.add("Add", reduced(candidates, keeps), middle))


def _sum(writer: _Writer, node: Any) -> Any:
    """Add the halves, whose sums float64 holds; of narrower integers it holds the sums anyway."""
    x = node.inputs[0]
    producer = x.producer()
    if producer is not None and producer.op_type == "Cast" and _kind(producer.inputs[0]) in _NARROW:
        return None
    axes, attributes = node.inputs[1:2], {name: each.value for name, each in node.attributes.items()}
    return writer.joined(*(writer.add("ReduceSum", half, *axes, **attributes) for half in writer.halves(x)))


def _remainder(writer: _Writer, node: Any) -> Any:
    if not node.attributes.get_int("fmod", 0):
        return None
    x, y = node.inputs
    return writer.add("Sub", x, writer.add("Mul", writer.add("Div", x, y), y))


_WRITTEN: dict[str, Callable[[_Writer, Any], Any]] = {
    "Max": _choice(_Writer.larger),
    "Min": _choice(_Writer.smaller),
    "Clip": _limited,
    "Relu": lambda writer, node: writer.larger(node.inputs[0], writer.number(0)),
    "Sign": _sign,
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "ReduceSum": _sum,
    "Mod": _remainder,
}
