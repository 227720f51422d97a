"""``show``: a saved graph as a tree of text, or as a page."""

from __future__ import annotations

import argparse

from prepbench.command_line.files import read_bounded
from prepbench.command_line.outcomes import Report
from prepbench.errors import DocumentError

SUMMARY = "Show a saved graph as a tree"
DESCRIPTION = "The file is what .save('model.graph.json') of a captured model wrote. It is read and checked, never run."
HAS_CHECKS = False
LIMIT = 512 * 2**20
"""Bytes of the largest file that is read: that of 20,000 operations has some 10 MB."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", help="a .graph.json file")
    parser.add_argument("--all", action="store_true", help="open all modules, not only as many as fit a page")
    parser.add_argument("--html", metavar="OUT.html", help="write the interactive diagram as one page, without network")


def run(options: argparse.Namespace) -> Report:
    """Run the command."""
    from prepbench.document.codec import parsed, read_document
    from prepbench.document.model import DiagramDocument
    from prepbench.views.page import to_text, write_page

    content = parsed(read_bounded(options.file, LIMIT, "a saved graph"), f"file {options.file}")
    if "documents" not in content and "graphs" not in content:
        raise DocumentError(
            f"{options.file} holds no graph. Give what .save('model.graph.json') wrote; JupyterLab opens files of a "
            "bench."
        )
    document = read_document(content)
    parts = document.documents if isinstance(document, DiagramDocument) else (document,)
    if options.html:
        write_page(document, options.html)
    texts = [to_text(part, frozenset(group.id for group in part.groups) if options.all else None) for part in parts]
    counted = [{"model_type": part.model_type, "level": part.level, "failures": len(part.failures)} for part in parts]
    return Report("show", "\n\n".join(texts), data={"graphs": counted})
