"""Indices that a graph computes, checked by the graph: for runtimes that read beside a table where PyTorch raises."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.programs import copied_graph, with_graph
from prepbench.calls.tensor_specs import FROM_THE_END, SAME_NUMBERS, lookups_of

Program = torch.export.ExportedProgram

_aten = torch.ops.aten
_PLACES = frozenset({
    _aten.argmax.default, _aten.argmin.default, _aten.argsort.default, _aten.sort.default, _aten.sort.stable,
    _aten.topk.default, _aten.nonzero.default,
})  # fmt: skip
"""Operators whose results are places in their argument, which mostly is the table."""


def with_indices_asserted(program: Program) -> Program:
    """Return a flat program that asserts that indices lie in their tables, where a call does not check that already: it
    checks inputs that index tables of a fixed size (:func:`prepbench.calls.tensor_specs.index_limits`).
    """
    module = fx.GraphModule(program.graph_module, copied_graph(program.graph_module.graph))
    inputs = set(program.graph_signature.user_inputs)
    asserted: set[tuple[fx.Node, Any]] = set()
    for node in list(module.graph.nodes):
        for table, dim, indices in _lookups(node, inputs):
            size = table if isinstance(table, int) else table.meta["val"].shape[dim]
            if (indices, key := size if isinstance(size, int) else str(size)) not in asserted:
                asserted.add((indices, key))
                _assert(node, table, dim, indices)
    if not asserted:
        return program
    module.recompile()
    return with_graph(program, module)


def _lookups(node: fx.Node, inputs: set[Any]) -> Iterator[tuple[Any, int, fx.Node]]:
    for table, dim, indices in lookups_of(node):
        value = indices.meta.get("val") if isinstance(indices, fx.Node) else None
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
            continue
        if not isinstance(table, int) and not table.meta["val"].ndim:
            continue
        root = indices
        while root.op == "call_function" and (root.target in SAME_NUMBERS or root.target is operator.getitem):
            root = root.args[0]
        size = table if isinstance(table, int) else table.meta["val"].shape[dim]
        is_input = root.op == "placeholder"
        is_checked = is_input and (root.name not in inputs or isinstance(size, int))
        if root.op != "get_attr" and not is_checked and root.target not in _PLACES:
            yield table, dim, indices


def _assert(node: fx.Node, table: Any, dim: int, indices: fx.Node) -> None:
    """Insert the assertion before a lookup."""
    graph = node.graph
    place: dict[str, Any] = {key: node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in node.meta}

    def add(target: Any, *args: Any) -> fx.Node:
        made = graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        made.meta = {**place, "val": target(*values)}
        return made

    with graph.inserting_before(node):
        size: Any = table if isinstance(table, int) else table.meta["val"].shape[dim]
        if not isinstance(size, int):
            size = add(_aten.sym_size.int, table, dim)
        below = add(_aten.lt.Scalar, indices, size)
        least: Any = 0
        if node.target in FROM_THE_END:
            least = -size if isinstance(size, int) else add(operator.neg, size)
        inside = add(_aten.all.default, add(_aten.logical_and.default, below, add(_aten.ge.Scalar, indices, least)))
        text = f"index out of range in {str(node.target).removeprefix('aten.').partition('.')[0]}"
        asserted = graph.call_function(_aten._assert_async.msg, (inside, text))
        asserted.meta = {**place, "val": None}
