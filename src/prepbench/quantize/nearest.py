"""Rounding each weight to the nearest integer."""

from __future__ import annotations

import torch

from prepbench.quantize.parts import in_parts
from prepbench.quantize.rows import InputMoments, QuantizedRows
from prepbench.quantize.weights import WeightScheme, integers, rows_of, weight_qparams


def nearest(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """In the range that the scheme says."""
    return in_parts(weight, axis, scheme, lambda part: _nearest(part, axis, scheme))


def _nearest(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, importance: torch.Tensor | None = None
) -> QuantizedRows:
    scale, zero_point = weight_qparams(weight, axis, scheme, importance)
    return QuantizedRows(integers(rows_of(weight, axis, scheme), scale, zero_point, scheme), scale, zero_point)


def weighted(weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments) -> QuantizedRows:
    """Nearest, in the range of least error where the errors of inputs count by their power."""
    power = moments.power.unsqueeze(axis % 2)
    return in_parts(weight, axis, scheme, lambda part: _nearest(part, axis, scheme, power.expand_as(part)))
