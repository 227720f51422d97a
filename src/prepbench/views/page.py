"""A diagram as one HTML file that needs no network, and the scripts of pages and widgets."""

from __future__ import annotations

import base64
import gzip
import html
import os
import re
from pathlib import Path

from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument, GraphCollectionDocument, Size
from prepbench.storage import write_file
from prepbench.views.palette import STATUS
from prepbench.views.scene import Cluster, Scene, all_boxes, scene

STATIC = Path(__file__).parents[1] / "static"
"""Where the built front end lies."""


def script(name: str) -> str:
    """Return the text of a file of the built front end."""
    return (STATIC / name).read_text(encoding="utf-8")


def packed(text: str) -> bytes:
    """Return gzipped text; equal texts give equal bytes."""
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def page(document: GraphCollectionDocument | DiagramDocument) -> str:
    """Return the HTML of a page with the interactive diagram; without scripts it shows the diagram as text."""
    first = document.documents[0] if isinstance(document, DiagramDocument) else document
    parts = {
        "title": html.escape(first.model_type),
        "style": script("diagram.css"),
        "still": f"<pre>{html.escape(to_text(first, scene(first).expanded))}</pre>",
        "document": packed_text(to_json(document)),
        "layout": packed_text(script("layout.js")),
        "script": script("page.js").replace("</script", "<\\/script"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], script("page.html"))


def write_page(document: GraphCollectionDocument | DiagramDocument, path: str | os.PathLike[str]) -> Path:
    """Write :func:`page` to a file atomically.

    Returns:
        The path, for a link.

    Raises:
        StorageError: it cannot be written; an older file is still there.
    """
    return write_file(path, page(document))


def write_document(document: GraphCollectionDocument | DiagramDocument, path: str | os.PathLike[str]) -> Path:
    """Write a document as JSON atomically.

    Returns:
        The path.

    Raises:
        StorageError: it cannot be written; an older file is still there.
    """
    return write_file(path, to_json(document))


def packed_text(text: str) -> str:
    """Return gzipped text as base64, for a page."""
    return base64.b64encode(packed(text)).decode()


# The diagram in plain text: an indented tree with the same glyphs.


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
