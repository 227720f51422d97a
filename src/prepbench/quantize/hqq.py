"""Scales that suit most weights of a row, and not its outliers."""

from __future__ import annotations

import torch

from prepbench.quantize.parts import in_parts
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import EPSILON, WeightScheme, integers, rows_of, weight_qparams

_STEPS = 20
_NORM = 0.7
_GROWTH = 1.01


def half_quadratic(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """Take the scale that leaves small errors small and lets a few be large.

    Source: Badri, Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023; the scale is solved for
    in place of the zero point, which is an integer here.
    """
    return in_parts(weight, axis, scheme, lambda part: _half_quadratic(part, axis, scheme))


def _half_quadratic(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    rows, (low, high) = rows_of(weight, axis, scheme), scheme.limits
    scale, zero_point = (value[:, None].float() for value in weight_qparams(weight, axis, scheme))
    best = torch.full((len(rows), 1), float("inf"))
    kept, strength = scale, 10.0
    for _ in range(_STEPS):
        numbers = (rows / scale).round_().add_(zero_point).clamp_(low, high)
        errors = rows - (numbers - zero_point) * scale
        lost = errors.abs().pow(_NORM).sum(1, keepdim=True)
        kept = torch.where(lost < best, scale, kept)
        best = torch.minimum(best, lost)
        size = errors.abs()
        outliers = errors.sign() * (size - size.clamp_min(1e-8).pow(_NORM - 1) / strength).clamp_min_(0)
        steps = numbers - zero_point
        fitted = ((rows - outliers) * steps).sum(1, keepdim=True)
        scale = (fitted / steps.square().sum(1, keepdim=True).clamp_min(1)).clamp_min(EPSILON)
        strength *= _GROWTH
    found = (kept[:, 0], zero_point[:, 0].long())
    return QuantizedRows(integers(rows, *found, scheme), *found)
