"""Round a weight part by part, so that intermediate results stay small and in the processor's caches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.weights import WeightScheme

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
