"""The same as the diagram in plain text: an indented tree with the same glyphs."""

from __future__ import annotations

from prepbench.document.model import GraphCollectionDocument
from prepbench.views.boxes import Cluster, Scene
from prepbench.views.palette import STATUS
from prepbench.views.scene import scene


def to_text(document: GraphCollectionDocument, expanded: frozenset[str] | None = None) -> str:
    """An indented tree of what the diagram shows."""
    view = scene(document, expanded)
    return "\n".join([f"{view.title}   {legend(view)}", *_lines(view.root, 1)])


def legend(view: Scene) -> str:
    """Glyphs, words and counts of the states that occur, e.g. ``"✕ 1 failed · ● 12 traced"``."""
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
