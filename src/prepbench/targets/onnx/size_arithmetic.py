"""Arithmetic of sizes as Python does it, where torch's exporter divides toward zero, rounds to float32, or has nothing.

A real number that is computed from sizes is a double, which is cast to float32 for operators on tensors. What is
computed from it next takes the double in front of that cast.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench._torch_compat.number_analysis import SQRT

_FLOAT, _INT64, _DOUBLE = 1, 7, 11
# operators of ONNX whose results are no less than zero if their operands are, and those that move them
_NO_LESS = ("Add", "Mul", "Div", "Mod", "Max", "Min", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Gather", "Identity")


def size_translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """For ``torch.onnx.export(custom_translation_table=...)``, by the functions that stand in graphs."""
    return {
        torch.sym_float: lambda x: _narrow(_wide(x)),
        operator.add: _elementwise("Add"),
        operator.sub: _elementwise("Sub"),
        operator.mul: _elementwise("Mul"),
        operator.neg: lambda x: _narrow(_onnx().Neg(_wide(x))) if _is_real(x) else _onnx().Neg(x),
        operator.truediv: _true_division,
        operator.floordiv: _floor_division,
        operator.mod: _remainder,
        operator.lshift: lambda x, bits: _onnx().Mul(x, _power_of_two(bits)),
        operator.rshift: lambda x, bits: _floor_division(x, _power_of_two(bits)),
        operator.and_: _bits("BitwiseAnd", "And"),
        operator.or_: _bits("BitwiseOr", "Or"),
        operator.xor: _bits("BitwiseXor", "Xor"),
        operator.pow: _power,
        builtins.pow: _power,
        SQRT: lambda x: _narrow(_onnx().Sqrt(_wide(x))),
        math.floor: _rounded("Floor", lambda a, b: _floor_division(a, b)),
        math.ceil: _rounded("Ceil", lambda a, b: _onnx().Neg(_floor_division(_onnx().Neg(a), b))),
        math.trunc: _truncated,
        builtins.round: _round,
        torch.sym_max: _elementwise("Max"),
        torch.sym_min: _elementwise("Min"),
        operator.eq: _elementwise("Equal"),
        operator.lt: _elementwise("Less"),
        operator.le: _elementwise("LessOrEqual"),
        operator.gt: _elementwise("Greater"),
        operator.ge: _elementwise("GreaterOrEqual"),
        torch.ops.aten.add.Scalar: _with_scalar("Add"),
        torch.ops.aten.sub.Scalar: _with_scalar("Sub"),
        torch.ops.aten.mul.Scalar: _with_scalar("Mul"),
        torch.ops.aten.div.Scalar: _with_scalar("Div"),
    }


def _onnx() -> Any:
    from onnxscript import opset21

    return opset21


def _elementwise(name: str) -> Callable[[Any, Any], Any]:
    def compute(x: Any, y: Any) -> Any:
        if not (_is_real(x) or _is_real(y)):
            return getattr(_onnx(), name)(_integer(x), _integer(y))
        result = getattr(_onnx(), name)(_wide(x), _wide(y))
        return result if name in _COMPARISONS else _narrow(result)

    return compute


def _with_scalar(name: str) -> Callable[..., Any]:
    """An operator on a tensor and a number, which the exporter knows for constants only."""

    def compute(x: Any, number: Any, alpha: Any = 1) -> Any:
        import onnx_ir

        onnx = _onnx()
        if isinstance(number, int | float) and isinstance(alpha, int | float):
            number = number * alpha if alpha != 1 else number
            return getattr(onnx, name)(x, onnx.Constant(value=onnx_ir.tensor(number, dtype=x.dtype)))
        number = number if alpha == 1 else _narrow(onnx.Mul(_wide(number), _wide(alpha)))
        return getattr(onnx, name)(x, onnx.CastLike(number, x))

    return compute


_COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def _bits(of_integers: str, of_truths: str) -> Callable[[Any, Any], Any]:
    def compute(x: Any, y: Any) -> Any:
        is_truth = "BOOL" in (_dtype(x), _dtype(y)) or isinstance(x, bool) or isinstance(y, bool)
        return getattr(_onnx(), of_truths if is_truth else of_integers)(x, y)

    return compute


def _true_division(x: Any, y: Any) -> Any:
    return _narrow(_onnx().Div(_wide(x), _wide(y)))


def _floor_division(x: Any, y: Any) -> Any:
    onnx = _onnx()
    if _is_real(x) or _is_real(y):
        return _narrow(onnx.Floor(onnx.Div(_wide(x), _wide(y))))
    x, y = _integer(x), _integer(y)
    if _is_nonnegative(x) and _is_nonnegative(y):
        return onnx.Div(x, y)  # which rounds toward zero
    return onnx.Div(onnx.Sub(x, onnx.Mod(x, y)), y)


def _remainder(x: Any, y: Any) -> Any:
    """It has the sign of the divisor, in Python as in ONNX."""
    onnx = _onnx()
    if _is_real(x) or _is_real(y):
        x, y = _wide(x), _wide(y)
        return _narrow(onnx.Sub(x, onnx.Mul(onnx.Floor(onnx.Div(x, y)), y)))
    return onnx.Mod(_integer(x), _integer(y))


def _power(x: Any, y: Any) -> Any:
    if _is_real(x) or _is_real(y):
        return _narrow(_onnx().Pow(_wide(x), _wide(y)))
    return _onnx().Pow(_integer(x), _integer(y))


def _power_of_two(bits: Any) -> Any:
    return 2**bits if isinstance(bits, int) else _onnx().Pow(_integer(2), bits)


def _rounded(name: str, of_quotient: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """An integer from a real number; that of a quotient of integers is computed from these, exactly."""

    def compute(x: Any) -> Any:
        if not _is_real(x):
            return _integer(x)
        quotient = _quotient(x)
        if quotient is not None:
            return of_quotient(*quotient)
        return _onnx().Cast(getattr(_onnx(), name)(_wide(x)), to=_INT64)

    return compute


def _truncated(x: Any) -> Any:
    onnx, quotient = _onnx(), _quotient(x)
    if quotient is not None:
        return onnx.Div(*quotient)
    return onnx.Cast(_wide(x), to=_INT64) if _is_real(x) else _integer(x)


def _round(x: Any, digits: Any = None) -> Any:
    """To the nearest integer or decimal, of two that are as near to the even one."""
    onnx = _onnx()
    if not _is_real(x):
        if isinstance(digits, int) and digits < 0:
            raise NotImplementedError("sizes are rounded to whole numbers only")
        return _integer(x)
    if digits is not None:
        scale = _wide(10.0**digits)
        return _narrow(onnx.Div(onnx.Round(onnx.Mul(_wide(x), scale)), scale))
    quotient = _quotient(x)
    if quotient is None:
        return onnx.Cast(onnx.Round(_wide(x)), to=_INT64)
    a, b = quotient
    two = _integer(2)
    below = _floor_division(a, b)
    twice = onnx.Mul(onnx.Sub(a, onnx.Mul(below, b)), two)  # two times the rest, which has the sign of b
    is_more = onnx.Greater(onnx.Abs(twice), onnx.Abs(b))
    is_odd = onnx.And(onnx.Equal(onnx.Abs(twice), onnx.Abs(b)), onnx.Equal(onnx.Mod(below, two), _integer(1)))
    return onnx.Add(below, onnx.Cast(onnx.Or(is_more, is_odd), to=_INT64))


def _wide(x: Any) -> Any:
    """A number as a double, the one that it was computed as if it was."""
    import onnx_ir

    onnx = _onnx()
    if isinstance(x, int | float):
        return onnx.Constant(value=onnx_ir.tensor(float(x), dtype=onnx_ir.DataType.DOUBLE))
    if _dtype(x) == "DOUBLE":
        return x
    cast = _cast_to(x, _FLOAT)
    if cast is not None and _dtype(cast) == "DOUBLE":
        return cast
    result = onnx.Cast(x, to=_DOUBLE)
    result.dtype = onnx_ir.DataType.DOUBLE
    return result


def _narrow(x: Any) -> Any:
    import onnx_ir

    x.dtype = onnx_ir.DataType.DOUBLE
    result = _onnx().Cast(x, to=_FLOAT)
    result.dtype = onnx_ir.DataType.FLOAT
    return result


def _integer(x: Any) -> Any:
    import onnx_ir

    return _onnx().Constant(value=onnx_ir.tensor(x, dtype=onnx_ir.DataType.INT64)) if isinstance(x, int) else x


def _quotient(x: Any) -> tuple[Any, Any] | None:
    """The two integers whose quotient a number is; None for others."""
    producer = None if isinstance(x, int | float) else _wide(x).producer()
    if producer is None or producer.op_type != "Div":
        return None
    parts = [_whole(value) for value in producer.inputs]
    return None if parts[0] is None or parts[1] is None else (parts[0], parts[1])


def _whole(value: Any) -> Any:
    """The integer that a double is made of; None where it is made of none."""
    constant = _constant(value)
    if constant is not None:
        return _integer(int(constant)) if float(constant).is_integer() else None
    cast = _cast_to(value, _DOUBLE)
    return cast if cast is not None and not _is_real(cast) else None


def _cast_to(value: Any, dtype: int) -> Any:
    producer = value.producer()
    is_cast = producer is not None and producer.op_type == "Cast" and producer.attributes.get_int("to", 0) == dtype
    return producer.inputs[0] if is_cast else None


def _constant(value: Any) -> Any:
    """The number that a value is; None where it is computed."""
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    tensor = producer.attributes.get("value")
    return None if tensor is None or tensor.value.size != 1 else tensor.value.numpy().item()


def _is_nonnegative(value: Any) -> bool:
    """Whether a size is known to be no less than zero."""
    producer = value.producer()
    if producer is None:
        return False
    constant = _constant(value)
    if constant is not None:
        return bool(constant >= 0)
    if producer.op_type in ("Shape", "Size"):
        return True
    if producer.op_type not in _NO_LESS:
        return False
    numbers = producer.inputs if producer.op_type in _NO_LESS[:6] else producer.inputs[:1]
    return all(_is_nonnegative(number) for number in numbers)


def _is_real(x: Any) -> bool:
    return isinstance(x, float) or _dtype(x) in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")


def _dtype(x: Any) -> str:
    dtype = getattr(x, "dtype", None)
    return "" if dtype is None else str(dtype.name)
