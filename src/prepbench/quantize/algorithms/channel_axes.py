"""Operators that keep the channels of a value apart and commute with positive factors for them."""

from __future__ import annotations

import torch
from torch import fx

from prepbench.quantize.algorithms.constants import keeps_channels_last

aten = torch.ops.aten

# f(s * x) == s * f(x) for s > 0, element by element
_ELEMENTWISE = frozenset(
    [
        aten.relu.default,
        aten.relu_.default,
        aten.leaky_relu.default,
        aten.leaky_relu_.default,
        aten.prelu.default,
        aten.dropout.default,
        aten.clone.default,
        aten.contiguous.default,
    ]
)
# the same, over the places of one channel -> along how many axes these lie
_POOLS = {
    getattr(aten, f"{name}{rank}d").default: rank
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool")
    for rank in (1, 2, 3)
}
_FLATTENS = frozenset([aten.flatten.using_ints, aten.view.default, aten.reshape.default])


def axis_after(source: fx.Node, node: fx.Node, axis: int, count: int) -> int | None:
    """Where the channels of ``source`` are in what ``node`` computes of it; None where they do not stay apart."""
    if node.op != "call_function" or not node.args or node.args[0] is not source:
        return None
    if node.target in _ELEMENTWISE:
        return axis if sum(one is source for one in node.args) == 1 else None
    if axis == -1:
        return -1 if keeps_channels_last(node) else None
    value, ranks = node.meta.get("val"), -1 - axis
    if node.target in _POOLS:
        return axis if _POOLS[node.target] == ranks else None
    if not isinstance(value, torch.Tensor):
        return None
    if node.target is aten.mean.dim:
        dims, keeps = node.args[1], len(node.args) > 2 and bool(node.args[2])
        if not isinstance(dims, list | tuple):
            return None
        found = {dim if isinstance(dim, int) and dim < 0 else _from_end(source, dim) for dim in dims}
        if not found <= set(range(-ranks, 0)):
            return None
        return axis if keeps else axis + len(found)
    shape = source.meta["val"].shape
    is_flat = value.ndim == len(shape) - ranks and value.shape[-1] == count
    ones = all(isinstance(size, int) and size == 1 for size in shape[axis + 1 :])
    return -1 if node.target in _FLATTENS and is_flat and ones else None


def axis_before(node: fx.Node, source: fx.Node, axis: int, count: int) -> int | None:
    """Where the channels of what ``node`` computes are in ``source``."""
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    for other in range(-1, -1 - value.ndim, -1):
        if value.shape[other] == count and axis_after(source, node, other, count) == axis:
            return other
    return None


def _from_end(node: fx.Node, dim: object) -> int:
    assert isinstance(dim, int)
    return dim - int(node.meta["val"].ndim)
