"""Division and remainders, as torch rounds them.

Of floating-point numbers targets compute ``floor(a / b)``, whose quotient is rounded before the floor is taken:
0.5 / 0.1 gives 5, although 0.1 is a little more than a tenth. torch takes the exact remainder first
(``div_floor_floating`` and ``remainder`` in ATen/native/cpu/BinaryOpsKernel.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _divided(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Return both operands in the floating type of the result, the remainder with the sign of the dividend, and where
    the divisor has the other sign; None where the result is of no floating type.
    """
    if not isinstance(x, torch.Tensor):
        is_wider = isinstance(x, float) and not y.dtype.is_floating_point
        x = torch.full_like(y, x, dtype=torch.get_default_dtype() if is_wider else y.dtype)
    dtype = torch.fmod(x, y).dtype  # torch's own rule; result_type would be a node of the graph
    if not dtype.is_floating_point:
        return None
    one = x.to(dtype)
    two = y.to(dtype) if isinstance(y, torch.Tensor) else torch.full_like(one, y)
    rest = torch.fmod(one, two)
    return one, two, rest, (rest != 0) & ((two < 0) != (rest < 0))


def floor_division(x: Any, y: Any) -> Any:
    """Divide numbers and round down, exactly; of integers targets do so themselves."""
    divided = _divided(x, y)
    if divided is None:
        return NotImplemented
    one, two, rest, differs = divided
    quotient = (one - rest) / two
    quotient = torch.where(differs, quotient - 1, quotient)
    floor = quotient.floor()
    floor = torch.where(quotient - floor > 0.5, floor + 1, floor)
    return torch.where(two == 0, one / two, floor)


def _division(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return floor_division(x, y)
    return _truncated(x, y) if rounding_mode == "trunc" else NotImplemented


def _truncated(x: torch.Tensor, y: Any) -> Any:
    """Divide integers towards 0 by a division of integers, where ONNX's rounds one of float32."""
    if not _is_integer(x) or not _is_integer(y):
        return NotImplemented
    below = torch.floor_divide(x, y)  # not of absolute values, because the lowest integer has none
    is_above = (below * y != x) & ((x < 0) != (y < 0))
    return torch.where(is_above, below + 1, below)


def _is_integer(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return type(value) is int
    return not value.dtype.is_floating_point and value.dtype is not torch.bool


def remainder(x: Any, y: Any) -> Any:
    """Compute the remainder with the sign of the divisor, exactly."""
    divided = _divided(x, y)
    if divided is None:
        return NotImplemented
    _, two, rest, differs = divided
    return torch.where(differs, rest + two, rest)


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def changed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(x, *args, **kwargs)
        return result if result is NotImplemented else x.copy_(result)

    return changed


FLOOR_DIVISIONS: dict[Any, Any] = {
    **dict.fromkeys((aten.floor_divide.default, aten.floor_divide.Scalar), floor_division),
    **dict.fromkeys((aten.floor_divide_.Tensor, aten.floor_divide_.Scalar), in_place(floor_division)),
    **dict.fromkeys((aten.div.Tensor_mode, aten.div.Scalar_mode), _division),
    **dict.fromkeys((aten.div_.Tensor_mode, aten.div_.Scalar_mode), in_place(_division)),
}

REMAINDERS: dict[Any, Any] = {
    **dict.fromkeys((aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor), remainder),
    **dict.fromkeys((aten.remainder_.Tensor, aten.remainder_.Scalar), in_place(remainder)),
}
