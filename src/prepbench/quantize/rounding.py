"""From weights to integers: the algorithms that ``weights_algorithm`` names."""

from __future__ import annotations

from collections.abc import Callable

import torch

from prepbench.quantize.gptq import error_compensated
from prepbench.quantize.hqq import half_quadratic
from prepbench.quantize.nearest import nearest, weighted
from prepbench.quantize.rows import InputMoments, QuantizedRows
from prepbench.quantize.weights import WeightScheme


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
    fits = weight.ndim == 2 and scheme.per_channel
    if moments is not None and fits and len(moments.products) == weight.shape[1 - axis % 2]:
        return _WITH_MOMENTS.get(scheme.algorithm, weighted)(weight, axis, scheme, moments)
    return half_quadratic(weight, axis, scheme) if scheme.algorithm == "hqq" else nearest(weight, axis, scheme)


_WITH_MOMENTS: dict[str, Callable[[torch.Tensor, int, WeightScheme, InputMoments], QuantizedRows]] = {
    "gptq": error_compensated,
    "awq": weighted,
}
NEEDS_MOMENTS = frozenset(_WITH_MOMENTS)
"""The algorithms that look at a layer's inputs."""
