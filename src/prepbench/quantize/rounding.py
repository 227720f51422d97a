"""From weights to integers: to the nearest, GPTQ and AdaRound on Hessians, part by part, with a cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from prepbench.jobs import check_cancelled
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.rows import PackedRows, QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme, integers, rows_of, weight_qparams
from prepbench.settings.numbers import INT8

# Round a weight part by part, so that intermediate results stay small and in the processor's caches.


_SIZE = 2**18


def in_parts(
    weight: torch.Tensor,
    axis: int,
    scheme: WeightScheme,
    rounded: Callable[[torch.Tensor], QuantizedRows],
) -> QuantizedRows:
    """Apply ``rounded`` to slices of channels, each in float32, and join the results.

    Args:
        weight: of any floating type.
        axis: the axis of output channels, whose order the parts keep.
        scheme: where it has one scale for the whole weight, there is one part.
        rounded: given channels of the weight, in its layout.
    """
    channels = weight.shape[axis] if weight.ndim else 1
    if channels == 0 or not (scheme.per_channel or scheme.block_size) or weight.numel() <= _SIZE:
        return rounded(weight.float())
    step = max(1, _SIZE * channels // weight.numel())
    return QuantizedRows.joined([rounded(part.float()) for part in weight.split(step, axis)])


# Rounding each weight to the nearest integer.


def nearest(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """Round to nearest in the range of the scheme.

    With fewer than 8 bits and more than one scale, each row keeps its gain: its scale is such that the product of
    the row in float with the rounded one is that of the row with itself. A range of least squared error makes rows
    shorter in that direction, by a percent or so, layer after layer, where other errors do not add up. Banner,
    Nahshan and Soudry, "Post training 4-bit quantization of convolutional networks for rapid-deployment", 2019, keep
    their norm.
    """
    keeps_gain = scheme.bits < INT8.bits and (scheme.per_channel or scheme.block_size > 0)
    rounded = _gain_preserving if keeps_gain else _nearest
    return in_parts(weight, axis, scheme, lambda part: rounded(part, axis, scheme))


def _gain_preserving(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    found = _nearest(weight, axis, scheme)
    rows = rows_of(weight.detach().float(), axis, scheme)
    rounded = (found.integers.float() - found.zero_point[:, None]) * found.scale[:, None]
    full, left = rows.square().sum(1), (rows * rounded).sum(1)
    # no scale repairs a row whose rounding keeps less than half of it
    gain = torch.where(left > full / 2, full / left, 1.0)
    return replace(found, scale=found.scale * gain)


def _nearest(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, importance: torch.Tensor | None = None
) -> QuantizedRows:
    scale, zero_point = weight_qparams(weight, axis, scheme, importance)
    return QuantizedRows(integers(rows_of(weight, axis, scheme), scale, zero_point, scheme), scale, zero_point)


def weighted(weight: torch.Tensor, axis: int, scheme: WeightScheme, hessian: InputHessian) -> QuantizedRows:
    """Round to nearest in the range of least error, where the errors of inputs are weighted by their power."""
    power = hessian.power.unsqueeze(axis % 2)
    return in_parts(weight, axis, scheme, lambda part: _nearest(part, axis, scheme, power.expand_as(part)))


# GPTQ: round one input after the other, and compensate each error by the weights that are left.


# inputs whose errors are passed on to the next ones one by one, and those whose errors are passed on to all together
_NEAR, _GPTQ_COLUMNS = 16, 128
# weights that are rounded at a time
_GPTQ_VALUES = 2**22
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
        *(value.split(max(1, _GPTQ_VALUES // inputs)) for value in (rows, scale, zero_point)), strict=True
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
    errors = torch.empty(_GPTQ_COLUMNS, outputs)
    for first in range(0, inputs, _GPTQ_COLUMNS):
        last = min(first + _GPTQ_COLUMNS, inputs)
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


# Scales that suit most weights of a row, and not its outliers.


_HQQ_STEPS = 20
_NORM = 0.7
_KAPPA = 1.01


def hqq(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """Find the scale under a norm that favours many small errors and tolerates a few large ones (HQQ).

    Source: Badri, Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023; the scale is solved
    for instead of the zero point, which is an integer here.
    """
    return in_parts(weight, axis, scheme, lambda part: _hqq(part, axis, scheme))


def _hqq(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    rows, (low, high) = rows_of(weight, axis, scheme), scheme.limits
    scale, zero_point = (value[:, None].float() for value in weight_qparams(weight, axis, scheme))
    best = torch.full((len(rows), 1), float("inf"))
    kept, beta = scale, 10.0
    for _ in range(_HQQ_STEPS):
        numbers = (rows / scale).round_().add_(zero_point).clamp_(low, high)
        errors = rows - (numbers - zero_point) * scale
        lost = errors.abs().pow(_NORM).sum(1, keepdim=True)
        kept = torch.where(lost < best, scale, kept)
        best = torch.minimum(best, lost)
        size = errors.abs()
        outliers = errors.sign() * (size - size.clamp_min(1e-8).pow(_NORM - 1) / beta).clamp_min_(0)
        steps = numbers - zero_point
        fitted = ((rows - outliers) * steps).sum(1, keepdim=True)
        scale = (fitted / steps.square().sum(1, keepdim=True).clamp_min(1)).clamp_min(EPSILON)
        beta *= _KAPPA
    found = (kept[:, 0], zero_point[:, 0].long())
    return QuantizedRows(integers(rows, *found, scheme), *found)


@torch.no_grad()
def quantized_rows(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, hessian: InputHessian | None = None
) -> QuantizedRows:
    """Return the integers of a weight.

    Args:
        weight: of any floating type.
        axis: the axis of output channels.
        scheme: bits, blocks, and the algorithm.
        hessian: of the layer's inputs; without them (no samples, or no matrix) algorithms that need them round to
            nearest.
    """
    weight = weight.detach()
    return _with_zeros(_rounded(weight, axis, scheme, hessian), weight, axis, scheme)


def _rounded(weight: torch.Tensor, axis: int, scheme: WeightScheme, hessian: InputHessian | None) -> QuantizedRows:
    if scheme.algorithm == "adaround":
        rows = weight.movedim(axis, 0) if weight.ndim > 1 else weight
        fits = hessian is not None and scheme.per_channel and _inputs(rows, hessian) == rows[:1].numel()
        if fits and hessian is not None:
            return adaround(rows, scheme, hessian)
    fits = weight.ndim == 2 and scheme.per_channel
    if hessian is not None and fits and len(hessian.matrix) == weight.shape[1 - axis % 2]:
        return _WITH_HESSIAN.get(scheme.algorithm, weighted)(weight, axis, scheme, hessian)
    return hqq(weight, axis, scheme) if scheme.algorithm == "hqq" else nearest(weight, axis, scheme)


def _with_zeros(found: QuantizedRows, weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """Restore exact zeros where the weight is zero, so that error compensation keeps a mask."""
    is_zero = weight == 0
    if not bool(is_zero.any()):
        return found
    places = rows_of(is_zero, axis, scheme).reshape(found.integers.shape)
    zeros = found.zero_point.to(found.integers.dtype)[:, None]
    return replace(found, integers=torch.where(places, zeros, found.integers))


def _inputs(rows: torch.Tensor, hessian: InputHessian) -> int:
    """Return the number of inputs of each output; -1 if the outputs cannot be split into the Hessian's groups."""
    groups = len(hessian.matrix) if hessian.matrix.ndim == 3 else 1
    return -1 if len(rows) == 0 or len(rows) % groups else hessian.matrix.shape[-1]


