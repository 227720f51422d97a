"""ONNX translations of operators that torch's exporter cannot translate."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.sizes import SQRT
from prepbench.packages import Deferred

onnx: Any = Deferred("onnxscript.opset21")
onnx_ir: Any = Deferred("onnx_ir")


# the first version with integers of 4 and 16 bits and with scales for blocks
OPSET = 21


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table for ``torch.onnx.export(custom_translation_table=...)``."""
    return {
        torch.ops.prepbench.dequantize_blocks.default: _dequantize_blocks,
        torch.ops.prepbench.lstm_layer.default: lstm_layer,
        torch.ops.prepbench.dynamic_lstm_layer.default: dynamic_lstm_layer,
        torch.ops.prepbench.recurrent_layer.default: recurrent_layer,
        torch.ops.aten.sort.default: sort,
        torch.ops.aten.sort.stable: stable_sort,
        torch.ops.aten.argsort.default: argsort,
        torch.ops.aten.argsort.stable: stable_argsort,
        torch.ops.aten.log_sigmoid.default: _log_sigmoid,
        torch.ops.aten.log_sigmoid_forward.default: lambda x: (_log_sigmoid(x), x),
        torch.ops.aten.logaddexp.default: _logaddexp,
        torch.ops.aten.logaddexp2.default: _logaddexp2,
        torch.ops.aten.log1p.default: _log1p,
        torch.ops.aten.atan2.default: _atan2,
        torch.ops.aten.bincount.default: _bincount,
        torch.ops.aten.expm1.default: _expm1,
        torch.ops.aten.group_norm.default: _group_norm,
        **_of_torchvision(),
        **size_translations(),
    }


def _of_torchvision() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the translation of torchvision's suppression, where it was imported; its models have it behind them."""
    suppression = getattr(torch.ops.torchvision, "nms", None)
    return {} if suppression is None else {suppression.default: _suppression}


def _suppression(dets: Any, scores: Any, iou_threshold: float) -> Any:
    """Return the places of the boxes that no better box hides, best first.

    Both break ties for the first box and hide what overlaps by more than the limit. ONNX turns boxes whose corners are
    exchanged, which hide nothing and are not hidden in torchvision, so these are made empty.
    """
    boxes, first = (onnx.Cast(each, to=onnx_ir.DataType.FLOAT.value) for each in (dets, scores))
    start, middle, end, axis = (onnx.Constant(value_ints=[place]) for place in (0, 2, 4, 1))
    low = onnx.Slice(boxes, start, middle, axis)
    boxes = onnx.Concat(low, onnx.Max(low, onnx.Slice(boxes, middle, end, axis)), axis=1)
    # torchvision compares overlaps in float32 with a limit in float64
    limit = np.float32(iou_threshold)
    limit = limit if float(limit) <= iou_threshold else np.nextafter(limit, np.float32(-np.inf))
    limits = onnx.Constant(value_ints=[2**31 - 1]), onnx.Constant(value_floats=[float(limit)])
    both = onnx.Unsqueeze(boxes, onnx.Constant(value_ints=[0])), onnx.Unsqueeze(first, onnx.Constant(value_ints=[0, 1]))
    return onnx.Gather(onnx.NonMaxSuppression(*both, *limits), onnx.Constant(value_int=2), axis=1)


def _dequantize_blocks(q: Any, scale: Any, zero_point: Any, block_size: int, bits: int) -> Any:
    """Dequantize blocks along the last axis, the weight's inputs; ``pack_weights`` decides the bits of its integers."""
    return onnx.DequantizeLinear(q, scale, zero_point, axis=1, block_size=block_size)


def _log_sigmoid(x: Any) -> Any:
    """Compute the log-sigmoid without the logarithm of zero, which is infinite where the sigmoid underflows."""
    return onnx.Neg(onnx.Softplus(onnx.Neg(x)))


def _logaddexp(x: Any, y: Any) -> Any:
    apart = onnx.Where(onnx.Equal(x, y), onnx.CastLike(0.0, x), onnx.Sub(x, y))  # equal ones may be infinite
    return onnx.Add(onnx.Max(x, y), onnx.Softplus(onnx.Neg(onnx.Abs(apart))))


