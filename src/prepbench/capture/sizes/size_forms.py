"""What torch specialises to one sample's sizes, in forms that are one graph for all sizes.

``max_pool1d`` and ``linspace`` specialise a symbolic size, ``tensor_split`` branches on whether the parts are equal,
and ``interpolate(mode="area")`` over one dim takes only Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.sizes import named_expression
from prepbench.capture.sizes.dynamic_axes import SampleSizes


class SizeForms(TorchFunctionMode):
    """Call operators with symbolic sizes in their form for all sizes during the block."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        form = _FORMS.get(func)
        result = NotImplemented if form is None else form(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def _max_pool1d(
    input: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute 1d pooling as pooling of an image of one row."""
    if not _is_symbolic(input.shape[-1]) or return_indices:
        return NotImplemented
    window, pad, spread = _number(kernel_size), _number(padding), _number(dilation)
    # an empty list is what torch itself has for no stride
    step = window if stride is None or stride in ([], ()) else _number(stride)
    rows = F.max_pool2d(input.unsqueeze(-2), (1, window), (1, step), (0, pad), (1, spread), ceil_mode)
    return rows.squeeze(-2)


def _adaptive_avg_pool1d(input: torch.Tensor, output_size: Any) -> Any:
    size = _number(output_size)
    if not _is_symbolic(size):
        return NotImplemented
    return F.adaptive_avg_pool2d(input.unsqueeze(-2), (1, size)).squeeze(-2)


def _interpolate(input: torch.Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", *args: Any,
                 **kwargs: Any) -> Any:  # fmt: skip
    if mode != "area" or input.dim() != 3 or not (_is_symbolic(input.shape[-1]) or _is_symbolic(size)):
        return NotImplemented
    sizes = None if size is None else (1, _number(size))
    factors = None if scale_factor is None else (1.0, _number(scale_factor))
    return F.interpolate(input.unsqueeze(-2), sizes, factors, mode, *args, **kwargs).squeeze(-2)


def _linspace(start: Any, end: Any, steps: Any = None, *, out: Any = None, dtype: Any = None, device: Any = None,
              **kwargs: Any) -> Any:  # fmt: skip
    """Compute linspace from both ends to the middle, as torch does."""
    dtype = dtype or torch.get_default_dtype()
    are_numbers = not isinstance(start, torch.Tensor) and not isinstance(end, torch.Tensor)
    count: Any = steps
    if not _is_symbolic(count) or out is not None or not are_numbers or not dtype.is_floating_point:
        return NotImplemented
    places = torch.arange(count, dtype=dtype, device=device)
    each = (end - start) / torch.sym_max(count - 1, 1)
    is_first_half = places < torch.sym_max(count // 2, 1)
    return torch.where(is_first_half, start + places * each, end - (count - 1 - places) * each)


def _tensor_split(input: torch.Tensor, sections: Any, dim: int = 0) -> Any:
    """Split a tensor; the first parts have one more entry if the parts are unequal."""
    if type(sections) is not int or not _is_symbolic(input.shape[dim]):
        return NotImplemented
    size: Any = input.shape[dim]
    starts = [place * (size // sections) + torch.sym_min(size % sections, place) for place in range(sections)]
    lengths = [(size + (sections - 1 - place)) // sections for place in range(sections)]
    return tuple(input.narrow(dim, start, length) for start, length in zip(starts, lengths, strict=True))


def _number(value: Any) -> Any:
    return value[0] if isinstance(value, Sequence) else value


def _is_symbolic(size: Any) -> bool:
    return isinstance(_number(size), torch.SymInt)


_FORMS: Mapping[Any, Callable[..., Any]] = {
    F.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    F.adaptive_avg_pool1d: _adaptive_avg_pool1d,
    F.interpolate: _interpolate,
    torch.linspace: _linspace,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
}


# Slices that exceed the bounds of a tensor in some samples only, such as the last entries of a cache.
#
# ``x[-8:]`` takes all of a shorter tensor. torch guards on whether it is shorter, so that a graph would hold for one
# answer only. Indexing from ``max(len(x) - 8, 0)`` on needs no guard.


class ClampedSlices(TorchFunctionMode):
    """Clamp by size the bounds of slices that lie outside of a tensor in some samples only, during the block.

    Args:
        sizes: of all samples.
    """

    def __init__(self, sizes: SampleSizes) -> None:
        super().__init__()
        self._sizes = sizes

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and len(args) == 2:
            tensor, index = args
            parts = index if isinstance(index, tuple) else (index,)
            for dim, place in _slices(tensor, parts):
                bounds = self._bounds(parts[place], tensor.shape[dim])
                if bounds is not None:
                    # index_select, because a view would make torch guard on its memory layout, which is the same
                    # question
                    entries = torch.arange(*bounds, device=tensor.device)
                    tensor = torch.index_select(tensor, dim, entries)
                    parts = (*parts[:place], slice(None), *parts[place + 1 :])
            args = (tensor, parts if isinstance(index, tuple) else parts[0])
        return func(*args, **(kwargs or {}))

    def _bounds(self, part: slice, size: torch.SymInt) -> tuple[Any, Any] | None:
        """Return the start and end of a slice, if a bound lies outside in some samples only."""
        expression, names = named_expression(size)
        known = self._sizes.values(expression, names)
        given = [bound for bound in (part.start, part.stop) if type(bound) is int]
        if known is None or not any(len({abs(bound) > value for value in known}) == 2 for bound in given):
            return None
        start, stop = (_inside(bound, size) for bound in (part.start, part.stop))
        return (0 if start is None else start), (size if stop is None else stop)


def _slices(tensor: torch.Tensor, parts: tuple[Any, ...]) -> Iterator[tuple[int, int]]:
    """Yield the dims of symbolic size that are sliced without a step, each with its place in the index."""
    dim = 0
    for place, part in enumerate(parts):
        if part is Ellipsis:
            rest = parts[place + 1 :]
            if not all(one is None or type(one) in (int, slice) for one in rest):
                return
            dim = tensor.dim() - sum(one is not None for one in rest)
        elif isinstance(part, slice):
            is_plain = all(bound is None or type(bound) is int for bound in (part.start, part.stop))
            if part.step in (None, 1) and is_plain and isinstance(tensor.shape[dim], torch.SymInt):
                yield dim, place
            dim += 1
        elif type(part) is int:
            dim += 1
        elif part is not None:  # tensors as indices may take several dims
            return


def _inside(bound: int | None, size: torch.SymInt) -> Any:
    if bound is None:
        return None
    return torch.sym_max(size + bound, 0) if bound < 0 else torch.sym_min(size, bound)
