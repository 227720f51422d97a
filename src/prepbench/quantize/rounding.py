"""From weights to integers: the algorithms that ``weights_algorithm`` names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from prepbench.quantize.adaround import adaptive
from prepbench.quantize.gptq import error_compensated
from prepbench.quantize.hqq import half_quadratic
from prepbench.quantize.moments import InputMoments
from prepbench.quantize.nearest import nearest, weighted
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import WeightScheme, rows_of


@torch.no_grad()
def quantized_rows(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments | None = None
) -> QuantizedRows:
    """The integers of a weight.

    Args:
        weight: of any floating type.
        axis: the axis of output channels.
        scheme: bits, blocks, and the algorithm.
        moments: of the layer's inputs; without them (no samples, or no matrix) algorithms that need them round to
            nearest.
    """
    weight = weight.detach()
    return _with_zeros(_rounded(weight, axis, scheme, moments), weight, axis, scheme)


def _rounded(weight: torch.Tensor, axis: int, scheme: WeightScheme, moments: InputMoments | None) -> QuantizedRows:
    if scheme.algorithm == "adaround":
        rows = weight.movedim(axis, 0) if weight.ndim > 1 else weight
        fits = moments is not None and scheme.per_channel and _inputs(rows, moments) == rows[:1].numel()
        if fits and moments is not None:
            return adaptive(rows, scheme, moments)
    fits = weight.ndim == 2 and scheme.per_channel
    if moments is not None and fits and len(moments.products) == weight.shape[1 - axis % 2]:
        return _WITH_MOMENTS.get(scheme.algorithm, weighted)(weight, axis, scheme, moments)
    return half_quadratic(weight, axis, scheme) if scheme.algorithm == "hqq" else nearest(weight, axis, scheme)


def _with_zeros(found: QuantizedRows, weight: torch.Tensor, axis: int, scheme: WeightScheme) -> QuantizedRows:
    """The integers with those of zero where the weight is zero: a mask stays, whatever made up for errors."""
    is_zero = weight == 0
    if not bool(is_zero.any()):
        return found
    places = rows_of(is_zero, axis, scheme).reshape(found.integers.shape)
    zeros = found.zero_point.to(found.integers.dtype)[:, None]
    return replace(found, integers=torch.where(places, zeros, found.integers))


def _inputs(rows: torch.Tensor, moments: InputMoments) -> int:
    """How many inputs an output has by the moments; -1 where outputs do not lie in as many groups."""
    groups = len(moments.products) if moments.products.ndim == 3 else 1
    return -1 if len(rows) == 0 or len(rows) % groups else moments.products.shape[-1]


_WITH_MOMENTS: dict[str, Callable[[torch.Tensor, int, WeightScheme, InputMoments], QuantizedRows]] = {
    "gptq": error_compensated,
    "awq": weighted,
}
NEEDS_MOMENTS = frozenset([*_WITH_MOMENTS, "adaround"])
"""The algorithms that look at a layer's inputs."""

FOR_PATCHES = frozenset(["adaround"])
"""Those of them that round convolutions, too."""
