"""Which leaves of a graph have inputs or outputs that something else in the graph writes into.

A leaf hands out new tensors. If the module it stands for returns its argument or a view of it, that is the same as long
as nobody writes into either; where somebody does, the leaf must refuse such a call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of


def leaves_written_into(graph: fx.Graph, is_leaf: Callable[[Any], bool]) -> set[Any]:
    """The targets of leaf nodes whose outputs are written into in the graph, or whose inputs are after the leaf ran."""
    found: set[Any] = set()
    before: list[fx.Node] = []
    for node in graph.nodes:
        for written in _written(node):
            base = _base(written)
            for leaf in before:
                if not _gives_back(leaf, node) and (base is leaf or base in map(_base, leaf.all_input_nodes)):
                    found.add(leaf.target)
        if is_leaf(node.target):
            before.append(node)
    return found


def _written(node: fx.Node) -> Iterator[fx.Node]:
    """The arguments that the node writes into."""
    if not isinstance(node.target, OpOverload):
        return
    for index, argument in enumerate(schema_of(node.target).arguments):
        value = node.args[index] if index < len(node.args) else node.kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            yield value


def _gives_back(leaf: fx.Node, node: fx.Node) -> bool:
    """Whether the node copies what the leaf wrote into its own argument back to where it belongs."""
    return "copy_" in str(node.target) and any(_base(value) is leaf for value in node.all_input_nodes[1:])


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory this one has."""
    while (source := _source(node)) is not None:
        node = source
    return node


def _source(node: fx.Node) -> fx.Node | None:
    if node.target is operator.getitem:
        return node.args[0] if isinstance(node.args[0], fx.Node) else None
    if not isinstance(node.target, OpOverload):
        return None
    for index, argument in enumerate(schema_of(node.target).arguments):
        if argument.alias_info is not None and index < len(node.args) and isinstance(node.args[index], fx.Node):
            value: Any = node.args[index]
            return value  # type: ignore[no-any-return]
    return None
