"""GPTQ: round one input after the other, and compensate each error by the weights that are left."""

from __future__ import annotations

import torch

from prepbench.quantize.hessian import DAMPING, InputHessian
from prepbench.quantize.nearest import weighted
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme

# inputs whose errors are passed on to the next ones one by one, and those whose errors are passed on to all together
_NEAR, _COLUMNS = 16, 128
# weights that are rounded at a time
_VALUES = 2**22
# rows whose scales are fitted at a time, so that what is computed on the way stays in the processor's caches
_FITTED = 256
# how far a fitted scale may be from the one before, as a factor: farther away, outputs hardly depend on it
_FARTHEST = 1.5


def gptq_rounded(weight: torch.Tensor, axis: int, scheme: WeightScheme, hessian: InputHessian) -> QuantizedRows:
    """Round one input after the other, and change the remaining weights so that outputs stay the same.

    Inputs with most power go first. Scales are those of :func:`weighted`, fixed beforehand; at the end, the scales
    of a row are fitted jointly to its integers.

    Source: Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
    Pre-trained Transformers", 2023, algorithm 1, with the order and the fixed scales that its authors' code calls
    ``act_order`` and ``static_groups``.
    """
    start = weighted(weight, axis, scheme, hessian)
    inputs = weight.shape[1 - axis % 2]
    size = scheme.block_size or inputs
    order, factor = hessian.order, hessian.inverse_factor
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
        fitted = fitted_scales(part.float(), steps, known, hessian.damped)
        # inputs that were zero on all samples say nothing about errors, so their weights stay the nearest
        silent = (hessian.power == 0).nonzero().flatten()
        nearest = part.float()[:, silent] / fitted[:, silent // size] + zeros[:, silent // size]
        numbers[:, silent] = nearest.round_().clamp_(*scheme.limits).to(torch.int8)
        found.append(QuantizedRows(numbers.reshape(-1, size), fitted.flatten(), zeros.flatten()))
    joined = QuantizedRows.joined(found)
    return QuantizedRows(joined.integers.reshape(start.integers.shape), joined.scale, start.zero_point)


def fitted_scales(rows: torch.Tensor, steps: torch.Tensor, scale: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return scales of less squared error at the outputs: each is fitted to the error that those before it left.

    One round of coordinate descent (Gauss-Seidel) over the blocks of a row, the blocks with the largest error first.

    Args:
        rows: the weights, of shape (rows, in).
        steps: their integers without zero points, likewise.
        scale: the scales that they were found with, of shape (rows, blocks); kept where others would be far from them.
        matrix: of the inputs, of shape (in, in).
    """
    if len(rows) > _FITTED:
        parts = zip(rows.split(_FITTED), steps.split(_FITTED), scale.split(_FITTED), strict=True)
        return torch.cat([fitted_scales(few, numbers, known, matrix) for few, numbers, known in parts])
    size = rows.shape[1] // scale.shape[1]
    pull = (rows - steps * scale.repeat_interleave(size, 1)) @ matrix
    found = scale.clone()
    for block in range(scale.shape[1]):
        here, after = slice(block * size, (block + 1) * size), slice((block + 1) * size, None)
        own = steps[:, here]
        bend = ((own @ matrix[here, here]) * own).sum(1) * (1 + DAMPING)
        fitted = scale[:, block] + (own * pull[:, here]).sum(1) / bend.clamp_min(EPSILON)
        is_near = (fitted > scale[:, block] / _FARTHEST) & (fitted < scale[:, block] * _FARTHEST)
        found[:, block] = torch.where(is_near, fitted, scale[:, block])
        change = found[:, block] - scale[:, block]
        pull[:, after].addmm_(own * change[:, None], matrix[here, after], alpha=-1)
    return found


def _compensated(
    rows: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    limits: tuple[int, int],
    factor: torch.Tensor,
    order: torch.Tensor,
    groups: torch.Tensor,
) -> torch.Tensor:
    """Return the integers of some outputs, each of which is rounded independently."""
    outputs, inputs = rows.shape
    left, places = rows.t()[order], order.tolist()  # inputs as rows, which are read at once
    low, high = limits
    masked = left == 0 if bool((rows == 0).any()) else None  # pruned weights stay zero, and the others compensate them
    scale, zero_point = (value.t()[groups] for value in (scale, zero_point))
    found = torch.empty(inputs, outputs, dtype=torch.int8)
    errors = torch.empty(_COLUMNS, outputs)
    for first in range(0, inputs, _COLUMNS):
        last = min(first + _COLUMNS, inputs)
        for start in range(first, last, _NEAR):
            end = min(start + _NEAR, last)
            for place in range(start, end):
                column, step, zero = left[place], scale[place], zero_point[place]
                number = (column / step).round_().add_(zero).clamp_(low, high)
                if masked is not None:
                    number = torch.where(masked[place], zero, number)
                found[places[place]] = number
                error = errors[place - first]
                torch.sub(column, number.sub_(zero).mul_(step), out=error).div_(factor[place, place])
                left[place + 1 : end].addr_(factor[place, place + 1 : end], error, alpha=-1)
            left[end:last].addmm_(factor[start:end, end:last].t(), errors[start - first : end - first], alpha=-1)
        left[last:].addmm_(factor[first:last, last:].t(), errors[: last - first], alpha=-1)
    return found.t()
