"""Decide which operations are drawn in which module, and which modules are alike; the document stores the decision."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

from prepbench.document.checks import cleaned
from prepbench.document.model import Graph, GraphCollectionDocument, Group, Mark, Module, Node
from prepbench.errors import DocumentError

Calls = Mapping[str, Mapping[str, int]]
"""For a node's id: which call of each module around it made it, by the module's FQN."""


def grouped(document: GraphCollectionDocument, calls: Calls | None = None) -> GraphCollectionDocument:
    """Return the document with its groups, and each node's place in them; texts of the model become printable.

    Args:
        document: graphs and modules; its own groups are replaced.
        calls: tells calls of the same module apart; without it they share a group.
    """
    return cleaned(_Grouping(document, calls or {}).result())


def check_hierarchy(document: GraphCollectionDocument) -> None:
    """Raise for cyclic or missing groups, and for duplicate ids.

    Raises:
        DocumentError: names the group or the node.
    """
    parents: dict[str, str | None] = {}
    for group in document.groups:
        if group.id in parents:
            raise DocumentError(f"The document has two groups {group.id!r}; each needs an id of its own.")
        parents[group.id] = group.parent
    safe: set[str] = set()
    for group in document.groups:
        chain: list[str] = []
        at: str | None = group.id
        while at is not None and at not in safe:
            if at in chain:
                circle = " in ".join(repr(name) for name in [*chain[chain.index(at) :], at])
                raise DocumentError(f"The modules of the document hold each other: {circle}.")
            if at not in parents:
                raise DocumentError(f"Group {chain[-1]!r} lies in {at!r}, which the document does not have.")
            chain.append(at)
            at = parents[at]
        safe.update(chain)
    if document.groups and "" not in parents:
        raise DocumentError("The document lacks the group of the model itself (its id is empty).")
    nodes: set[str] = set()
    for graph in document.graphs:
        for node in graph.nodes:
            if node.id in nodes:
                raise DocumentError(f"The document has two nodes {node.id!r}; each needs an id of its own.")
            nodes.add(node.id)
            if node.group is not None and node.group not in parents:
                raise DocumentError(f"Node {node.id!r} lies in group {node.group!r}, which the document does not have.")


class _Grouping:
    def __init__(self, document: GraphCollectionDocument, calls: Calls) -> None:
        self._document = document
        self._modules = {module.fqn: module for module in document.modules}
        self._calls = calls
        self._places: dict[str, Place] = {"": Place(Group("", None, ""))}
        self._counts: dict[str, dict[int, int]] = defaultdict(dict)  # calls as numbered in traces -> 1, 2, …

    def result(self) -> GraphCollectionDocument:
        hidden = _hidden_nodes(self._document.graphs)
        owners = {prefix for graph in self._document.graphs if graph.fqn for prefix in prefixes(graph.fqn)[:-1]}
        where: dict[str, tuple[str, int]] = {}
        for graph in self._document.graphs:
            for node in graph.nodes:
                if node.id not in hidden:
                    where[node.id] = self._insert(node, owners)
        position = {node: i for i, node in enumerate(where)}
        self._dissolve(self._places[""], where, position)
        self._lift_single_operations(self._places[""], where)
        Parts(where, position, self._modules).cut(self._places[""])
        order: list[Place] = []
        _walk(self._places[""], order)
        alike = _alike(order, self._document, self._modules, {node: group for node, (group, _) in where.items()})
        groups = tuple(replace(place.group, alike=alike.get(place.group.id, 0)) for place in order)
        graphs = tuple(
            Graph(graph.id, graph.fqn, tuple(_placed(node, where.get(node.id)) for node in graph.nodes))
            for graph in self._document.graphs
        )
        return replace(self._document, graphs=graphs, groups=groups)

    def _insert(self, node: Node, owners: set[str]) -> tuple[str, int]:
        """Insert a node under its modules; a module call lies beside the captured content of the module, if any."""
        calls = self._calls.get(node.id, {})
        owner = node.fqn
        if node.op == "call_module" and owner not in owners:
            owner = owner.rpartition(".")[0]
        place, number = self._places[""], 1
        for fqn in prefixes(owner):
            number = self._number(fqn, calls[fqn]) if fqn in calls else number
            name = fqn if number == 1 else f"{fqn}@{number}"
            inner = self._places.get(name)
            if inner is None:
                inner = self._places[name] = Place(Group(name, place.group.id, fqn, number))
                place.places.append(inner)
            place = inner
        place.nodes.append(node)
        own = self._number(node.fqn, calls[node.fqn]) if node.fqn in calls else number
        return place.group.id, own

    def _number(self, fqn: str, call: int) -> int:
        """Count calls from 1 in the order of their first appearance here."""
        known = self._counts[fqn]
        return known.setdefault(call, len(known) + 1)

    def _dissolve(self, place: Place, where: dict[str, tuple[str, int]], position: dict[str, int]) -> list[int]:
        """Replace a container by its members if it is never called and others run between them; return the positions
        of all operations inside.
        """
        places, nodes = [], list(place.nodes)
        inside = [position[node.id] for node in nodes]
        for child in place.places:
            held = self._dissolve(child, where, position)
            inside += held
            module = self._modules.get(child.group.fqn)
            if module is None or module.calls or max(held) - min(held) + 1 == len(held):
                places.append(child)
                continue
            for inner in child.places:
                inner.group = replace(inner.group, parent=place.group.id)
                places.append(inner)
            for node in child.nodes:
                where[node.id] = (place.group.id, where[node.id][1])
                nodes.append(node)
        place.places, place.nodes = places, nodes
        return inside

    def _lift_single_operations(self, place: Place, where: dict[str, tuple[str, int]]) -> None:
        """Replace a module with a single operation by a box with the module's name."""
        kept = []
        for child in place.places:
            self._lift_single_operations(child, where)
            if len(child.nodes) == 1 and not child.places and child.nodes[0].op.startswith("call"):
                node = child.nodes[0]
                place.nodes.append(node)
                where[node.id] = (place.group.id, child.group.call)
            else:
                kept.append(child)
        place.places = kept


