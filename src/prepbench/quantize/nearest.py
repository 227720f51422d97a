"""Rounding each weight to the nearest integer."""

from __future__ import annotations

from dataclasses import replace

import torch

from prepbench.quantize.hessian import InputHessian
from prepbench.quantize.parts import in_parts
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import WeightScheme, integers, rows_of, weight_qparams


def nearest(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """Round to nearest in the range of the scheme.

    With fewer than 8 bits and more than one scale, each row keeps its gain: its scale is such that the product of
    the row in float with the rounded one is that of the row with itself. A range of least squared error makes rows
    shorter in that direction, by a percent or so, layer after layer, where other errors do not add up. Banner,
    Nahshan and Soudry, "Post training 4-bit quantization of convolutional networks for rapid-deployment", 2019, keep
    their norm.
    """
    keeps_gain = scheme.bits < 8 and (scheme.per_channel or scheme.block_size > 0)
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
