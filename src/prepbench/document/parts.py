"""Modules with very many members are cut into parts that can be looked at; titles name what a part holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

from prepbench.document.model import Group, Module, Node

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
    """A group while documents are made: the operations and groups that lie directly in it."""

    group: Group
    nodes: list[Node] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    """A node or place with what a title needs of it.

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
    """Cuts what holds too much.

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
        """Cut a place and all inside it, and these parts into larger ones, until each can be looked at.

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
        """All members in the order in which they run; operations that are no modules have numbers."""
        unsorted: list[tuple[int, Node | Place]] = [(self._position[node.id], node) for node in place.nodes]
        unsorted += [(begin[child.group.id], child) for child in place.places]
        number = 0
        for at, item in sorted(unsorted, key=lambda member: member[0]):
            name = self._name(place.group, item)
            number += not name
            yield _Member(at, item, (name,), ()) if name else _Member(at, item, (), (number,))

    def _name(self, around: Group, item: Node | Place) -> str:
        """The name of a module inside the one around it, or of an input; "" for other operations."""
        if isinstance(item, Node) and _is_end(item):
            return item.label
        fqn, call = (item.fqn, self._where[item.id][1]) if isinstance(item, Node) else (item.group.fqn, item.group.call)
        if isinstance(item, Node) and item.op != "call_module" and fqn == around.fqn:
            return ""
        module = self._modules.get(fqn)
        name = fqn.removeprefix(f"{around.fqn}.") if around.fqn else fqn
        return f"{name} ↻ {call}" if module is not None and module.calls > 1 else name

    def _gathered_inputs(self, place: Place) -> list[_Member]:
        """Takes inputs in a row whose names begin alike out of a place where they are many: a part for each row."""
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
    """The first and the last of all that these ranges hold."""
    known = [end for each in ranges for end in each]
    return (known[0], known[-1]) if known else ()


def _title(names: tuple[str, ...], numbers: tuple[int, ...]) -> str:
    first, last = (names or numbers)[0], (names or numbers)[-1]
    title = f"{first} … {last}" if first != last else str(first)
    return title if names else f"operation{'s' * (first != last)} {title}"
