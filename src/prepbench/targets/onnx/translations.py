"""ONNX translations of operators that torch's exporter cannot translate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import prepbench.capture.sizes.recurrent
import prepbench.quantize.blocks
import prepbench.quantize.dynamic_lstm  # noqa: F401 (these three define the operators)
from prepbench.targets.onnx.recurrent import dynamic_lstm_layer, lstm_layer, recurrent_layer
from prepbench.targets.onnx.size_arithmetic import size_translations
from prepbench.targets.onnx.sorting import argsort, sort, stable_argsort, stable_sort

# the first version with integers of 4 and 16 bits and with scales for blocks
OPSET = 21


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """For ``torch.onnx.export(custom_translation_table=...)``."""
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
        torch.ops.aten.expm1.default: _expm1,
        torch.ops.aten.group_norm.default: _group_norm,
        **size_translations(),
    }


def _dequantize_blocks(q: Any, scale: Any, zero_point: Any, block_size: int, bits: int) -> Any:
    """The last axis of the weight is its inputs; ``pack_weights`` decides how many bits its integers take."""
    return _operators().DequantizeLinear(q, scale, zero_point, axis=1, block_size=block_size)


def _log_sigmoid(x: Any) -> Any:
    """The logarithm of a sigmoid is infinite where the sigmoid is zero; this is not."""
    onnx = _operators()
    return onnx.Neg(onnx.Softplus(onnx.Neg(x)))


def _logaddexp(x: Any, y: Any) -> Any:
    onnx = _operators()
    apart = onnx.Where(onnx.Equal(x, y), onnx.CastLike(0.0, x), onnx.Sub(x, y))  # equal ones may be infinite
    return onnx.Add(onnx.Max(x, y), onnx.Softplus(onnx.Neg(onnx.Abs(apart))))


def _logaddexp2(x: Any, y: Any) -> Any:
    onnx = _operators()
    unit = onnx.CastLike(math.log(2.0), x)
    return onnx.Div(_logaddexp(onnx.Mul(x, unit), onnx.Mul(y, unit)), unit)


def _log1p(x: Any) -> Any:
    """Where 1 + x is rounded, by the quotient of what it was rounded to (W. Kahan)."""
    onnx = _operators()
    one = onnx.CastLike(1.0, x)
    total = onnx.Add(one, x)
    rounded = onnx.Sub(total, one)
    is_plain = onnx.Or(onnx.Equal(rounded, x), onnx.IsNaN(onnx.Sub(rounded, rounded)))
    is_none = onnx.Equal(rounded, onnx.CastLike(0.0, x))
    log = onnx.Log(total)
    scaled = onnx.Mul(log, onnx.Div(x, onnx.Where(is_none, one, rounded)))
    return onnx.Where(is_none, x, onnx.Where(is_plain, log, scaled))


def _expm1(x: Any) -> Any:
    """Without a difference, of which little would be left near zero."""
    onnx = _operators()
    half, one = onnx.CastLike(0.5, x), onnx.CastLike(1.0, x)
    return onnx.Mul(onnx.Tanh(onnx.Mul(x, half)), onnx.Add(onnx.Exp(x), one))


def _group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    """By the operator for instances: what ONNX says of groups is the difference of two squares.

    For values around 1000 that leaves 25 dB. What equals the first value of its group becomes zero, so that nothing is
    left of a mean that is rounded where all are equal, which a small variance would make large.
    """
    import onnx_ir

    onnx = _operators()
    ones, zeros = (
        onnx.CastLike(onnx.Constant(value=onnx_ir.tensor([value] * num_groups, dtype=onnx_ir.DataType.FLOAT)), x)
        for value in (1.0, 0.0)
    )
    groups = onnx.Reshape(x, onnx.Constant(value_ints=[0, num_groups, -1]))
    first = onnx.Slice(groups, *(onnx.Constant(value_ints=[place]) for place in (0, 1, 2)))
    groups = onnx.Sub(groups, first)
    result = onnx.Reshape(onnx.InstanceNormalization(groups, ones, zeros, epsilon=eps), onnx.Shape(x))
    places = onnx.Constant(value_ints=list(range(1, len(x.shape) - 1)))
    for operator, parameter in ((onnx.Mul, weight), (onnx.Add, bias)):
        if parameter is not None:
            result = operator(result, onnx.Unsqueeze(parameter, places) if len(x.shape) > 2 else parameter)
    return result


def _operators() -> Any:
    from onnxscript import opset21

    return opset21
