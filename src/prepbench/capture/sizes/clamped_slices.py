"""Slices that exceed the bounds of a tensor in some samples only, such as the last entries of a cache.

``x[-8:]`` takes all of a shorter tensor. torch guards on whether it is shorter, so that a graph would hold for one
answer only. Indexing from ``max(len(x) - 8, 0)`` on needs no guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.sizes import named_expression
from prepbench.capture.sizes.sample_sizes import SampleSizes


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
