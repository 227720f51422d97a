"""Which inputs of a program are indices into tables, and how far the tables go.

PyTorch raises for an index beyond a table, where a runtime may read other memory or give an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten

_Lookup = tuple[fx.Node, int, Any]
_TABLES: dict[Any, Callable[..., Iterable[_Lookup]]] = {
    _aten.embedding.default: lambda table, ids, *rest: [(table, 0, ids)],
    _aten.index_select.default: lambda table, dim, ids: [(table, dim, ids)],
    _aten.index.Tensor: lambda table, ids: _of_index(table, ids),
    _aten.gather.default: lambda table, dim, ids, *rest: [(table, dim, ids)],
}
"""For each operator its lookups: the table, its dim, and the indices, from its arguments."""

_FROM_THE_END = frozenset({_aten.index.Tensor})
"""Operators that take negative indices, too, which count from the end of the table."""

_SAME_NUMBERS = frozenset({
    _aten.view.default, _aten.reshape.default, _aten.flatten.using_ints, _aten.unsqueeze.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.permute.default, _aten.transpose.int,
    _aten.t.default, _aten.expand.default, _aten.clone.default, _aten.contiguous.default, _aten.alias.default,
    _aten.detach.default, _aten.to.dtype, _aten._to_copy.default,
})  # fmt: skip
"""Operators whose result holds the numbers of their first argument, all of them."""


def _of_index(table: fx.Node, indices: Sequence[fx.Node | None]) -> Iterable[_Lookup]:
    given = [one.meta["val"] for one in indices if one is not None]
    if any(value.dtype in (torch.bool, torch.uint8) for value in given):
        return ()  # a mask may be for several dims
    return [(table, dim, one) for dim, one in enumerate(indices)]


def index_limits(graph: fx.Graph) -> dict[str, tuple[int, int]]:
    """For each placeholder of integers that index tables of fixed size: the least index that all of these take, and
    the smallest of their sizes, by its name.

    Args:
        graph: of an exported program, with ``meta["val"]``.
    """
    limits: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        for placeholder, least, size in _lookups(node):
            before = limits.get(placeholder, (least, size))
            limits[placeholder] = max(least, before[0]), min(size, before[1])
    return limits


def _lookups(node: fx.Node) -> Iterator[tuple[str, int, int]]:
    lookups = _TABLES.get(node.target) if node.op == "call_function" else None
    if lookups is None or node.kwargs:
        return
    for table, dim, ids in lookups(*node.args):
        while isinstance(ids, fx.Node) and ids.op == "call_function" and ids.target in _SAME_NUMBERS:
            ids = ids.args[0]
        of_table = table.meta.get("val")
        if not isinstance(ids, fx.Node) or ids.op != "placeholder" or not isinstance(of_table, torch.Tensor):
            continue
        size, value = of_table.shape[dim] if of_table.ndim else 1, ids.meta.get("val")
        if isinstance(size, int) and isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64):
            yield ids.name, -size if node.target in _FROM_THE_END else 0, size
