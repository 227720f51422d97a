"""Pooling in forms that all targets compute alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def is_mean(
    image: Sequence[Any],
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> bool:
    """Return whether one window of ``aten.avg_pool2d`` covers the whole image.

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


def average_pool(dims: int) -> Callable[..., Any]:
    """Compute ``aten.avg_pool1d`` to ``avg_pool3d`` for arguments on which runtimes disagree.

    They divide windows over the last edge (``ceil_mode``) by different numbers, and ONNX has no ``divisor_override``.
    """

    def pool(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        window, pads = _each(kernel_size, dims), _each(padding, dims)
        steps = _each(stride, dims) if stride else window
        is_odd = (count_include_pad and any(pads)) or _may_leave_out(window, steps, pads)
        if divisor_override is None and not (ceil_mode and is_odd):
            return NotImplemented
        plain = _POOLS[dims]
        elements = float(torch.Size(window).numel())
        if not ceil_mode:
            assert divisor_override is not None
            return plain(x, window, steps, pads) * (elements / divisor_override)
        sizes = x.shape[-dims:]
        counts = [_windows(size, *each) for size, *each in zip(sizes, window, steps, pads, strict=True)]
        beyond = [
            torch.sym_max((count - 1) * step + extent - size - pad, pad)
            for count, step, extent, size, pad in zip(counts, steps, window, sizes, pads, strict=True)
        ]
        edges = [edge for pair in zip(reversed(pads), reversed(beyond), strict=True) for edge in pair]
        result = plain(torch.nn.functional.pad(x, edges), window, steps)
        if divisor_override is not None:
            return result * (elements / divisor_override)
        for place, (count, step, extent, size, pad) in enumerate(
            zip(counts, steps, window, sizes, pads, strict=True), start=-dims
        ):
            start = torch.arange(count, device=x.device) * step
            first, end = (0, size + 2 * pad) if count_include_pad else (pad, size + pad)
            inside = torch.clamp(start + extent, max=end) - torch.clamp(start, min=first)
            factor = extent / inside.to(x.dtype)
            result = result * factor.reshape([-1] + [1] * (-place - 1))
        return result

    return pool


def maximum_pool(dims: int) -> Callable[..., Any]:
    """Compute ``aten.max_pool1d`` to ``max_pool3d`` where ``ceil_mode`` may drop a window."""

    def pool(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> Any:
        window, pads, spread = _each(kernel_size, dims), _each(padding, dims), _each(dilation, dims)
        steps = _each(stride, dims) if stride else window
        extents = [each * (size - 1) + 1 for size, each in zip(window, spread, strict=True)]
        if not ceil_mode or not _may_leave_out(extents, steps, pads) or not x.is_floating_point():
            return NotImplemented
        edges: list[Any] = []
        for size, extent, step, pad in zip(x.shape[-dims:], extents, steps, pads, strict=True):
            covered = (_windows(size, extent, step, pad) - 1) * step + extent
            edges = [pad, torch.sym_max(covered - size - pad, 0), *edges]
        return _MAXIMA[dims](torch.nn.functional.pad(x, edges, value=-math.inf), window, steps, 0, spread)

    return pool


def adaptive_average(dims: int) -> Callable[..., Any]:
    """Compute ``aten.adaptive_avg_pool1d`` to ``adaptive_avg_pool3d`` over dynamic sizes, as a product for each dim."""

    def pool(x: torch.Tensor, output_size: Sequence[Any]) -> Any:
        counts = _each(output_size, dims)
        if not _is_dynamic(x.shape[-dims:], counts):
            return NotImplemented
        for place, count in enumerate(counts, start=-dims):
            if isinstance(count, int) and count == 1:
                x = x.mean(place, keepdim=True)
                continue
            inside = _windows_of(x, place, count).to(x.dtype)
            weights = inside / inside.sum(1, keepdim=True)
            x = torch.matmul(x.transpose(place, -1), weights.t()).transpose(place, -1)
        return x

    return pool


def adaptive_maximum(dims: int) -> Callable[..., Any]:
    """Compute ``aten.adaptive_max_pool1d`` to ``adaptive_max_pool3d`` over dynamic sizes, without the indices."""

    def pool(x: torch.Tensor, output_size: Sequence[Any]) -> Any:
        counts = _each(output_size, dims)
        if not _is_dynamic(x.shape[-dims:], counts):
            return NotImplemented
        for place, count in enumerate(counts, start=-dims):
            if isinstance(count, int) and count == 1:
                x = x.amax(place, keepdim=True)
                continue
            columns = x.transpose(place, -1).unsqueeze(-2)
            x = torch.where(_windows_of(x, place, count), columns, -math.inf).amax(-1).transpose(place, -1)
        return x, None

    return pool


def _is_dynamic(sizes: Sequence[Any], counts: Sequence[Any]) -> bool:
    return any(
        not isinstance(size, int) and not (isinstance(count, int) and count == 1)
        for size, count in zip(sizes, counts, strict=True)
    )


def _windows_of(x: torch.Tensor, place: int, count: Any) -> torch.Tensor:
    """Return the entries of a dim in each window, of shape (windows, entries)."""
    size = x.shape[place]
    i, j = torch.arange(count, device=x.device).unsqueeze(1), torch.arange(size, device=x.device)
    start = torch.div(i * size, count, rounding_mode="floor")
    end = torch.div((i + 1) * size + (count - 1), count, rounding_mode="floor")
    return (j >= start) & (j < end)


def _each(values: Sequence[Any], dims: int) -> list[Any]:
    return list(values) * dims if len(values) == 1 else list(values)


def _may_leave_out(extents: Sequence[int], steps: Sequence[int], pads: Sequence[int]) -> bool:
    """Return whether a window of ``ceil_mode`` may start beyond the image; PyTorch drops it, OpenVINO (2026.4) not."""
    return any(step > extent - pad for extent, step, pad in zip(extents, steps, pads, strict=True))


def _windows(size: Any, extent: int, step: int, pad: int) -> Any:
    """Return the number of windows with ``ceil_mode``: none starts beyond the image and its leading padding."""
    return torch.sym_min(-(-(size + 2 * pad - extent) // step) + 1, -(-(size + pad) // step))


_POOLS: dict[int, Any] = {
    1: torch.nn.functional.avg_pool1d,
    2: torch.nn.functional.avg_pool2d,
    3: torch.nn.functional.avg_pool3d,
}
_MAXIMA: dict[int, Any] = {
    1: torch.nn.functional.max_pool1d,
    2: torch.nn.functional.max_pool2d,
    3: torch.nn.functional.max_pool3d,
}
