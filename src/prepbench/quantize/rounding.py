"""From weights to integers: the algorithms that ``weights_algorithm`` names."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from prepbench.jobs import check_cancelled
from prepbench.quantize.gptq import fitted_scales, gptq_rounded
from prepbench.quantize.hessian import InputHessian, damped
from prepbench.quantize.nearest import nearest, weighted
from prepbench.quantize.parts import in_parts
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme, integers, rows_of, weight_qparams

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
        """Return the integers found by gradient descent, each next to the weight.

        Args:
            scale: of each row or block.
        """
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
        """Return the integers and scales after changing single integers, and the error of each row.

        Args:
            numbers: integers to begin with, of shape (rows, in).
            scale: of each row or block.
        """
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
    """Return the regularization that pulls numbers between 0 and 1 to the nearer of both, more strongly with each
    step.
    """
    if done < _WARM:
        return torch.zeros(())
    share = (done - _WARM) / (1 - _WARM)
    power = _LAST_BETA + 0.5 * (_FIRST_BETA - _LAST_BETA) * (1 + math.cos(math.pi * share))
    away = 2 * soft - 1
    return 2 * power * away.sign() * away.abs() ** (power - 1)
