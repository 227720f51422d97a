"""The diagram in plain text: an indented tree with the same glyphs."""

from __future__ import annotations

import re

from prepbench.document.model import GraphCollectionDocument, Size
from prepbench.views.boxes import Cluster, Scene, all_boxes
from prepbench.views.palette import STATUS
from prepbench.views.scene import scene


def to_text(document: GraphCollectionDocument, expanded: frozenset[str] | None = None) -> str:
    """Return the diagram as an indented tree."""
    view = scene(document, expanded)
    sizes = sizes_text(document, view)
    return "\n".join(
        [f"{view.title}   {legend(view)}", *([f"  sizes: {sizes}"] if sizes else []), *_lines(view.root, 1)]
    )


def sizes_text(document: GraphCollectionDocument, view: Scene) -> str:
    """Return the meaning of the names in the visible shapes, e.g. ``"H = x.shape[2] · H1 = (H - 1)//2 + 1"``."""
    return " · ".join(f"{size.name} = {size.meaning}" for size in visible_sizes(document, view))


def visible_sizes(document: GraphCollectionDocument, view: Scene) -> tuple[Size, ...]:
    """Return the sizes that are named in visible boxes, and in their formulas, in the order of the document."""
    meanings = {size.name: size.meaning for size in document.sizes}
    found: set[str] = set()
    waiting = [box.detail for box in all_boxes(view.root)]
    while waiting:
        names = {name for name in re.findall(r"[A-Za-z_]\w*", waiting.pop()) if name in meanings} - found
        found |= names
        waiting += [meanings[name] for name in names]
    return tuple(size for size in document.sizes if size.name in found)


def legend(view: Scene) -> str:
    """Return glyphs, words and counts of the statuses that occur, e.g. ``"✕ 1 failed · ● 12 traced"``."""
    return " · ".join(f"{STATUS[status].glyph} {count} {STATUS[status].word}" for status, count in view.counts)


def _lines(cluster: Cluster, depth: int) -> list[str]:
    lines = []
    for member in cluster.members:
        if isinstance(member, Cluster):
            lines += ["  " * depth + f"▾ {member.title}", *_lines(member, depth + 1)]
        elif member.kind != "reference":
            calls = f"↻ {member.calls}" if member.calls else ""
            parts = [STATUS[member.status].glyph, member.title, member.subtitle, member.detail, calls]
            lines.append("  " * depth + " ".join(filter(None, parts)))
    return lines
