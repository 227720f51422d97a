"""Rounding one input after the other, with the weights that are left making up for the errors."""

from __future__ import annotations

import torch

from prepbench.quantize.nearest import weighted
from prepbench.quantize.rows import InputMoments, QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme

# added to the squares of each input, as a fraction of their mean, so that inputs that hardly differ can be told apart
_DAMPING = 0.01
# columns whose errors are passed on together
_COLUMNS = 128
# weights that are rounded at a time
_VALUES = 2**22


def error_compensated(weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments) -> QuantizedRows:
    """Round one input after the other, and change the weights of those that are left so that outputs stay the same.

    Inputs with most power go first. Scales are those of :func:`weighted`, known before.

    Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
    Transformers", 2023, algorithm 1, with the order and the fixed scales that its authors' code calls ``act_order`` and
    ``static_groups``.
    """
    start = weighted(weight, axis, scheme, moments)
    inputs = weight.shape[1 - axis % 2]
    size = scheme.block_size or inputs
    order = moments.power.argsort(descending=True, stable=True)
    factor = _inverse_factor(moments.products[order][:, order])
    if factor is None:
        return start
    rows = weight.movedim(axis, 0)
    scale, zero_point = (value.reshape(len(rows), -1).float() for value in (start.scale, start.zero_point))
    groups = order // size
    found = [
        _compensated(part.float(), steps, zeros, scheme.limits, factor, order, groups)
        for part, steps, zeros in zip(
            *(value.split(max(1, _VALUES // inputs)) for value in (rows, scale, zero_point)), strict=True
        )
    ]
    return QuantizedRows(torch.cat(found).reshape(start.integers.shape), start.scale, start.zero_point)


def _compensated(
    rows: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    limits: tuple[int, int],
    factor: torch.Tensor,
    order: torch.Tensor,
    groups: torch.Tensor,
) -> torch.Tensor:
    """The integers of some outputs, of which each is rounded by itself."""
    outputs, inputs = rows.shape
    left, places = rows[:, order].contiguous(), order.tolist()
    low, high = limits
    scale, zero_point = (value.t()[groups] for value in (scale, zero_point))  # as rows, which are read at once
    found = torch.empty(inputs, outputs, dtype=torch.int8)
    for first in range(0, inputs, _COLUMNS):
        last = min(first + _COLUMNS, inputs)
        block, errors = left[:, first:last].t().contiguous(), []
        for place in range(first, last):
            column, step, zero = block[place - first], scale[place], zero_point[place]
            number = (column / step).round_().add_(zero).clamp_(low, high)
            found[places[place]] = number.to(torch.int8)
            error = (column - (number - zero) * step) / factor[place, place]
            block[place - first :].addr_(factor[place, place:last], error, alpha=-1)
            errors.append(error)
        left[:, last:] -= torch.stack(errors, 1) @ factor[first:last, last:]
    return found.t()


def _inverse_factor(products: torch.Tensor) -> torch.Tensor | None:
    """The upper Cholesky factor of the inverse; None where the numbers do not allow one."""
    damped = products.clone()
    # an input that was always zero says nothing about its weights, which are then rounded to nearest
    damped.diagonal().add_(max(_DAMPING * float(products.diag().mean()), EPSILON))
    lower, failed = torch.linalg.cholesky_ex(damped)
    if bool(failed):
        return None
    factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    return None if bool(failed) or not bool(factor.isfinite().all()) else factor
