"""Average pooling that is a mean, which several targets compute better as such."""

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
        image: height and width; symbolic sizes are never known to fit.
        kernel_size: and the rest: the operator's arguments. Where the window has the size of the image or a larger one,
            ``stride``, ``ceil_mode`` and ``count_include_pad`` make no difference.
    """
    window = (kernel_size[0], kernel_size[-1])
    is_plain = divisor_override is None and not any(padding)
    return is_plain and all(
        isinstance(size, int) and size <= extent for size, extent in zip(image, window, strict=True)
    )
