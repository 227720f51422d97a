"""The first node of a prepared graph whose value is not that of the original."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.prepare.model import PreparedModel
from prepbench.prepare.steps import record_steps
from prepbench.running.equality import REWRITTEN, difference
from prepbench.running.nested_values import collect
from prepbench.running.unchanged import own_copy, unchanged


@dataclass(frozen=True)
class FirstDifference:
    """The first node, in the order of the graph, whose value is not that of the original."""

    node: fx.Node
    what: str


def first_difference(model: torch.nn.Module, prepared: PreparedModel, sample: Sample) -> FirstDifference | None:
    """Run both models on one sample and compare node by node; ``None`` if no node that both have differs.

    Nodes are matched by what they were before preparation: the module they belong to, the operation, and its count.
    """
    origins = {node.meta.get("origin") for node in prepared.graph.nodes if node.op.startswith("call")}
    leaves = {origin[0] for origin in origins if origin is not None and origin[1] == ""}
    with torch.no_grad(), unchanged(model):
        seen = _values_of(model, own_copy(sample), leaves)
    watcher = _Watcher(prepared, seen)
    try:
        with torch.no_grad(), unchanged(prepared):
            own = own_copy(sample)
            nodes = prepared.graph.find_nodes(op="placeholder")[len(own.args) :]
            # by position, so that what the sample leaves out takes its place, too
            rest = [own.kwargs.get(str(node.target), next(iter(node.args), None)) for node in nodes]
            watcher.run(*own.args, *rest)
    except _Found:
        pass
    return watcher.found


class _Found(Exception):
    """A node that differs was found."""


class _Watcher(fx.Interpreter):
    """Runs a graph until a node has another value than the original had."""

    def __init__(self, prepared: PreparedModel, seen: dict[Any, list[Any]]) -> None:
        super().__init__(prepared)
        self._seen, self._count = seen, Counter[Any]()
        self.found: FirstDifference | None = None

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        origin = n.meta.get("origin")
        if origin is None:
            return value
        number = self._count[origin]
        self._count[origin] += 1
        if number < len(self._seen.get(origin, ())):
            found = difference(self._seen[origin][number], _copied(value), REWRITTEN, "value")
            if not found.equal:
                self.found = FirstDifference(n, found.text)
                raise _Found
        return value


def _values_of(model: torch.nn.Module, sample: Sample, leaves: set[str]) -> dict[Any, list[Any]]:
    """The value of every operation and leaf module of the original, by owner and name, in order."""
    seen: dict[Any, list[Any]] = defaultdict(list)
    record_steps(
        model,
        sample,
        lambda _, name: name in leaves,
        lambda step: seen[step.owner, step.name].append(_copied(step.result)),
    )
    return seen


def _copied(value: Any) -> Any:
    return [leaf.detach().clone() for leaf in collect(value) if isinstance(leaf, torch.Tensor)]
