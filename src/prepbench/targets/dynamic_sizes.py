"""Operators that targets get as others, because they compute them for fixed sizes only, differently, or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench._torch_compat.operators import OpOverload
from prepbench.targets import parts
from prepbench.targets.pooling import adaptive_average, adaptive_maximum
from prepbench.targets.resizing import antialiased, cubic_weight, linear_weight, nearest

aten = torch.ops.aten


def computed_from_sizes() -> Mapping[OpOverload, Callable[..., Any]]:
    """Decompositions for :func:`prepbench.targets.decompose.decompose`."""
    return {
        aten.adaptive_avg_pool1d.default: adaptive_average(1),
        aten.adaptive_avg_pool2d.default: adaptive_average(2),
        aten.adaptive_avg_pool3d.default: adaptive_average(3),
        aten.adaptive_max_pool1d.default: adaptive_maximum(1),
        aten.adaptive_max_pool2d.default: adaptive_maximum(2),
        aten.adaptive_max_pool3d.default: adaptive_maximum(3),
        aten._upsample_bilinear2d_aa.vec: antialiased(linear_weight),
        aten._upsample_bicubic2d_aa.vec: antialiased(cubic_weight),
        aten.upsample_nearest1d.vec: nearest(0.0),
        aten.upsample_nearest2d.vec: nearest(0.0),
        aten.upsample_nearest3d.vec: nearest(0.0),
        aten._upsample_nearest_exact1d.vec: nearest(0.5),
        aten._upsample_nearest_exact2d.vec: nearest(0.5),
        aten._upsample_nearest_exact3d.vec: nearest(0.5),
        aten.pad.default: parts.circular_pad,
        aten.roll.default: parts.roll,
        aten.fft_fftshift.default: parts.shift_to_middle,
        aten.fft_ifftshift.default: parts.shift_from_middle,
        aten.chunk.default: parts.chunk,
        aten.split.Tensor: parts.split,
        aten.tensor_split.sections: parts.tensor_split,
    }
