"""Which inputs of a program are indices into tables, and how far the tables go.

PyTorch raises for an index beyond a table, where a runtime may read other memory or give an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

_aten = torch.ops.aten

_TABLES: dict[Any, Callable[..., tuple[fx.Node, int, fx.Node]]] = {
    _aten.embedding.default: lambda table, ids, *rest: (table, 0, ids),
    _aten.index_select.default: lambda table, dim, ids: (table, dim, ids),
    _aten.gather.default: lambda table, dim, ids, *rest: (table, dim, ids),
}
"""For each operator that refuses negative indices: the table, its dim, and the indices, from its arguments."""

_SAME_NUMBERS = frozenset({
    _aten.view.default, _aten.reshape.default, _aten.flatten.using_ints, _aten.unsqueeze.default,
    _aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims, _aten.permute.default, _aten.transpose.int,
    _aten.t.default, _aten.expand.default, _aten.clone.default, _aten.contiguous.default, _aten.alias.default,
    _aten.detach.default, _aten.to.dtype, _aten._to_copy.default,
})  # fmt: skip
"""Operators whose result holds the numbers of their first argument, all of them."""


def index_limits(graph: fx.Graph) -> dict[str, int]:
    """For each placeholder of integers that all index tables of fixed size: the smallest size of these, by its name.

    Args:
        graph: of an exported program, with ``meta["val"]``.
    """
    limits: dict[str, int] = {}
    for node in graph.nodes:
        for placeholder, size in _lookups(node):
            limits[placeholder] = min(size, limits.get(placeholder, size))
    return limits


def _lookups(node: fx.Node) -> Iterator[tuple[str, int]]:
    arguments = _TABLES.get(node.target) if node.op == "call_function" else None
    if arguments is None or node.kwargs:
        return
    table, dim, ids = arguments(*node.args)
    while ids.op == "call_function" and ids.target in _SAME_NUMBERS:
        ids = ids.args[0]  # type: ignore[assignment]
    value, of_table = ids.meta.get("val"), table.meta.get("val")
    if ids.op != "placeholder" or not isinstance(value, torch.Tensor) or not isinstance(of_table, torch.Tensor):
        return
    size = of_table.shape[dim] if of_table.ndim else 1
    if isinstance(size, int) and value.dtype in (torch.int32, torch.int64):
        yield ids.name, size
