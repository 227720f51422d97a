"""Changes of single nodes in a target's graphs."""

from __future__ import annotations

from torch import fx


def replace_node(node: fx.Node, by: fx.Node) -> None:
    """Let everything that reads ``node`` read another node, which takes over what is known about the first."""
    by.meta = dict(node.meta)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
