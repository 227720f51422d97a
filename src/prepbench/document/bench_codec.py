"""The document of a bench as JSON: written deterministically, read back with every field checked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from prepbench.document.bench import BENCH_FORMAT, BENCH_VERSION, BenchDocument, ShownBench
from prepbench.document.codec import parsed, plain, read_document, read_object
from prepbench.document.model import DiagramDocument
from prepbench.errors import DocumentError

BENCH_LIMIT = 512 * 2**20
"""Bytes of the largest file that is read: a bench of 10,000 layers and 200 runs is smaller."""

_AGAIN = "Save the bench again."


def bench_to_json(document: BenchDocument) -> str:
    """Return the document as JSON text; equal documents give equal text."""
    return json.dumps(plain(document), ensure_ascii=False, allow_nan=False)


def bench_from_json(text: str | bytes) -> BenchDocument:
    """Read what :func:`bench_to_json` wrote.

    Raises:
        DocumentError: no JSON, another format or a newer version, a missing, unknown or wrong field (named by its
            path), a graph that :func:`~prepbench.document.codec.from_json` would refuse, or places that are not there.
    """
    data = parsed(text, "bench file", _AGAIN)
    if data.get("format") != BENCH_FORMAT:
        raise DocumentError(
            f"The file is not a saved bench: its format is not {BENCH_FORMAT!r}. Bench.save writes one."
        )
    version = str(data.get("version", ""))[:40]
    if version.partition(".")[0] != BENCH_VERSION.partition(".")[0]:
        raise DocumentError(
            f"The bench file has version {version or 'none'}; this prepbench reads {BENCH_VERSION}. Open it with the "
            "prepbench that wrote it."
        )
    given = data.get("graph")
    if not isinstance(given, dict):
        raise DocumentError(f"bench.graph must be an object, got {type(given).__name__}. {_AGAIN}")
    graph = read_document(given)
    if not isinstance(graph, DiagramDocument) or not graph.documents:
        raise DocumentError(f"bench.graph must hold at least one graph. {_AGAIN}")
    rest = {**data, "graph": plain(DiagramDocument(()))}
    document = read_object(rest, BenchDocument, "bench", lenient=version != BENCH_VERSION)
    if document.position >= len(document.states):
        raise DocumentError(f"bench.position is {document.position}, and there are {len(document.states)} states.")
    check_shown(document.shown)
    return replace(document, graph=graph)


def check_shown(shown: ShownBench) -> None:
    """Raise ``DocumentError`` where rows have other columns than their table."""
    for table in shown.tables:
        columns = len(table.columns)
        wrong = next((i for i, row in enumerate(table.rows) if len(row) != columns), None)
        if wrong is not None:
            raise DocumentError(f"Row {wrong} of {table.title[:60]!r} has other columns than its table. {_AGAIN}")
        if any(number >= columns for number in table.numbers):
            raise DocumentError(f"{table.title[:60]!r} has no column {max(table.numbers)}. {_AGAIN}")


def shown_to_json(shown: ShownBench, graph: Any) -> dict[str, Any]:
    """Return the saved notebook output of a bench: the page's content, with the graph in any form."""
    return {"format": BENCH_FORMAT, "version": BENCH_VERSION, "shown": plain(shown), "graph": graph}
