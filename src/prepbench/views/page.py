"""A diagram as one HTML file that needs no network, and the scripts of pages and widgets."""

from __future__ import annotations

import base64
import gzip
import html
import os
import re
from pathlib import Path

from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument, GraphCollectionDocument
from prepbench.storage import write_file
from prepbench.views.scene import scene
from prepbench.views.text import to_text

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