def _logaddexp2(x: Any, y: Any) -> Any:
    unit = onnx.CastLike(math.log(2.0), x)
    return onnx.Div(_logaddexp(onnx.Mul(x, unit), onnx.Mul(y, unit)), unit)


def _log1p(x: Any) -> Any:
    """Compute log1p by the quotient of 1 + x as it was rounded (W. Kahan)."""
    one = onnx.CastLike(1.0, x)
    total = onnx.Add(one, x)
    rounded = onnx.Sub(total, one)
    is_plain = onnx.Or(onnx.Equal(rounded, x), onnx.IsNaN(onnx.Sub(rounded, rounded)))
    is_none = onnx.Equal(rounded, onnx.CastLike(0.0, x))
    log = onnx.Log(total)
    scaled = onnx.Mul(log, onnx.Div(x, onnx.Where(is_none, one, rounded)))
    return onnx.Where(is_none, x, onnx.Where(is_plain, log, scaled))


def _atan2(y: Any, x: Any) -> Any:
    """Compute the angle of a point, also where a coordinate is infinite or a zero, whose sign counts.

    The translation of the exporter has -pi for 0 and -1, and 0 for NaN (onnxscript 0.7).
    """
    zero, one, half_turn = (onnx.CastLike(value, x) for value in (0.0, 1.0, math.pi))

    def is_negative(value: Any) -> Any:
        return onnx.Or(onnx.Less(value, zero), onnx.Less(onnx.Reciprocal(value), zero))

    width, height = onnx.Abs(x), onnx.Abs(y)
    is_steep = onnx.Less(width, height)
    small, large = onnx.Where(is_steep, width, height), onnx.Where(is_steep, height, width)
    of_equals = onnx.Where(onnx.Equal(large, zero), zero, one)
    angle = onnx.Atan(onnx.Where(onnx.Equal(small, large), of_equals, onnx.Div(small, large)))
    angle = onnx.Where(is_steep, onnx.Sub(onnx.CastLike(math.pi / 2, x), angle), angle)
    angle = onnx.Where(is_negative(x), onnx.Sub(half_turn, angle), angle)
    return onnx.Where(is_negative(y), onnx.Neg(angle), angle)


def _bincount(x: Any, weights: Any = None, minlength: Any = 0) -> Any:
    """Count whole numbers, or add the weights of each; the exporter's translation takes no size and no weights.

    A negative number gets a place outside, because ONNX would count it from the end, and PyTorch refuses it.
    """
    of_int64 = 7
    x = onnx.Cast(x, to=of_int64)
    if isinstance(minlength, int):
        least = onnx.Constant(value_ints=[minlength])
    else:
        least = onnx.Reshape(onnx.Cast(minlength, to=of_int64), onnx.Constant(value_ints=[1]))
    before = onnx.Constant(value_ints=[-1])
    largest = onnx.ReduceMax(onnx.Concat(x, before, axis=0), keepdims=1)  # of nothing it has none
    length = onnx.Max(onnx.Sub(largest, before), least)
    one = onnx.Constant(value_int=1)
    if weights is None:
        weights = onnx.Expand(one, onnx.Shape(x))
    elif weights.dtype.name != "FLOAT":
        weights = onnx.Cast(weights, to=11)  # float64, as in PyTorch
    zeros = onnx.Expand(onnx.CastLike(0, weights), length)
    places = onnx.Where(onnx.Less(x, onnx.Constant(value_int=0)), length, x)
    return onnx.ScatterElements(zeros, places, weights, axis=0, reduction="add")


def _expm1(x: Any) -> Any:
    """Compute expm1 without the difference that cancels near zero."""
    half, one = onnx.CastLike(0.5, x), onnx.CastLike(1.0, x)
    return onnx.Mul(onnx.Tanh(onnx.Mul(x, half)), onnx.Add(onnx.Exp(x), one))


