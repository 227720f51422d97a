"""Compare two documents of the same model, node by node."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable

from prepbench.document.model import GraphCollectionDocument, Mark, Node


def differences(before: GraphCollectionDocument, after: GraphCollectionDocument) -> tuple[Mark, ...]:
    """Return marks at the nodes of either document that the other one lacks.

    Nodes correspond if module, operation and occurrence are equal. The rest is paired by operation and place, e.g. a
    function with the module that replaced it, and last, where a module has equally many left before and after, in
    order; these count as changed, the others as removed or added.
    """
    old = [node for graph in before.graphs for node in graph.nodes if node.group is not None]
    new = [node for graph in after.graphs for node in graph.nodes if node.group is not None]
    _, old, new = _matched(old, new, lambda node: (node.fqn, node.op, node.type or node.label, node.shapes))
    _, old, new = _matched(old, new, lambda node: (node.fqn, node.op, node.type or node.label))
    same_name, old, new = _matched(old, new, lambda node: (node.fqn, node.op) if node.op == "call_module" else None)
    moved, old, new = _matched(old, new, lambda node: (_owner(node), _operation(node)))
    before_by_owner, after_by_owner = Counter(map(_owner, old)), Counter(map(_owner, new))
    even = {owner for owner, count in before_by_owner.items() if after_by_owner[owner] == count}
    in_turn, old, new = _matched(old, new, lambda node: _owner(node) if _owner(node) in even else None)
    marks = []
    for first, second in (*same_name, *moved, *in_turn):
        note = f"{_words(first)} became {_words(second)}"
        marks += [Mark(0, first.id, "changed", note), Mark(1, second.id, "changed", note)]
    marks += [Mark(0, node.id, "removed", "is not in the other graph") for node in old]
    marks += [Mark(1, node.id, "added", "is not in the other graph") for node in new]
    return tuple(marks)


def _matched(
    old: list[Node], new: list[Node], key: Callable[[Node], Hashable | None]
) -> tuple[list[tuple[Node, Node]], list[Node], list[Node]]:
    """Return pairs with the same key, in order, and the unmatched nodes of both sides."""
    waiting: dict[Hashable, list[Node]] = defaultdict(list)
    for node in reversed(new):
        waiting[key(node)].append(node)
    pairs, left = [], []
    for node in old:
        wanted = key(node)
        if wanted is not None and waiting.get(wanted):
            pairs.append((node, waiting[wanted].pop()))
        else:
            left.append(node)
    taken = {second.id for _, second in pairs}
    return pairs, left, [node for node in new if node.id not in taken]


def _owner(node: Node) -> str:
    return node.fqn.rpartition(".")[0] if node.op == "call_module" else node.fqn


def _operation(node: Node) -> str:
    name = (node.type or node.label).lower().replace("_", "")
    return name.removesuffix("2d").removesuffix("1d").removesuffix("3d")


def _words(node: Node) -> str:
    return f"{node.fqn} ({node.type})" if node.op == "call_module" else node.target
