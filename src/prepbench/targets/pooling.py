"""Average pooling that is a mean, which several targets compute better as a mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def is_mean(
    image: Sequence[Any],
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> bool:
    """Whether one window of ``aten.avg_pool2d`` holds the whole image.

    Args:
        image: height and width; a symbolic size is never known to fit.
        kernel_size: like the rest an argument of the operator. ``stride``, ``ceil_mode`` and ``count_include_pad``
            make no difference where the window is at least as large as the image.
    """
    window = (kernel_size[0], kernel_size[-1])
    is_plain = divisor_override is None and not any(padding)
    return is_plain and all(
        isinstance(size, int) and size <= extent for size, extent in zip(image, window, strict=True)
    )
