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
        **dict.fromkeys((aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar), _shifted_right),
        **dict.fromkeys((aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar), _shifted_left),
    }


def _shifted_right(x: torch.Tensor, bits: Any) -> Any:
    """ONNX shifts unsigned integers only, and OpenVINO and ExecuTorch have no kernel for others."""
    is_plain = isinstance(bits, int) and 0 <= bits < 8 * x.element_size() - 1 and not x.is_floating_point()
    return torch.floor_divide(x, 2**bits) if is_plain else NotImplemented


def _shifted_left(x: torch.Tensor, bits: Any) -> Any:
    is_plain = isinstance(bits, int) and 0 <= bits < 8 * x.element_size() - 1 and not x.is_floating_point()
    return x * 2**bits if is_plain else NotImplemented
