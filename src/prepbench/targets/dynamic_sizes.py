"""Replacements for operators that targets compute for static sizes only, wrongly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat.operators import OpOverload
from prepbench.targets.pooling import adaptive_average, adaptive_maximum

aten = torch.ops.aten


def computed_from_sizes() -> Mapping[OpOverload, Callable[..., Any]]:
    """Return the decompositions for :func:`prepbench.targets.decompose.decompose`."""
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
        aten.pad.default: circular_pad,
        aten.roll.default: roll,
        aten.fft_fftshift.default: shift_to_middle,
        aten.fft_ifftshift.default: shift_from_middle,
        aten.chunk.default: chunk,
        aten.split.Tensor: split,
        aten.tensor_split.sections: tensor_split,
        **dict.fromkeys((aten.__rshift__.Scalar, aten.bitwise_right_shift.Tensor_Scalar), _shifted_right),
        **dict.fromkeys((aten.__lshift__.Scalar, aten.bitwise_left_shift.Tensor_Scalar), _shifted_left),
    }


def _shifted_right(x: torch.Tensor, bits: Any) -> Any:
    """Shift right; ONNX shifts unsigned integers only, and OpenVINO and ExecuTorch have no kernel for others."""
    is_plain = isinstance(bits, int) and 0 <= bits < 8 * x.element_size() - 1 and not x.is_floating_point()
    return torch.floor_divide(x, 2**bits) if is_plain else NotImplemented


def _shifted_left(x: torch.Tensor, bits: Any) -> Any:
    is_plain = isinstance(bits, int) and 0 <= bits < 8 * x.element_size() - 1 and not x.is_floating_point()
    return x * 2**bits if is_plain else NotImplemented


# Resizing in forms that all targets compute alike.


def antialiased(weight: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Compute ``aten._upsample_bilinear2d_aa.vec`` or ``_upsample_bicubic2d_aa.vec`` as two products.

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
            size, count, factor = _lengths(x, place, output_size, scale_factors)
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


def cubic(
    x: torch.Tensor, output_size: Sequence[Any] | None, align_corners: bool, scale_factors: Sequence[float] | None
) -> torch.Tensor:
    """Compute ``aten.upsample_bicubic2d.vec`` as two products: ONNX Runtime's kernel takes ten times as long."""
    for place in (-2, -1):
        size, count, factor = _lengths(x, place, output_size, scale_factors)
        places = torch.arange(count, device=x.device, dtype=torch.float32)
        if align_corners:
            places = places * ((size - 1) / torch.sym_max(count - 1, 1))
        else:
            places = (places + 0.5) * (size / count if factor is None else 1 / factor) - 0.5
        first, weights = places.floor(), torch.zeros((), dtype=torch.float32)
        columns = torch.arange(size, device=x.device, dtype=torch.float32)
        for step in (-1, 0, 1, 2):
            column = torch.clamp(first + step, min=0, max=size - 1)
            weight = cubic_weight(first + step - places, -0.75)
            weights = weights + torch.where(column.unsqueeze(1) == columns, weight.unsqueeze(1), 0.0)
        x = torch.matmul(x.transpose(place, -1), weights.to(x.dtype).t()).transpose(place, -1)
    return x


def _lengths(
    x: torch.Tensor, place: int, output_size: Sequence[Any] | None, scale_factors: Sequence[float] | None
) -> tuple[Any, Any, Any]:
    """Return the size of a dim before and after resizing, and the factor between them, None where sizes are given."""
    size: Any = x.shape[place]
    factor = scale_factors[place] if scale_factors is not None else None
    return size, output_size[place] if output_size is not None else torch.sym_int(size * factor), factor


def nearest(middle: float) -> Callable[..., Any]:
    """Compute ``aten.upsample_nearest*.vec``, or ``_upsample_nearest_exact*.vec``, by a non-integer factor.

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


def cubic_weight(distance: torch.Tensor, a: float = -0.5) -> torch.Tensor:
    """Return Keys' cubic kernel; PyTorch takes -0.5 for antialiasing and -0.75 without.

    Source: R. G. Keys, Cubic convolution interpolation for digital image processing, 1981.
    """
    d = distance.abs()
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d < 1, near, torch.where(d < 2, far, torch.zeros_like(d)))


# Operators that cut and join tensors, as slices whose places are computed from sizes.


def circular_pad(x: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """Compute circular ``aten.pad``, which some runtimes lack."""
    if mode != "circular" or not all(isinstance(edge, int) and edge >= 0 for edge in pad):
        return NotImplemented
    for place in range(len(pad) // 2):
        before, after = pad[2 * place], pad[2 * place + 1]
        dim, size = x.ndim - 1 - place, x.shape[x.ndim - 1 - place]
        parts = [torch.narrow(x, dim, size - before, before)] if before else []
        parts += [x, *([torch.narrow(x, dim, 0, after)] if after else [])]
        x = torch.cat(parts, dim) if len(parts) > 1 else x
    return x


def roll(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    """Compute ``aten.roll`` over dynamic sizes, or by shifts computed from them."""
    sizes = [x.shape[dim] for dim in dims] if dims else [x.numel()]
    if all(isinstance(number, int) for number in (*shifts, *sizes)):
        return NotImplemented
    flat = x if dims else x.reshape(-1)
    for dim, shift in zip(dims or (0,), shifts, strict=True):
        size = flat.shape[dim]
        first = (-shift) % size
        flat = torch.cat([flat.narrow(dim, first, size - first), flat.narrow(dim, 0, first)], dim)
    return flat.reshape(x.shape)


def shift_to_middle(x: torch.Tensor, dim: Sequence[int] | None = None) -> Any:
    """Compute ``aten.fft_fftshift``."""
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return _rolled(x, [x.shape[each] // 2 for each in dims], dims)


def shift_from_middle(x: torch.Tensor, dim: Sequence[int] | None = None) -> Any:
    """Compute ``aten.fft_ifftshift``."""
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return _rolled(x, [(x.shape[each] + 1) // 2 for each in dims], dims)


def _rolled(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int]) -> Any:
    result = roll(x, shifts, dims)
    return torch.roll(x, list(shifts), list(dims)) if result is NotImplemented else result


def chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    """Compute ``aten.chunk`` of a dynamic size; the number of chunks is static in the graph."""
    size: Any = x.shape[dim]
    if isinstance(size, int):
        return NotImplemented
    each, count = (size + chunks - 1) // chunks, len(torch.chunk(x, chunks, dim))
    return _cut(x, dim, [each * place for place in range(count)])


def split(x: torch.Tensor, split_size: Any, dim: int = 0) -> Any:
    """Compute ``aten.split`` with one dynamic part size, or of a dynamic size."""
    size: Any = x.shape[dim]
    if isinstance(split_size, int) and isinstance(size, int):
        return NotImplemented
    return _cut(x, dim, [split_size * place for place in range(len(torch.split(x, split_size, dim)))])


def tensor_split(x: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """Compute ``aten.tensor_split`` into a number of parts; the first ones have one more entry if they are unequal."""
    size: Any = x.shape[dim]
    if isinstance(size, int) or not isinstance(sections, int):
        return NotImplemented
    each, more = size // sections, size % sections
    return _cut(x, dim, [each * place + torch.sym_min(more, place) for place in range(sections)])


def _cut(x: torch.Tensor, dim: int, starts: Sequence[Any]) -> list[torch.Tensor]:
    dim = dim % x.ndim
    ends = [*starts[1:], 2**63 - 1]
    aten = torch.ops.aten
    return [aten.slice.Tensor(x, dim, start, end) for start, end in zip(starts, ends, strict=True)]