def _group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    """Normalise groups by InstanceNormalization, because ONNX defines GroupNormalization by a difference of squares.

    For values around 1000 that leaves 25 dB. What equals the first value of its group becomes zero, so that nothing is
    left of a mean that is rounded where all are equal, which a small variance would make large.
    """
    ones, zeros = (
        onnx.CastLike(onnx.Constant(value=onnx_ir.tensor([value] * num_groups, dtype=onnx_ir.DataType.FLOAT)), x)
        for value in (1.0, 0.0)
    )
    groups = _in_groups(x, num_groups)
    first = onnx.Slice(groups, *(onnx.Constant(value_ints=[place]) for place in (0, 1, 2)))
    groups = onnx.Sub(groups, first)
    result = onnx.Reshape(onnx.InstanceNormalization(groups, ones, zeros, epsilon=eps), onnx.Shape(x), allowzero=1)
    places = onnx.Constant(value_ints=list(range(1, len(x.shape) - 1)))
    for combine, parameter in ((onnx.Mul, weight), (onnx.Add, bias)):
        if parameter is not None:
            result = combine(result, onnx.Unsqueeze(parameter, places) if len(x.shape) > 2 else parameter)
    return result


def _in_groups(x: Any, num_groups: int) -> Any:
    """Reshape to images, groups and their values, where empty images become no images.

    ONNX Runtime (1.31) writes beside the result for groups of no values, and finds no size by itself for no images.
    """
    sizes = x.shape[1:]
    if all(isinstance(size, int) and size for size in sizes):
        return onnx.Reshape(x, onnx.Constant(value_ints=[0, num_groups, math.prod(sizes) // num_groups]))
    groups, one = onnx.Constant(value_ints=[num_groups]), onnx.Constant(value_ints=[1])
    values = onnx.Max(onnx.Div(onnx.ReduceProd(onnx.Shape(x, start=1)), groups), one)
    images = onnx.Div(onnx.ReduceProd(onnx.Shape(x)), onnx.Mul(groups, values))
    return onnx.Reshape(x, onnx.Concat(images, groups, values, axis=0), allowzero=1)


# Recurrent layers as the operators of ONNX, which order the gates otherwise than torch.


# where ONNX has each of torch's gates
_LSTM = (0, 3, 1, 2)
_GRU = (1, 0, 2)
# those that an LSTM has anyway; only one that computes in integers names them
DYNAMIC_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")
_ACTIVATIONS = {"rnn_tanh": "Tanh", "rnn_relu": "Relu"}


def dynamic_lstm_layer(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any = None) -> Any:
    """Translate ``prepbench::dynamic_lstm_layer`` to an LSTM whose activations tell ``pack_recurrent_weights``."""
    return lstm_layer(x, h, c, weights, lengths, dynamic=True)


def lstm_layer(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any = None, *, dynamic: bool = False) -> Any:
    """Translate ``prepbench::lstm_layer``."""
    size, directions = c.shape[2], h.shape[0]
    if len(weights) // directions in (3, 5):
        return _projected(x, h, c, weights, _integers(lengths))
    operands = (x, *_weights(weights, directions, _LSTM), _integers(lengths), h, c)
    settings: dict[str, Any] = {"hidden_size": size, "direction": _direction(directions)}
    if dynamic:
        settings["activations"] = [*DYNAMIC_ACTIVATIONS] * directions
    y, h_last, c_last = onnx.LSTM(*operands, **settings)
    return _steps(y, directions * size), h_last, c_last


def recurrent_layer(x: Any, h: Any, weights: Sequence[Any], kind: str, lengths: Any = None) -> Any:
    """Translate ``prepbench::recurrent_layer``."""
    directions = h.shape[0]
    settings = {"hidden_size": h.shape[2], "direction": _direction(directions)}
    if kind == "gru":
        operands = (x, *_weights(weights, directions, _GRU), _integers(lengths), h)
        y, h_last = onnx.GRU(*operands, linear_before_reset=1, **settings)
    else:
        operands = (x, *_weights(weights, directions, (0,)), _integers(lengths), h)
        y, h_last = onnx.RNN(*operands, activations=[_ACTIVATIONS[kind]] * directions, **settings)
    return _steps(y, directions * h.shape[2]), h_last


def _projected(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any) -> Any:
    """Compute an LSTM with projected output, which ONNX does not have.

    Its states before the projection are those of a plain LSTM whose recurrent weights have the projection inside. What
    the given state adds to the first step comes in as a further input, which is zero at the others.
    """
    first, each = onnx.Constant(value_ints=[0]), len(weights) // h.shape[0]
    found = []
    for place in range(h.shape[0]):
        at_input, at_state, *biases, projection = weights[place * each : (place + 1) * each]
        own = (onnx.Concat(at_input, at_state, axis=1), onnx.MatMul(at_state, projection), *biases)
        y, h_last, c_last = onnx.LSTM(
            onnx.Concat(x, _at_first_step(x, h, place, lengths), axis=2),
            *_weights(own, 1, _LSTM), lengths, None, onnx.Slice(c, [place], [place + 1], first),
            hidden_size=c.shape[2], direction="reverse" if place else "forward",
        )  # fmt: skip
        back = onnx.Transpose(projection, perm=[1, 0])
        steps = onnx.MatMul(onnx.Squeeze(y, onnx.Constant(value_ints=[1])), back)
        found.append((steps, onnx.MatMul(h_last, back), c_last))
    return tuple(
        onnx.Concat(*parts, axis=axis) for parts, axis in zip(zip(*found, strict=True), (2, 0, 0), strict=True)
    )


def _at_first_step(x: Any, h: Any, place: int, lengths: Any) -> Any:
    """Return the state of one direction at its first step, zeros at all others."""
    zero, one = onnx.Constant(value_int=0), onnx.Constant(value_int=1)
    count = onnx.Squeeze(onnx.Shape(x, start=0, end=1))
    steps = onnx.Unsqueeze(onnx.Range(zero, count, one), onnx.Constant(value_ints=[1, 2]))
    first = zero
    if place:
        ends = count if lengths is None else onnx.Cast(onnx.Unsqueeze(lengths, onnx.Constant(value_ints=[0, 2])), to=7)
        first = onnx.Sub(ends, one)
    own = onnx.Slice(h, [place], [place + 1], onnx.Constant(value_ints=[0]))
    return onnx.Where(onnx.Equal(steps, first), own, onnx.CastLike(onnx.Constant(value_float=0.0), own))


def _integers(lengths: Any) -> Any:
    """Return lengths in the operators' integer type; None for none."""
    return None if lengths is None else onnx.Cast(lengths, to=6)


def _direction(directions: int) -> str:
    return "bidirectional" if directions == 2 else "forward"


def _weights(weights: Sequence[Any], directions: int, gates: Sequence[int]) -> list[Any]:
    """Return the weights of input and state, and the biases of both or None, each with a dim of directions."""
    first = onnx.Constant(value_ints=[0])
    each = len(weights) // directions
    rows = [
        [_ordered(weight, gates) for weight in weights[place * each : (place + 1) * each]]
        for place in range(directions)
    ]
    found = [onnx.Concat(*(onnx.Unsqueeze(row[i], first) for row in rows), axis=0) for i in range(2)]
    if each == 2:
        return [*found, None]
    biases = [onnx.Unsqueeze(onnx.Concat(row[2], row[3], axis=0), first) for row in rows]
    return [*found, onnx.Concat(*biases, axis=0)]


def _ordered(weight: Any, gates: Sequence[int]) -> Any:
    if len(gates) == 1:
        return weight
    parts = onnx.Split(weight, axis=0, num_outputs=len(gates))
    return onnx.Concat(*(parts[gate] for gate in gates), axis=0)


def _steps(y: Any, columns: int) -> Any:
    """Reshape (length, directions, batch, size) to (length, batch, columns); each leading size may be 0."""
    return onnx.Reshape(onnx.Transpose(y, perm=[0, 2, 1, 3]), onnx.Constant(value_ints=[0, 0, columns]))


# Sorting as TopK of ONNX, which keeps equal values in the order that they have, as a stable sort does.


# TopK of ONNX Runtime takes other types only
_WIDER = {"BOOL": "INT32", "INT8": "INT32", "INT16": "INT32", "UINT8": "INT32", "BFLOAT16": "FLOAT"}


def sort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Translate ``aten::sort``."""
    return _sorted(x, dim, descending)


def stable_sort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Translate ``aten::sort.stable``."""
    return _sorted(x, dim, descending)


def stable_argsort(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Translate ``aten::argsort.stable``."""
    return _sorted(x, dim, descending)[1]


def argsort(x: Any, dim: int = -1, descending: bool = False) -> Any:
    """Translate ``aten::argsort``."""
    return _sorted(x, dim, descending)[1]


def _sorted(x: Any, dim: int, descending: bool) -> tuple[Any, Any]:
    """Return the sorted values and their indices."""
    if not x.shape:
        return onnx.Identity(x), onnx.Constant(value_int=0)
    wider = _WIDER.get(x.dtype.name)
    size = onnx.Shape(x, start=dim, end=dim + 1 or None)
    keys = x if wider is None else onnx.Cast(x, to=onnx_ir.DataType[wider].value)
    values, indices = onnx.TopK(keys, size, axis=dim, largest=int(descending), sorted=1)
    if wider is not None:
        # OpenVINO (2026.4) refuses to cast what TopK returns to truth values
        values = onnx.Cast(onnx.GatherElements(keys, indices, axis=dim), to=x.dtype.value)
    return values, indices


# Arithmetic of sizes as in Python, where torch's exporter divides toward zero, rounds to float32, or has no operator.
#
# A real number that is computed from sizes is a double, which is cast to float32 for operators on tensors. What is
# computed from it next takes the double in front of that cast.


_FLOAT, _INT64, _DOUBLE = 1, 7, 11
# operators of ONNX that preserve non-negativity, and those that only move values
_NO_LESS = ("Add", "Mul", "Div", "Mod", "Max", "Min", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Gather", "Identity")


def size_translations() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """Return the table for ``torch.onnx.export(custom_translation_table=...)``, by Python functions in graphs."""
    return {
        torch.sym_float: lambda x: _narrow(_wide(x)),
        operator.add: _elementwise("Add"),
        operator.sub: _elementwise("Sub"),
        operator.mul: _elementwise("Mul"),
        operator.neg: lambda x: _narrow(onnx.Neg(_wide(x))) if _is_real(x) else onnx.Neg(x),
        operator.truediv: _true_division,
        operator.floordiv: _floor_division,
        operator.mod: _remainder,
        operator.lshift: lambda x, bits: onnx.Mul(x, _power_of_two(bits)),
        operator.rshift: lambda x, bits: _floor_division(x, _power_of_two(bits)),
        operator.and_: _bits("BitwiseAnd", "And"),
        operator.or_: _bits("BitwiseOr", "Or"),
        operator.xor: _bits("BitwiseXor", "Xor"),
        operator.pow: _power,
        builtins.pow: _power,
        SQRT: lambda x: _narrow(onnx.Sqrt(_wide(x))),
        math.floor: _rounded("Floor", lambda a, b: _floor_division(a, b)),
        math.ceil: _rounded("Ceil", lambda a, b: onnx.Neg(_floor_division(onnx.Neg(a), b))),
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


def _elementwise(name: str) -> Callable[[Any, Any], Any]:
    def compute(x: Any, y: Any) -> Any:
        if not (_is_real(x) or _is_real(y)):
            return getattr(onnx, name)(_integer(x), _integer(y))
        result = getattr(onnx, name)(_wide(x), _wide(y))
        return result if name in _COMPARISONS else _narrow(result)

    return compute


def _with_scalar(name: str) -> Callable[..., Any]:
    """Apply an operator to a tensor and a computed number, which the exporter supports for constants only."""

    def compute(x: Any, number: Any, alpha: Any = 1) -> Any:
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
        return getattr(onnx, of_truths if is_truth else of_integers)(x, y)

    return compute


def _true_division(x: Any, y: Any) -> Any:
    return _narrow(onnx.Div(_wide(x), _wide(y)))


def _floor_division(x: Any, y: Any) -> Any:
    if _is_real(x) or _is_real(y):
        return _narrow(onnx.Floor(onnx.Div(_wide(x), _wide(y))))
    x, y = _integer(x), _integer(y)
    if _is_nonnegative(x) and _is_nonnegative(y):
        return onnx.Div(x, y)  # which rounds toward zero
    return onnx.Div(onnx.Sub(x, onnx.Mod(x, y)), y)


def _remainder(x: Any, y: Any) -> Any:
    """Return the remainder, with the sign of the divisor, in Python as in ONNX."""
    if _is_real(x) or _is_real(y):
        x, y = _wide(x), _wide(y)
        return _narrow(onnx.Sub(x, onnx.Mul(onnx.Floor(onnx.Div(x, y)), y)))
    return onnx.Mod(_integer(x), _integer(y))


def _power(x: Any, y: Any) -> Any:
    if _is_real(x) or _is_real(y):
        return _narrow(onnx.Pow(_wide(x), _wide(y)))
    return onnx.Pow(_integer(x), _integer(y))


def _power_of_two(bits: Any) -> Any:
    return 2**bits if isinstance(bits, int) else onnx.Pow(_integer(2), bits)


def _rounded(name: str, of_quotient: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """Return an integer from a real number; for a quotient of integers it is computed from these, exactly."""

    def compute(x: Any) -> Any:
        if not _is_real(x):
            return _integer(x)
        quotient = _quotient(x)
        if quotient is not None:
            return of_quotient(*quotient)
        return onnx.Cast(getattr(onnx, name)(_wide(x)), to=_INT64)

    return compute


def _truncated(x: Any) -> Any:
    quotient = _quotient(x)
    if quotient is not None:
        return onnx.Div(*quotient)
    return onnx.Cast(_wide(x), to=_INT64) if _is_real(x) else _integer(x)


def _round(x: Any, digits: Any = None) -> Any:
    """Round to the nearest integer or decimal, ties to even."""
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
    twice = onnx.Mul(onnx.Sub(a, onnx.Mul(below, b)), two)  # twice the remainder, which has the sign of b
    is_more = onnx.Greater(onnx.Abs(twice), onnx.Abs(b))
    is_odd = onnx.And(onnx.Equal(onnx.Abs(twice), onnx.Abs(b)), onnx.Equal(onnx.Mod(below, two), _integer(1)))
    return onnx.Add(below, onnx.Cast(onnx.Or(is_more, is_odd), to=_INT64))


def _wide(x: Any) -> Any:
    """Return a number in double precision, from before its cast to float32."""
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
    x.dtype = onnx_ir.DataType.DOUBLE
    result = onnx.Cast(x, to=_FLOAT)
    result.dtype = onnx_ir.DataType.FLOAT
    return result


def _integer(x: Any) -> Any:
    return onnx.Constant(value=onnx_ir.tensor(x, dtype=onnx_ir.DataType.INT64)) if isinstance(x, int) else x


def _quotient(x: Any) -> tuple[Any, Any] | None:
    """Return the two integers whose quotient a number is; None for others."""
    producer = None if isinstance(x, int | float) else _wide(x).producer()
    if producer is None or producer.op_type != "Div":
        return None
    parts = [_whole(value) for value in producer.inputs]
    return None if parts[0] is None or parts[1] is None else (parts[0], parts[1])


def _whole(value: Any) -> Any:
    """Return the integer that a double was cast from; None for others."""
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
    """Return the value of a constant number; None for a computed one."""
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    tensor = producer.attributes.get("value")
    return None if tensor is None or tensor.value.size != 1 else tensor.value.numpy().item()


def _is_nonnegative(value: Any) -> bool:
    """Return whether a size is known to be non-negative."""
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
