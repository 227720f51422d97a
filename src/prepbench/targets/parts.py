"""Operators that cut and join tensors, as slices whose places are computed from sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def circular_pad(x: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    """``aten.pad`` around the edges, which some runtimes lack."""
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
    """``aten.roll`` over sizes that change, or by numbers that are computed from them."""
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
    """``aten.fft_fftshift``."""
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return _rolled(x, [x.shape[each] // 2 for each in dims], dims)


def shift_from_middle(x: torch.Tensor, dim: Sequence[int] | None = None) -> Any:
    """``aten.fft_ifftshift``."""
    dims = list(range(x.ndim)) if dim is None else list(dim)
    return _rolled(x, [(x.shape[each] + 1) // 2 for each in dims], dims)


def _rolled(x: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int]) -> Any:
    result = roll(x, shifts, dims)
    return torch.roll(x, list(shifts), list(dims)) if result is NotImplemented else result


def chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    """``aten.chunk`` of a size that changes; how many there are, the graph knows."""
    size: Any = x.shape[dim]
    if isinstance(size, int):
        return NotImplemented
    each, count = (size + chunks - 1) // chunks, len(torch.chunk(x, chunks, dim))
    return _cut(x, dim, [each * place for place in range(count)])


def split(x: torch.Tensor, split_size: Any, dim: int = 0) -> Any:
    """``aten.split`` into parts of one size that changes, or of a size that changes."""
    size: Any = x.shape[dim]
    if isinstance(split_size, int) and isinstance(size, int):
        return NotImplemented
    return _cut(x, dim, [split_size * place for place in range(len(torch.split(x, split_size, dim)))])


def tensor_split(x: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """``aten.tensor_split`` into a number of parts, the first of which have one entry more if they are not equal."""
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