def _placed(node: Node, where: tuple[str, int] | None) -> Node:
    return replace(node, group=None) if where is None else replace(node, group=where[0], call=where[1])


def _walk(place: Place, order: list[Place]) -> None:
    order.append(place)
    for child in place.places:
        _walk(child, order)


def _alike(
    order: list[Place], document: GraphCollectionDocument, modules: Mapping[str, Module], where: Mapping[str, str]
) -> dict[str, int]:
    """Return a number for each group: equal for equal content (types, wiring, shapes, status), compared bottom up."""
    nodes = [node for graph in document.graphs for node in graph.nodes if node.id in where]
    parents = {place.group.id: place.group.parent for place in order}
    members: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        at: str | None = where[node.id]
        while at is not None:
            members[at].append(node)
            at = parents[at]
    troubled = [(module.fqn, module.status) for module in modules.values() if module.status != "traced"]
    numbers: dict[object, int] = {}
    content = {
        place.group.id: numbers.setdefault(
            _content(place.group, members[place.group.id], modules.get(place.group.fqn), troubled), len(numbers) + 1
        )
        for place in order
        if place.group.id
    }
    often = Counter(content.values())
    renumbered: dict[int, int] = {}
    return {
        group: renumbered.setdefault(number, len(renumbered) + 1)
        for group, number in content.items()
        if often[number] > 1
    }