_WITH_HESSIAN: dict[str, Callable[[torch.Tensor, int, WeightScheme, InputHessian], QuantizedRows]] = {
    "gptq": gptq_rounded,
    "awq": weighted,
}
NEEDS_MOMENTS = frozenset([*_WITH_HESSIAN, "adaround"])
"""The algorithms that look at a layer's inputs."""

FOR_IM2COL = frozenset(["adaround"])
"""Those of them that round convolutions, too."""


# Rounding that is learned: up or down for each weight, so that the layer's outputs stay what they were.


_STEPS = 200
_RATE = 0.1
_LAMBDA = 4.0
_WARM = 0.2  # of the steps, in which nothing pulls to 0 or 1
_LAST_BETA, _FIRST_BETA = 2.0, 20.0
_STRETCH, _GAMMA = 1.2, -0.1  # of the sigmoid, so that 0 and 1 are reached
_SWEEPS = 4
_FITS = 2
_COLUMNS = 128
_VALUES = 2**20  # weights that are rounded at a time


def adaround(weight: torch.Tensor, scheme: WeightScheme, hessian: InputHessian) -> QuantizedRows:
    """Learn for each weight whether it is rounded up or down (AdaRound), then improve single integers while that
    helps.

    The loss is the squared error of the layer's outputs, which the Hessian of its inputs determines: no inputs are
    kept. The integers are relaxed to numbers between both neighbours, pulled to one of them ever harder, and found
    by gradients (Adam). A sweep over the inputs then gives each the best integer, all others given, from the learned
    integers and from those of error compensation; a row takes the better of both. Finally scales are fitted.

    Source: Nagel, Amjad, van Baalen, Louizos, Blankevoort, "Up or Down? Adaptive Rounding for Post-Training
    Quantization", 2020, with the layer's output as what is reconstructed, as in its section 3.3.

    Args:
        weight: of shape (outputs, ...), float.
        scheme: with a scale for each output channel or block.
        hessian: of the inputs; matrix of shape (in, in), or (groups, in, in) for outputs in groups.
    """
    rows = weight.flatten(1).float()
    matrix = hessian.matrix if hessian.matrix.ndim == 3 else hessian.matrix[None]
    groups, inputs = matrix.shape[:2]
    share = min(100.0, inputs / max(1, hessian.count))
    matrix = torch.stack([damped(each, share) for each in matrix])
    outputs = len(rows) // groups
    step = max(1, _VALUES // inputs)
    if groups == 1:
        plain = replace(hessian, matrix=hessian.matrix.reshape(inputs, inputs))
        return QuantizedRows.joined([_adaround_rounded(part, scheme, matrix, plain) for part in rows.split(step)])
    few = max(1, step // outputs)
    parts = zip(rows.split(few * outputs), matrix.split(few), strict=True)
    return QuantizedRows.joined([_adaround_rounded(part, scheme, known, None) for part, known in parts])


def _adaround_rounded(
    rows: torch.Tensor, scheme: WeightScheme, matrix: torch.Tensor, hessian: InputHessian | None
) -> QuantizedRows:
    """Return the integers of some outputs; with the Hessian of one group, also try those of error compensation."""
    groups, inputs = matrix.shape[:2]
    size = scheme.block_size or inputs
    power = matrix.diagonal(dim1=1, dim2=2).repeat_interleave(len(rows) // groups, 0)
    scale, zero_point = weight_qparams(rows, 0, scheme, power)
    layer = _Layer(rows, scheme, matrix, zero_point)
    best = layer.improved(layer.learned(scale), scale)
    if hessian is None:
        return QuantizedRows(best[0].to(torch.int8).reshape(-1, size), best[1], zero_point)
    start = gptq_rounded(rows, 0, scheme, hessian)
    other = _Layer(rows, scheme, matrix, start.zero_point)
    found = other.improved(start.integers.reshape(rows.shape).float(), start.scale)
    better = (found[2] < best[2])[:, None]
    blocks = better.expand(-1, inputs // size).flatten()
    return QuantizedRows(
        torch.where(better, found[0], best[0]).to(torch.int8).reshape(-1, size),
        torch.where(blocks, found[1], best[1]),
        torch.where(blocks, start.zero_point, zero_point),
    )


class _Layer:
    """Some outputs of a layer, with the Hessian of their inputs."""

    def __init__(
        self, rows: torch.Tensor, scheme: WeightScheme, matrix: torch.Tensor, zero_point: torch.Tensor
    ) -> None:
        self.hessian = matrix
        self.low, self.high = scheme.limits
        self.size = scheme.block_size or rows.shape[1]
        self.rows = self._grouped(rows)
        self.zeros = self._spread(zero_point.float())

    def learned(self, scale: torch.Tensor) -> torch.Tensor:
        """Return the integers found by gradient descent, each next to the weight; a scale for each row or block."""
        scales = self._spread(scale)
        exact = self.rows / scales
        floor = exact.floor()
        chance = torch.log((exact - floor - _GAMMA) / (_STRETCH + _GAMMA - (exact - floor)))
        # in units of a row's scale and of inputs of power 1, so that rates fit all layers
        unit = scales.mean(2, keepdim=True)
        matrix = self.hessian / self.hessian.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        mean, square = torch.zeros_like(chance), torch.zeros_like(chance)
        for step in range(_STEPS):
            if step % 20 == 0:
                check_cancelled("round weights")
            sigmoid = chance.sigmoid()
            stretched = sigmoid * _STRETCH + _GAMMA
            soft = stretched.clamp(0, 1)
            number = floor + soft + self.zeros
            inside = number.clamp(self.low, self.high)
            error = ((inside - self.zeros) * scales - self.rows) / unit
            slope = 2 * (error @ matrix) * (scales / unit) * (inside == number)
            slope -= _LAMBDA * _regularizer_slope(soft, step / _STEPS)
            slope *= (stretched == soft) * _STRETCH * sigmoid * (1 - sigmoid)
            mean.lerp_(slope, 0.1)
            square.mul_(0.999).addcmul_(slope, slope, value=0.001)
            size = _RATE / (1 - 0.9 ** (step + 1))
            chance.sub_(mean / ((square / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)), alpha=size)
        return (floor + (chance >= 0) + self.zeros).clamp_(self.low, self.high).flatten(0, 1)

    def improved(self, numbers: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return integers (rows, in) and scales after changing single integers, and the error of each row."""
        grouped = self._grouped(numbers.clone())
        for _ in range(_FITS):
            self._sweep(grouped, self._spread(scale))
            scale = self._fitted(grouped, scale)
        error = (grouped - self.zeros) * self._spread(scale) - self.rows
        return grouped.flatten(0, 1), scale, ((error @ self.hessian) * error).sum(2).flatten()

    def _sweep(self, numbers: torch.Tensor, scales: torch.Tensor) -> None:
        """Give each input the best integer, all others given, until none changes; in place."""
        slope = (self.rows - (numbers - self.zeros) * scales) @ self.hessian
        power = self.hessian.diagonal(dim1=1, dim2=2)
        for _ in range(_SWEEPS):
            check_cancelled("round weights")
            changed = False
            for first in range(0, numbers.shape[2], _COLUMNS):
                last = min(first + _COLUMNS, numbers.shape[2])
                near = self.hessian[:, first:last, first:last]
                block, steps = slope[:, :, first:last].clone(), torch.zeros_like(slope[:, :, first:last])
                for place in range(last - first):
                    column = first + place
                    step, before = scales[:, :, column], numbers[:, :, column]
                    wanted = before + block[:, :, place] / (step * power[:, column, None])
                    after = wanted.round_().clamp_(self.low, self.high)
                    steps[:, :, place] = (after - before) * step
                    numbers[:, :, column] = after
                    block -= steps[:, :, place, None] * near[:, place, None]
                if bool(steps.any()):
                    changed = True
                    slope -= steps @ self.hessian[:, first:last]
            if not changed:
                return

    def _fitted(self, numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the scales of least error for these integers."""
        steps = numbers - self.zeros
        known = scale.reshape(len(self.hessian), -1, numbers.shape[2] // self.size)
        return torch.cat(
            [fitted_scales(*each) for each in zip(self.rows, steps, known, self.hessian, strict=True)]
        ).flatten()

    def _grouped(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(len(self.hessian), -1, self.hessian.shape[1])

    def _spread(self, values: torch.Tensor) -> torch.Tensor:
        """Expand a value of each row or block to each weight, of shape (groups, rows of a group, in)."""
        return self._grouped(values[:, None].expand(-1, self.size))


def _regularizer_slope(soft: torch.Tensor, done: float) -> torch.Tensor:
    """Return the regularization that pulls numbers to the nearer of 0 and 1, more strongly with each step."""
    if done < _WARM:
        return torch.zeros(())
    share = (done - _WARM) / (1 - _WARM)
    power = _LAST_BETA + 0.5 * (_FIRST_BETA - _LAST_BETA) * (1 + math.cos(math.pi * share))
    away = 2 * soft - 1
    return 2 * power * away.sign() * away.abs() ** (power - 1)


# A cache of the integers of a weight by scheme.


class CachedRows:
    """The integers of one weight for each requested scheme, computed once; all its observers share them.

    Attributes:
        weight: the weight, once it was read.
        hessian: of the inputs that it is multiplied by, while they are known.
    """

    def __init__(self) -> None:
        self.weight: torch.Tensor | None = None
        self.hessian: InputHessian | None = None
        self._rows: dict[tuple[int, WeightScheme], PackedRows] = {}

    def rows(self, axis: int, scheme: WeightScheme) -> QuantizedRows:
        """Return the weight in integers; output channels lie along ``axis``."""
        assert self.weight is not None
        if (axis, scheme) not in self._rows:
            found = quantized_rows(self.weight, axis, scheme, self.hessian)
            self._rows[axis, scheme] = PackedRows.of(found, scheme.bits)
        return self._rows[axis, scheme].unpacked()

    def fixed(self, axis: int, scheme: WeightScheme, rows: QuantizedRows) -> CachedRows:
        """Return the same weight with integers that were computed elsewhere."""
        other = CachedRows()
        other.weight = self.weight
        other._rows[axis, scheme] = PackedRows.of(rows, scheme.bits)
        return other


# The Hessian of a layer's squared output error, which its inputs on samples determine.


DAMPING = 0.01
"""Added to the squares of each input, as a fraction of their mean, so that inputs that hardly differ can be told
apart."""


@dataclass(frozen=True)
class InputHessian:
    """The Hessian ``X^T X`` of a layer's squared output error, with the inputs ``X`` of all positions of the samples.

    Attributes:
        matrix: of shape (in, in), the sum over all positions of the products of each two inputs.
        count: how many positions were added.
    """

    matrix: torch.Tensor
    count: int

    @classmethod
    def joined(cls, parts: Sequence[InputHessian]) -> InputHessian:
        """Combine the inputs of several calls of one layer."""
        matrix = parts[0].matrix
        for other in parts[1:]:
            matrix = matrix + other.matrix
        return cls(matrix, sum(part.count for part in parts))

    @property
    def power(self) -> torch.Tensor:
        """Return the mean square of each input, of shape (in,)."""
        return self.matrix.diag() / max(1, self.count)

    @cached_property
    def order(self) -> torch.Tensor:
        """Return the indices of the inputs, those with most power first."""
        return self.power.argsort(descending=True, stable=True)

    @cached_property
    def damped(self) -> torch.Tensor:
        """Return the damped Hessian."""
        return damped(self.matrix)

    @cached_property
    def inverse_factor(self) -> torch.Tensor | None:
        """Return the upper Cholesky factor of the inverse of the damped Hessian, in :attr:`order`; None where there
        is none.

        Computed once for all weights of these inputs.
        """
        return _inverse_factor(self.damped[self.order][:, self.order])


def damped(matrix: torch.Tensor, share: float = 1.0) -> torch.Tensor:
    """Return a Hessian with a little more on the diagonal, so that nearly equal inputs can be told apart.

    Args:
        matrix: of shape (in, in).
        share: how much of the usual damping; less, where many positions were seen.
    """
    changed = matrix.clone()
    # an input that was always zero says nothing about its weights, which are then rounded to nearest
    changed.diagonal().add_(max(share * DAMPING * float(matrix.diag().mean()), EPSILON))
    return changed


def _inverse_factor(damped: torch.Tensor) -> torch.Tensor | None:
    """Return the upper Cholesky factor of the inverse; None where it does not exist numerically."""
    # the factor of the inverse is the inverse of the factor, where both are found from the last input to the first
    lower, failed = torch.linalg.cholesky_ex(damped.flip(0, 1))
    if bool(failed):
        return None
    inverse = torch.linalg.solve_triangular(lower, torch.eye(len(lower)), upper=False)
    factor = inverse.flip(0, 1)
    return factor if bool(factor.isfinite().all()) else None


# im2col for convolutions: the Hessian of the input patches that a convolution multiplies by its weights.


_LARGEST = 2048  # inputs of a patch: the Hessian has their square
_POSITIONS = 4096  # of a sample; neighbours differ little
_PATCH_VALUES = 2**24  # of patches that are cut out at a time


@dataclass(frozen=True)
class Im2col:
    """How a convolution cuts its input into patches (im2col).

    Attributes:
        kernel: sizes of a patch.
        stride: steps from one to the next.
        padding: zeros before and after each dimension.
        dilation: distances inside a patch.
        groups: of channels.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, layer: LayerNode) -> Im2col | None:
        """Return a convolution's patches; None for other layers, and where the Hessian of patches is too large."""
        shape = layer.weight.meta["val"].shape
        if not layer.is_convolution or layer.is_transposed or len(shape) not in (3, 4):
            return None
        if shape[1:].numel() > _LARGEST:
            return None
        kernel = tuple(shape[2:])
        names = ("stride", "padding", "dilation")
        given = [
            layer.node.args[index] if len(layer.node.args) > index else layer.node.kwargs.get(name)
            for index, name in enumerate(names, 3)
        ]
        stride, dilation = (_each(value, kernel, 1) for value in (given[0], given[2]))
        if given[1] == "same":
            whole = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
            padding = tuple((size // 2, size - size // 2) for size in whole)
        else:
            sizes = _each(0 if given[1] == "valid" else given[1], kernel, 0)
            padding = tuple((size, size) for size in sizes)
        return cls(kernel, stride, padding, dilation, layer.groups)

    def hessian(self, value: torch.Tensor) -> InputHessian:
        """Return the Hessian of the patches of an input, of shape (groups, inputs of a patch, inputs of a patch)."""
        dims = len(self.kernel)
        batch = value.detach().float()
        batch = batch[None] if batch.ndim == dims + 1 else batch
        windows = torch.nn.functional.pad(batch, [size for pair in reversed(self.padding) for size in pair])
        for dim, (size, step, gap) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True), 2):
            windows = windows.unfold(dim, gap * (size - 1) + 1, step)[..., ::gap]  # a view, patches in the last dims
        windows = windows.movedim(1, 1 + dims)
        places = windows.shape[: 1 + dims]
        chosen = torch.arange(0, places.numel(), -(-places.numel() // _POSITIONS))
        inputs = windows.shape[1 + dims :].numel() // self.groups
        matrix = torch.zeros(self.groups, inputs, inputs)
        for some in chosen.split(max(1, _PATCH_VALUES // (inputs * self.groups))):
            rows = windows[torch.unravel_index(some, places)].reshape(len(some), self.groups, -1).transpose(0, 1)
            matrix.baddbmm_(rows.transpose(1, 2), rows)
        return InputHessian(matrix, len(chosen))


def _each(value: Any, kernel: Sequence[int], default: int) -> tuple[int, ...]:
    if value is None:
        return (default,) * len(kernel)
    sizes = [int(value)] if isinstance(value, int) else [int(size) for size in value]
    return tuple(sizes * len(kernel) if len(sizes) == 1 else sizes)
