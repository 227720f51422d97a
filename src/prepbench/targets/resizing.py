"""Resizing in forms that all targets compute alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def antialiased(weight: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """``aten._upsample_bilinear2d_aa.vec`` or ``_upsample_bicubic2d_aa.vec`` as two products.

    Args:
        weight: of a distance in pixels of the coarser image.
    """

    def resize(
        x: torch.Tensor,
        output_size: Sequence[Any] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Any:
        for place in (-2, -1):
            size: Any = x.shape[place]
            factor: Any = scale_factors[place] if scale_factors is not None else None
            count = output_size[place] if output_size is not None else torch.sym_int(size * factor)
            if factor is not None and not align_corners:
                step = 1 / factor
                width = max(step, 1.0)
            else:  # sizes are compared, because ExecuTorch compares no real ones
                steps = [size - 1, torch.sym_max(count - 1, 1)] if align_corners else [size, count]
                step, width = steps[0] / steps[1], torch.sym_max(*steps) / steps[1]
            at = (torch.arange(count, device=x.device, dtype=torch.float32) + 0.5) * step
            j = torch.arange(size, device=x.device, dtype=torch.float32) + 0.5
            weights = weight((j - at.unsqueeze(1)) / width)
            weights = (weights / weights.sum(1, keepdim=True)).to(x.dtype)
            x = torch.matmul(x.transpose(place, -1), weights.t()).transpose(place, -1)
        return x

    return resize


def nearest(middle: float) -> Callable[..., Any]:
    """``aten.upsample_nearest*.vec``, or ``_upsample_nearest_exact*.vec``, by a factor that is not whole.

    Runtimes round the places that it leads to in ways of their own.

    Args:
        middle: of a pixel, which is looked up.
    """

    def resize(x: torch.Tensor, output_size: Sequence[Any] | None, scale_factors: Sequence[float] | None = None) -> Any:
        if output_size is not None or scale_factors is None or all(float(f).is_integer() for f in scale_factors):
            return NotImplemented
        for place, factor in enumerate(scale_factors, start=-len(scale_factors)):
            size = x.shape[place]
            places = torch.arange(torch.sym_int(size * factor), device=x.device, dtype=torch.float32)
            index = ((places + middle) * (1 / factor)).floor().to(torch.int64)
            x = x.index_select(place, torch.clamp(index, max=size - 1))
        return x

    return resize


def linear_weight(distance: torch.Tensor) -> torch.Tensor:
    return torch.relu(1 - distance.abs())


def cubic_weight(distance: torch.Tensor) -> torch.Tensor:
    """Keys' kernel with a = -0.5, which PyTorch takes where it smooths."""
    d = distance.abs()
    near, far = (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2
    return torch.where(d < 1, near, torch.where(d < 2, far, torch.zeros_like(d)))