def _content(group: Group, nodes: Iterable[Node], module: Module | None, troubled: Sequence[tuple[str, str]]) -> object:
    at: dict[str, int] = {}
    outside: dict[str, int] = {}
    names = _NamesInside(group)
    described = []
    for node in nodes:
        wiring = tuple(
            ("in", at[source]) if source in at else ("out", outside.setdefault(source, len(outside)))
            for source in node.inputs
        )
        at[node.id] = len(at)
        inner = names.of(node.fqn)
        described.append((inner, node.op, node.type or node.label, node.status, node.shapes, node.dtypes, wiring))
    kinds = (module.type, module.status, module.parameters) if module else ()
    inside = tuple((names.of(fqn), status) for fqn, status in troubled if names.has(fqn))
    return kinds, inside, tuple(described)


class _NamesInside:
    """Names relative to a group. In a part its modules are numbered, so that equal parts have equal names."""

    def __init__(self, group: Group) -> None:
        self._fqn = group.fqn
        self._counts = bool(group.label)
        self._numbers: dict[str, int] = {}

    def of(self, fqn: str) -> object:
        if not self._counts:
            return fqn.removeprefix(self._fqn) if fqn != self._fqn else ""
        head, _, rest = self._relative(fqn).partition(".")
        return self._numbers.setdefault(head, len(self._numbers)), rest

    def has(self, fqn: str) -> bool:
        if self._fqn and not fqn.startswith(f"{self._fqn}."):
            return False
        return not self._counts or self._relative(fqn).partition(".")[0] in self._numbers

    def _relative(self, fqn: str) -> str:
        return fqn.removeprefix(f"{self._fqn}.") if self._fqn else fqn


def _hidden_nodes(graphs: tuple[Graph, ...]) -> frozenset[str]:
    """Return the nodes that are not drawn: parameters, sizes and other values that are no tensors, and the inputs
    and outputs of graphs inside failed modules.
    """
    hidden = set()
    for graph in graphs:
        knows_shapes = any(node.shapes for node in graph.nodes)
        for node in graph.nodes:
            is_number = knows_shapes and not node.shapes and node.op in ("call_function", "call_method")
            inner_border = graph.fqn != "" and node.op in ("placeholder", "output")
            if node.op == "get_attr" or is_number or inner_border:
                hidden.add(node.id)
    return frozenset(hidden)


def prefixes(fqn: str) -> tuple[str, ...]:
    """``"a.b.c"`` gives ``("a", "a.b", "a.b.c")``."""
    parts = fqn.split(".") if fqn else []
    return tuple(".".join(parts[: i + 1]) for i in range(len(parts)))


# Modules with very many members are cut into parts that can be looked at; titles name what a part holds.


T = TypeVar("T")

MANY = 80
"""Members of one module that can be looked at."""

PART = 40
"""Members of one part."""

MANY_INPUTS = 6
"""More inputs of one kind than this, such as the tensors of a cache, become one box."""

_ENDS = 8  # inputs and outputs that stay beside the parts

Where = dict[str, tuple[str, int]]
"""For a node's id: the group that it is drawn in, and which call of its module it belongs to."""


@dataclass
class Place:
    """A group under construction: its direct operations and groups."""

    group: Group
    nodes: list[Node] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    """A node or place with its parts of a title.

    Attributes:
        begin: position of its first operation.
        item: the node or place.
        names: of the first and the last module or input in it; empty where there is none.
        numbers: of the first and the last operation in it that is no module; empty where there is none.
    """

    begin: int
    item: Node | Place
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


