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
# rows whose scales are fitted at a time, so that what is computed on the way stays in the processor's caches
_FITTED = 64
# how far a fitted scale may be from the one before, as a factor: farther, hardly anything depends on it
_FARTHEST = 1.5


def error_compensated(weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments) -> QuantizedRows:
    """Round one input after the other, and change the weights of those that are left so that outputs stay the same.

    Inputs with most power go first. Scales are those of :func:`weighted`, known before; at the end, those of a row are
    fitted to its integers, all at once.

    Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
    Transformers", 2023, algorithm 1, with the order and the fixed scales that its authors' code calls ``act_order`` and
    ``static_groups``.
    """
    start = weighted(weight, axis, scheme, moments)
    inputs = weight.shape[1 - axis % 2]
    size = scheme.block_size or inputs
    order = moments.power.argsort(descending=True, stable=True)
    products = damped(moments.products)
    factor = _inverse_factor(products[order][:, order])
    if factor is None:
        return start
    rows = weight.movedim(axis, 0)
    scale, zero_point = (value.reshape(len(rows), -1).float() for value in (start.scale, start.zero_point))
    groups = order // size
    found = []
    for part, known, zeros in zip(
        *(value.split(max(1, _VALUES // inputs)) for value in (rows, scale, zero_point)), strict=True
    ):
        numbers = _compensated(part.float(), known, zeros, scheme.limits, factor, order, groups)
        steps = numbers - zeros.repeat_interleave(size, 1)
        fitted = fitted_scales(part.float(), steps, known, products)
        # what no sample showed is not made up for: it stays the nearest
        silent = (moments.power == 0).nonzero().flatten()
        nearest = part.float()[:, silent] / fitted[:, silent // size] + zeros[:, silent // size]
        numbers[:, silent] = nearest.round_().clamp_(*scheme.limits).to(torch.int8)
        found.append(QuantizedRows(numbers.reshape(-1, size), fitted.flatten(), zeros.flatten()))
    joined = QuantizedRows.joined(found)
    return QuantizedRows(joined.integers.reshape(start.integers.shape), joined.scale, start.zero_point)


def fitted_scales(rows: torch.Tensor, steps: torch.Tensor, scale: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The scales of least squared error at the outputs.

    Args:
        rows: the weights, of shape (rows, in).
        steps: their integers without zero points, likewise.
        scale: the scales that they were found with, of shape (rows, blocks); kept where others would be far from them.
        products: of the inputs, of shape (in, in).
    """
    if len(rows) > _FITTED:
        parts = zip(rows.split(_FITTED), steps.split(_FITTED), scale.split(_FITTED), strict=True)
        return torch.cat([fitted_scales(few, numbers, known, products) for few, numbers, known in parts])
    count, size = scale.shape[1], rows.shape[1] // scale.shape[1]
    wanted = (steps * (rows @ products)).unflatten(1, (count, size)).sum(2)
    columns = steps.t().contiguous()  # rows lie side by side, so that sums over a block are sums of vectors
    between = torch.zeros(count, count, len(rows))  # the upper half
    for block in range(count):
        here = slice(block * size, (block + 1) * size)
        # as rows, which are read at once
        left = (products[here, block * size :].t() @ columns[here]).mul_(columns[block * size :])
        torch.sum(left.unflatten(0, (count - block, size)), 1, out=between[block, block:])
    between = between.permute(2, 0, 1).contiguous()
    pull = _DAMPING * between.diagonal(dim1=1, dim2=2).mean(1, keepdim=True).clamp_min(EPSILON)
    between.diagonal(dim1=1, dim2=2).add_(pull)
    upper, failed = torch.linalg.cholesky_ex(between, upper=True)
    found = torch.cholesky_solve((wanted + pull * scale)[..., None], upper, upper=True)[..., 0]
    is_near = (failed == 0)[:, None] & (found > scale / _FARTHEST) & (found < scale * _FARTHEST)
    return torch.where(is_near, found, scale)


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
    masked = (
        (left == 0).t() if bool((rows == 0).any()) else None
    )  # what was pruned stays zero, and others make up for it
    scale, zero_point = (value.t()[groups] for value in (scale, zero_point))  # as rows, which are read at once
    found = torch.empty(inputs, outputs, dtype=torch.int8)
    for first in range(0, inputs, _COLUMNS):
        last = min(first + _COLUMNS, inputs)
        block, errors = left[:, first:last].t().contiguous(), []
        for place in range(first, last):
            column, step, zero = block[place - first], scale[place], zero_point[place]
            number = (column / step).round_().add_(zero).clamp_(low, high)
            if masked is not None:
                number = torch.where(masked[place], zero, number)
            found[places[place]] = number.to(torch.int8)
            error = (column - (number - zero) * step) / factor[place, place]
            block[place - first :].addr_(factor[place, place:last], error, alpha=-1)
            errors.append(error)
        left[:, last:] -= torch.stack(errors, 1) @ factor[first:last, last:]
    return found.t()


def damped(products: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """The products with a little more on the diagonal, so that inputs that hardly differ can be told apart.

    Args:
        products: of shape (in, in).
        share: how much of the usual damping; less, where many positions were seen.
    """
    changed = products.clone()
    # an input that was always zero says nothing about its weights, which are then rounded to nearest
    changed.diagonal().add_(max(share * _DAMPING * float(products.diag().mean()), EPSILON))
    return changed


def _inverse_factor(damped: torch.Tensor) -> torch.Tensor | None:
    """The upper Cholesky factor of the inverse; None where the numbers do not allow one."""
    # the factor of the inverse is the inverse of the factor, where both are found from the last input to the first
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if bool(failed):
        return None
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(lower)), upper=False)
    factor = inverse.flip(0, 1)
    return factor if bool(factor.isfinite().all()) else None
