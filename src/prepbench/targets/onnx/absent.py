"""Functions that ONNX has no operator for, and solutions of small systems of equations, as operators that it has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten


def absent_functions() -> dict[Any, Any]:
    """Return the decompositions of functions for :func:`prepbench.targets.decompose.decompose`."""
    return {
        aten.hypot.default: _hypotenuse,
        aten.fmax.default: lambda x, y: torch.where(_is_nan(y) | (x >= y), x, y),
        aten.fmin.default: lambda x, y: torch.where(_is_nan(y) | (x <= y), x, y),
        aten.cummax.default: lambda x, dim: _running_extreme(x, dim, torch.ge),
        aten.cummin.default: lambda x, dim: _running_extreme(x, dim, torch.le),
        aten.nanmedian.default: lambda x: _middle_without_nan(x.reshape(-1), 0)[0],
        aten.nanmedian.dim: _middle_without_nan,
        aten.mode.default: _most_frequent,
        aten.erfinv.default: _inverse_error_function,
        **dict.fromkeys((aten.sign.default, aten.sgn.default), _sign),
        aten.logit.default: _logit,
    }


def small_matrices() -> dict[Any, Any]:
    """Return the decompositions of inverses and solutions of systems of a few equations, whose number is fixed."""
    return {
        **dict.fromkeys((aten.linalg_inv.default, aten.inverse.default), _inverse),
        aten.linalg_solve.default: _solution,
    }


def _is_nan(x: torch.Tensor) -> torch.Tensor:
    return torch.isnan(x) if x.is_floating_point() else torch.zeros_like(x, dtype=torch.bool)


def _hypotenuse(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compute the length of a vector without squares that overflow; NaN is where a comparison leaves it."""
    x, y = torch.broadcast_tensors(x.abs(), y.abs())
    is_first = x > y
    large, small = torch.where(is_first, x, y), torch.where(is_first, y, x)
    share = torch.where(large == 0, small, small / large)  # 0, or NaN
    length = large * (1 + share * share).sqrt()
    return torch.where((x == math.inf) | (y == math.inf), math.inf, length)


def _running_extreme(x: torch.Tensor, dim: int, is_kept: Any) -> Any:
    """Return the extremes so far and the last place of each, over distances that double; NaN stays from then on."""
    if not x.ndim:
        return NotImplemented
    size: Any = x.shape[dim]
    here = torch.arange(size, device=x.device)
    shape = [1] * x.ndim
    shape[dim] = -1
    places = here.reshape(shape).expand_as(x)
    for step in range((size - 1).bit_length() if isinstance(size, int) else 31):
        before = (here - 2**step).clamp(min=0)
        other, of_other = x.index_select(dim, before), places.index_select(dim, before)
        stays = is_kept(x, other) | _is_nan(x)
        x, places = torch.where(stays, x, other), torch.where(stays, places, of_other)
    return x, places


def _middle_without_nan(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return NotImplemented
    is_nan = _is_nan(x)
    if x.is_floating_point():
        ordered, places = torch.sort(torch.where(is_nan, math.inf, x), dim)
    else:
        ordered, places = torch.sort(x, dim)
    count = (~is_nan).sum(dim, keepdim=True)
    middle = ((count - 1).clamp(min=0)) // 2
    values, found = ordered.gather(dim, middle), places.gather(dim, middle)
    if x.is_floating_point():
        values = torch.where(count == 0, math.nan, values)
    return (values, found) if keepdim else (values.squeeze(dim), found.squeeze(dim))


def _most_frequent(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """Return the most frequent value, of several the least; which of its places torch returns is not defined."""
    if not x.ndim:
        return NotImplemented
    ordered = torch.sort(x.movedim(dim, -1), -1).values
    count = (ordered.unsqueeze(-1) == ordered.unsqueeze(-2)).sum(-1)
    values = ordered.gather(-1, count.argmax(-1, keepdim=True))
    return (values.movedim(-1, dim) if keepdim else values.squeeze(-1)), None


# of torch's own inverse of the error function (ATen/native/Math.h): a quotient of polynomials, which Newton's method
# improves twice, for the middle and for the ends; near 0, where the step is a difference that cancels, a series
_MIDDLE = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
)
_SERIES = (127 * math.pi**3 / 40320, 7 * math.pi**2 / 480, math.pi / 12, 1.0)
_ENDS = ((1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1.0))


def _inverse_error_function(y: torch.Tensor) -> Any:
    if not y.is_floating_point():
        return NotImplemented
    size = y.abs()
    inside = torch.where(size < 1, y, 0.0)
    root = (-((1 - inside.abs()) / 2).log()).sqrt()
    of_end = _quotient(root, _ENDS)
    x = torch.where(
        inside.abs() <= 0.7, inside * _quotient(inside * inside, _MIDDLE), torch.where(inside < 0, -of_end, of_end)
    )
    for _ in range(2):
        x = x - (x.erf() - inside) / (2 / math.sqrt(math.pi) * (-x * x).exp())
    series = _polynomial(y * y, _SERIES) * y * (math.sqrt(math.pi) / 2)
    x = torch.where(size < 0.1, series, torch.where(size == 1, y * math.inf, x))
    return torch.where(size <= 1, x, math.nan)


def _quotient(x: torch.Tensor, factors: tuple[Sequence[float], Sequence[float]]) -> torch.Tensor:
    above, below = (_polynomial(x, each) for each in factors)
    return above / below


def _polynomial(x: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    total: Any = factors[0]
    for factor in factors[1:]:
        total = total * x + factor
    return total  # type: ignore[no-any-return]


def _sign(x: torch.Tensor) -> Any:
    """Return signs; that of NaN is 0 in torch, and NaN in runtimes."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype) if x.is_floating_point() else NotImplemented


def _logit(x: torch.Tensor, eps: float | None = None) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return (x / (1 - x)).log()


# the most equations that are solved step by step
_EQUATIONS = 16


def _inverse(x: torch.Tensor) -> Any:
    unit = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device) if _is_small(x) else None
    return NotImplemented if unit is None else _solved(x, unit.expand_as(x))


def _solution(a: torch.Tensor, b: torch.Tensor, *, left: bool = True) -> Any:
    if not _is_small(a) or not left:
        return NotImplemented
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and list(map(str, b.shape)) == list(map(str, a.shape[:-1])))
    right = b.unsqueeze(-1) if is_vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    result = _solved(a.expand(*batch, *a.shape[-2:]), right.expand(*batch, *right.shape[-2:]))
    return result.squeeze(-1) if is_vector else result


def _is_small(x: torch.Tensor) -> bool:
    return x.is_floating_point() and isinstance(x.shape[-1], int) and 0 < x.shape[-1] <= _EQUATIONS


def _solved(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve equations by elimination (Gauss and Jordan), each time with the row of the largest factor."""
    count = a.shape[-1]
    rows = torch.arange(count, device=a.device)
    both = torch.cat([a, b], -1)
    for step in range(count):
        sizes = torch.where(rows < step, -1.0, both[..., step].abs())
        largest = sizes.argmax(-1, keepdim=True)
        order = torch.where(rows == step, largest, torch.where(rows == largest, step, rows))
        both = both.gather(-2, order.unsqueeze(-1).expand_as(both))
        row = both.narrow(-2, step, 1)
        row = row / row.narrow(-1, step, 1)
        rest = both - both.narrow(-1, step, 1) * row
        both = torch.where((rows == step).unsqueeze(-1), row, rest)
    return both.narrow(-1, count, b.shape[-1])
