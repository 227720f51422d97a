"""Operators that OpenVINO reads but computes wrongly."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch

from prepbench._torch_compat.number_analysis import SQRT
from prepbench._torch_compat.operators import OpOverload
from prepbench.capture.sizes.recurrent import has_lengths
from prepbench.errors import TargetError
from prepbench.running.source_lines import place_in_stack_trace
from prepbench.targets.dynamic_sizes import computed_from_sizes

Program = torch.export.ExportedProgram

_FOURIER = ("aten::fft_", "aten::_fft_", "aten::stft", "aten::istft")


def wrong_nodes(program: Program) -> list[torch.fx.Node]:
    """Return the nodes that :func:`check_right` would refuse."""
    return [node for node in program.graph.nodes if _what_is_wrong(node)]


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
        if reason := _what_is_wrong(node):
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
    if has_lengths(node):
        return "as if all sequences were of one length"
    return ""


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
