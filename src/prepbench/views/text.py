"""The same as the diagram in plain text: an indented tree with the same glyphs."""

from __future__ import annotations

from prepbench.document.model import GraphCollectionDocument
from prepbench.views.palette import STATUS
from prepbench.views.scene import Cluster, Scene, scene


def to_text(document: GraphCollectionDocument, expanded: frozenset[str] | None = None) -> str:
    """An indented tree of what the diagram shows."""
    view = scene(document, expanded)
    return "\n".join([f"{view.title}   {legend(view)}", *_lines(view.root, 1)])


def legend(view: Scene) -> str:
    """Glyphs, words and counts of the states that occur, e.g. ``"✕ 1 failed · ● 12 traced"``."""
    return " · ".join(f"{STATUS[status].glyph} {count} {STATUS[status].word}" for status, count in view.counts)


def _lines(cluster: Cluster, depth: int) -> list[str]:
    lines = []
    for box in cluster.boxes:
        if box.kind != "reference":
            parts = [STATUS[box.status].glyph, box.title, box.subtitle, box.detail]
            lines.append("  " * depth + " ".join(filter(None, parts)))
    for child in cluster.clusters:
        lines.append("  " * depth + f"▾ {child.title}")
        lines += _lines(child, depth + 1)
    return lines
