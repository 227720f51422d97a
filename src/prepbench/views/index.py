"""A document prepared for drawing: what lies in which group, in the order in which it runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from prepbench.document.hierarchy import grouped, prefixes
from prepbench.document.model import GraphCollectionDocument, Group, Node

TROUBLED = ("failed", "leaf")
ENDS = ("placeholder", "output")


@dataclass(frozen=True)
class Item:
    """A node or a group, as a member of the group around it."""

    id: str
    is_group: bool


class Index:
    """Look-ups in one document; all orders are orders of execution."""

    def __init__(self, document: GraphCollectionDocument) -> None:
        self.document = document if document.groups else grouped(document)
        self.modules = {module.fqn: module for module in document.modules}
        self.groups: dict[str, Group] = {group.id: group for group in self.document.groups}
        self.nodes: dict[str, Node] = {}
        self.items: dict[str, list[Item]] = {group: [] for group in self.groups}
        self.operations: Counter[str] = Counter()
        self.inside: dict[str, Counter[str]] = defaultdict(Counter)
        self.unvisited: dict[str, list[str]] = defaultdict(list)
        self._arrange()
        self._count_troubles()

    def parents(self, group: str | None) -> list[str]:
        """The group and those around it, from the inside out."""
        found = []
        while group is not None:
            found.append(group)
            group = self.groups[group].parent
        return found

    def _arrange(self) -> None:
        placed = {""}
        for graph in self.document.graphs:
            for node in graph.nodes:
                if node.group is None:
                    continue
                self.nodes[node.id] = node
                around = self.parents(node.group)
                for inner, outer in pairwise(around):
                    if inner in placed:
                        break
                    placed.add(inner)
                    self.items[outer].append(Item(inner, True))
                self.items[node.group].append(Item(node.id, False))
                if node.op not in ENDS:
                    self.operations.update(around)

    def _count_troubles(self) -> None:
        called = {prefix for m in self.document.modules if m.status != "unvisited" for prefix in prefixes(m.fqn)[:-1]}
        for module in self.document.modules:
            outer = prefixes(module.fqn)[:-1]
            if module.status in TROUBLED:
                for fqn in outer:
                    self.inside[fqn][module.status] += 1
            if module.status == "unvisited" and module.fqn and module.fqn not in called:
                self.unvisited[outer[-1] if outer else ""].append(module.fqn)
