"""Rounding each weight to the nearest integer."""

from __future__ import annotations

import torch

from prepbench.quantize.rows import InputMoments, QuantizedRows
from prepbench.quantize.weights import WeightScheme, integers, rows_of, weight_qparams


def nearest(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """In the range that the scheme says."""
    scale, zero_point = weight_qparams(weight, axis, scheme)
    return QuantizedRows(integers(rows_of(weight, axis, scheme), scale, zero_point, scheme), scale, zero_point)


def weighted(weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments) -> QuantizedRows:
    """Nearest, in the range of least error where the errors of inputs count by their power."""
    power = moments.power.unsqueeze(axis % 2).expand_as(weight)
    scale, zero_point = weight_qparams(weight, axis, scheme, power)
    return QuantizedRows(integers(rows_of(weight, axis, scheme), scale, zero_point, scheme), scale, zero_point)