class Parts:
    """Splits groups with too many members into parts.

    Args:
        where: changed to the groups that nodes lie in afterwards.
        position: in which order nodes run, by id.
        modules: the modules by FQN.
    """

    def __init__(self, where: Where, position: Mapping[str, int], modules: Mapping[str, Module]) -> None:
        self._where = where
        self._position = position
        self._modules = modules

    def cut(self, place: Place) -> int:
        """Split a place and all inside it into parts, and these into larger ones, until each is readable.

        Returns the position of its first operation.
        """
        begin = {child.group.id: self.cut(child) for child in place.places}
        kept = self._gathered_inputs(place)
        members = list(self._members(place, begin))
        if len(members) > MANY:
            ends = [member for member in members if _is_end(member.item)]
            if len(ends) <= _ENDS:  # else titles would begin with what is no block
                kept, members = [*kept, *ends], [member for member in members if not _is_end(member.item)]
        level = 0
        while len(members) > MANY:
            level += 1
            chunks = [members[i : i + PART] for i in range(0, len(members), PART)]
            members = [self._part(place, f"{level}.{i + 1}", chunk) for i, chunk in enumerate(chunks)]
        in_order = sorted([*members, *kept], key=lambda member: member.begin)
        items = [member.item for member in in_order]
        place.nodes = [item for item in items if isinstance(item, Node)]
        place.places = [item for item in items if isinstance(item, Place)]
        return in_order[0].begin if in_order else 0

    def _members(self, place: Place, begin: Mapping[str, int]) -> Iterator[_Member]:
        """Yield all members in execution order; operations that are no modules are numbered."""
        unsorted: list[tuple[int, Node | Place]] = [(self._position[node.id], node) for node in place.nodes]
        unsorted += [(begin[child.group.id], child) for child in place.places]
        number = 0
        for at, item in sorted(unsorted, key=lambda member: member[0]):
            name = self._name(place.group, item)
            number += not name
            yield _Member(at, item, (name,), ()) if name else _Member(at, item, (), (number,))

    def _name(self, around: Group, item: Node | Place) -> str:
        """Return the name of a module relative to the one around it, or of an input; "" for other operations."""
        if isinstance(item, Node) and _is_end(item):
            return item.label
        fqn, call = (item.fqn, self._where[item.id][1]) if isinstance(item, Node) else (item.group.fqn, item.group.call)
        if isinstance(item, Node) and item.op != "call_module" and fqn == around.fqn:
            return ""
        module = self._modules.get(fqn)
        name = fqn.removeprefix(f"{around.fqn}.") if around.fqn else fqn
        return f"{name} ↻ {call}" if module is not None and module.calls > 1 else name

    def _gathered_inputs(self, place: Place) -> list[_Member]:
        """Remove consecutive inputs with a common prefix from a place with many; return a part for each such row."""
        gathered: list[_Member] = []
        inputs = [node for node in place.nodes if node.op == "placeholder"]
        for _, row in groupby(inputs, key=lambda node: re.split(r"\d", node.label)[0]):
            members = [_Member(self._position[node.id], node, (node.label,)) for node in row]
            if len(members) > MANY_INPUTS:
                gathered.append(self._part(place, f"inputs.{len(gathered) + 1}", members))
        taken = {node.id for node in inputs if self._where[node.id][0] != place.group.id}
        place.nodes = [node for node in place.nodes if node.id not in taken]
        return gathered

    def _part(self, place: Place, name: str, members: list[_Member]) -> _Member:
        group = place.group
        names, numbers = _ends_of([member.names for member in members]), _ends_of([m.numbers for m in members])
        made = Place(Group(f"{group.id}#{name}", group.id, group.fqn, group.call, label=_title(names, numbers)))
        for member in members:
            if isinstance(member.item, Place):
                member.item.group = replace(member.item.group, parent=made.group.id)
                made.places.append(member.item)
            else:
                self._where[member.item.id] = (made.group.id, self._where[member.item.id][1])
                made.nodes.append(member.item)
        return _Member(members[0].begin, made, names, numbers)


def _is_end(item: Node | Place) -> bool:
    return isinstance(item, Node) and item.op in ("placeholder", "output")


def _ends_of(ranges: Iterable[tuple[T, ...]]) -> tuple[T, ...]:
    """Return the first and the last of all that these ranges hold."""
    known = [end for each in ranges for end in each]
    return (known[0], known[-1]) if known else ()


def _title(names: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    first, last = (names or numbers)[0], (names or numbers)[-1]
    title = f"{first} … {last}" if first != last else str(first)
    return title if names else f"operation{'s' * (first != last)} {title}"


# Compare two documents of the same model, node by node.


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
