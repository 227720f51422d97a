"""How results lie in memory: what two calls with equal values may still differ in."""

from __future__ import annotations

from typing import Any

import torch

from prepbench._torch_compat import pytree


def other_strides(expected: Any, got: Any) -> str:
    """The first result whose elements lie in another order than they did; "" where none does."""
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=False)
    for one, other in ((a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        if _visible_strides(one) != _visible_strides(other):
            return f"strides {tuple(other.stride())} in place of {tuple(one.stride())} for {tuple(one.shape)}"
    return ""


def _visible_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides of dims with several entries; those of the others mean nothing."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
