"""Check a document from others beyond its fields: printable texts, finite numbers, consistent nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from prepbench.document.model import GraphCollectionDocument, Node
from prepbench.errors import UNPRINTABLE, DocumentError, printable

MAX_DEPTH = 500
"""Modules inside each other; Python itself cannot call deeper by default."""

MAX_NUMBER = 2**53
"""The largest number that every reader of JSON keeps exactly."""


def cleaned(document: GraphCollectionDocument) -> GraphCollectionDocument:
    """Return the document with :func:`printable` texts; the same object where all of them are."""
    if not any(UNPRINTABLE.search(text) for text in _texts(document)):
        return document
    result = cleaned_value(document)
    assert isinstance(result, GraphCollectionDocument)
    return result


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif is_dataclass(value):
        yield from _texts(tuple(vars(value).values()))


def cleaned_value(value: Any) -> Any:
    """Return the value with :func:`printable` texts: names in a user's model may contain anything."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(map(cleaned_value, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: cleaned_value(getattr(value, field.name)) for field in fields(value)})
    return value


def check_text(text: str, path: str) -> None:
    """Raise ``DocumentError`` when a text holds characters that :func:`printable` would replace."""
    found = UNPRINTABLE.search(text)
    if found:
        raise DocumentError(
            f"{path} holds {found[0]!a} at position {found.start()}, which is no printable text. Trace the model "
            "again to write a new document."
        )


def check_number(value: float, path: str, *, counts: bool) -> None:
    """Raise ``DocumentError`` when a count is negative or a number is NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        raise DocumentError(f"{path} must be a finite number, got {value}.")
    if abs(value) > MAX_NUMBER and isinstance(value, int):
        raise DocumentError(f"{path} is larger than any number in a document.")
    if counts and value < 0:
        raise DocumentError(f"{path} counts something and cannot be {value}.")


def check_depth(document: GraphCollectionDocument) -> None:
    """Raise ``DocumentError`` when modules nest deeper than :data:`MAX_DEPTH`; their hierarchy must have no cycles."""
    depth: dict[str | None, int] = {None: 0}
    waiting = list(document.groups)
    while waiting:  # parents come before what they hold, so this is one round for what prepbench writes
        later = [group for group in waiting if group.parent not in depth]
        depth |= {group.id: depth[group.parent] + 1 for group in waiting if group.parent in depth}
        deepest = max(depth.values())
        if deepest > MAX_DEPTH:
            raise DocumentError(f"The modules of the document nest {deepest} deep; {MAX_DEPTH} can be shown.")
        waiting = later


def check_nodes(document: GraphCollectionDocument) -> None:
    """Raise ``DocumentError`` for nodes that depend on themselves, and for inputs that do not exist.

    Raises:
        DocumentError: names the nodes.
    """
    for graph in document.graphs:
        nodes = {node.id: node for node in graph.nodes}
        for node in graph.nodes:
            for source in node.inputs:
                if source not in nodes:
                    raise DocumentError(
                        f"Node {node.id!r} uses {source!r}, which its graph {graph.id!r} does not have."
                    )
        _check_circles(nodes)


def check_sizes(document: GraphCollectionDocument) -> None:
    """Raise ``DocumentError`` for names of sizes that are defined twice, or never.

    Raises:
        DocumentError: names the size.
    """
    seen = set()
    for size in document.sizes:
        if not size.name or not size.meaning:
            raise DocumentError(
                f"The size {size.name!r} of the document stands for {size.meaning!r}; both need a text."
            )
        if size.name in seen:
            raise DocumentError(f"The document explains the size {size.name!r} twice; a name stands for one size.")
        seen.add(size.name)


def _check_circles(nodes: dict[str, Node]) -> None:
    finished: set[str] = set()
    for start in nodes:
        way: dict[str, int] = {}  # open nodes, with the number of inputs that were followed
        stack = [start] if start not in finished else []
        while stack:
            at = stack[-1]
            position = way.get(at, 0)
            if position == len(nodes[at].inputs):
                way.pop(at, None)
                finished.add(stack.pop())
                continue
            way[at] = position + 1
            source = nodes[at].inputs[position]
            if source in way:
                circle = " uses ".join(repr(name) for name in [*list(way)[list(way).index(source) :], source])
                raise DocumentError(f"The nodes of the document use each other: {circle}.")
            if source not in finished:
                stack.append(source)
