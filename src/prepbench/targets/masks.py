"""Attention masks that mask nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

# operators that only rearrange, copy or convert the elements of their first argument
_MOVES = frozenset(
    [
        *(aten.expand.default, aten.unsqueeze.default, aten.view.default, aten.reshape.default, aten.slice.Tensor),
        *(aten.clone.default, aten.contiguous.default, aten.permute.default, aten.transpose.int, aten.alias.default),
        *(aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten._to_copy.default, aten.detach.default),
    ]
)
_AND = frozenset([aten.bitwise_and.Tensor, aten.logical_and.default, aten.__and__.Tensor])
_ONES = frozenset([aten.ones.default, aten.ones_like.default, aten.new_ones.default])
_FULL = frozenset([aten.full.default, aten.full_like.default, aten.new_full.default])
_WIDE = (torch.int32, torch.int64)
_CHOICES = frozenset([aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf])


def choose_known(graph: fx.GraphModule) -> None:
    """Replace ``where`` by one of its values, in place, if its condition is the same for all inputs.

    While a model is exported, libraries make masks that mask nothing, because they cannot read whether one is needed.
    """
    for node in graph.graph.nodes:
        known = _known(node.args[0]) if node.target in _CHOICES else None
        chosen = node.args[1 if known else 2] if known is not None else None
        if isinstance(chosen, fx.Node) and _type(chosen) == _type(node):
            node.replace_all_uses_with(chosen)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _type(node: fx.Node) -> object:
    value = node.meta["val"]
    return value.dtype, [str(size) for size in value.shape]


def _known(mask: Any) -> bool | None:
    """The value of all elements of a boolean tensor, if it is the same for all inputs."""
    if not isinstance(mask, fx.Node):
        return None
    if mask.target in _AND:
        parts = [_known(part) for part in mask.args[:2]]
        return False if False in parts else True if parts == [True, True] else None
    if mask.target == aten.ge.Scalar:
        return True if _is_at_least(mask.args[0], mask.args[1]) else None
    if mask.target in _ONES:
        return True
    if mask.target in _FULL:
        return mask.args[1] if isinstance(mask.args[1], bool) else None
    return _known(mask.args[0]) if mask.target in _MOVES else None


def _is_at_least(value: Any, bound: Any) -> bool:
    """Whether no element of an integer tensor is below a number."""
    if not isinstance(value, fx.Node) or not isinstance(bound, int) or value.meta["val"].dtype not in _WIDE:
        return False
    if value.target == aten.arange.default:
        return bound <= 0
    if value.target == aten.add.Tensor and isinstance(value.args[1], int):
        return _is_at_least(value.args[0], bound - value.args[1])
    return value.target in _MOVES and _is_at_least(value.args[0], bound)
