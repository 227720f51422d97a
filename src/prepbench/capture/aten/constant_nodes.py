"""Constant folding: the nodes of a graph that depend on its constants alone, and their values."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of

_READS = ("get_attr", "placeholder")
_MOST_CREATED = 2**22
"""Elements of a tensor that is made from nothing; a larger one is cheaper to make than to store."""


def is_pure(node: fx.Node) -> bool:
    """Return whether a node is a function of other nodes: deterministic, and without side effects."""
    if not isinstance(node.target, OpOverload) or not node.all_input_nodes:
        return False
    # two copies of a random operator would draw different numbers
    return torch.Tag.nondeterministic_seeded not in node.target.tags and not schema_of(node.target).is_mutable


class ConstantNodes:
    """The nodes that depend on constants alone, and their values, each computed once.

    Args:
        graph: its nodes have ``meta["val"]``.
        read: returns the tensor that a placeholder or ``get_attr`` stands for; None where it is no constant.
        with_created: whether what is made from nothing, such as ``aten.eye``, is a constant, too.
    """

    def __init__(
        self, graph: fx.Graph, read: Callable[[fx.Node], torch.Tensor | None], *, with_created: bool = False
    ) -> None:
        self._read = read
        self._constant: set[fx.Node] = set()
        self._values: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op in _READS:
                if read(node) is not None:
                    self._constant.add(node)
            elif node.op == "call_function" and self._constant.issuperset(node.all_input_nodes):
                is_part = node.target is operator.getitem and node.all_input_nodes
                if is_part or is_pure(node) or (with_created and _is_created(node)):
                    self._constant.add(node)

    def __contains__(self, node: object) -> bool:
        return node in self._constant

    def value(self, node: fx.Node) -> Any:
        """Return the value of a constant node."""
        if node.op in _READS:  # also one that was put into a constant node since
            found = self._read(node)
            assert found is not None
            return found.detach()
        if node not in self._values:
            args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), self.value)
            self._values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self._values[node]


def _is_created(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.all_input_nodes or not isinstance(value, torch.Tensor) or not isinstance(node.target, OpOverload):
        return False
    is_random = torch.Tag.nondeterministic_seeded in node.target.tags or "empty" in str(node.target)
    return not is_random and math.prod(value.shape) <= _MOST_CREATED
