"""One HTML page of a bench: the live diagram, choices, runs, chart, layers and code. It needs no network."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from prepbench.document.bench import ShownBench
from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument
from prepbench.storage import write_file
from prepbench.views.bench_page import sections_html
from prepbench.views.page import packed_text, script
from prepbench.views.palette import controls
from prepbench.views.scene import scene
from prepbench.views.text import to_text

_STYLE = """
html{color-scheme:light dark;background:var(--pb-page);color:var(--pb-text);font:15px/1.5 system-ui,sans-serif}
body{max-width:1180px;margin:0 auto;padding:24px 20px 64px}
h1{font-size:24px;margin:0 0 4px} h4{font-size:17px;margin:32px 0 8px}
.sentence,.made{color:var(--pb-dim);margin:0 0 8px}
#diagram{height:min(72vh,760px);margin:16px 0}
table{border-collapse:collapse;display:block;max-height:70vh;overflow:auto;max-width:100%}
thead{position:sticky;top:0;background:var(--pb-card)}
th,td{text-align:left;vertical-align:top;padding:4px 12px 4px 0;border-bottom:1px solid var(--pb-line)}
td{overflow-wrap:anywhere;min-width:4em} tbody tr{content-visibility:auto;contain-intrinsic-size:auto 30px}
.pb-number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
pre{overflow:auto;padding:12px;border:1px solid var(--pb-line);border-radius:6px;background:var(--pb-card)}
img{max-width:100%}
@media print{#diagram{display:none} table,pre{max-height:none;overflow:visible}}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
{{policy}}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>{{style}}</style>
</head>
<body>
<header><h1>{{title}}</h1><p class="sentence">{{sentence}}</p><p class="made">{{made}}</p></header>
<main>
<div id="diagram"></div>
<noscript><pre>{{still}}</pre></noscript>
{{sections}}
</main>
<script type="text/plain" id="document">{{document}}</script>
<script type="text/plain" id="layout">{{layout}}</script>
<script>{{script}}</script>
</body>
</html>
"""


def report_page(shown: ShownBench, graph: DiagramDocument, made: str) -> str:
    """Return the HTML of the report.

    Args:
        shown: the content.
        graph: the diagram.
        made: date and version of the report, in words.
    """
    first = graph.documents[0]
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', script("page.html"))
    assert policy is not None
    parts = {
        "policy": policy[0],
        "title": html.escape(shown.title),
        "sentence": html.escape(shown.sentence),
        "made": html.escape(made),
        "style": script("diagram.css") + _colours() + _STYLE,
        "still": html.escape(to_text(first, scene(first).expanded)),
        "sections": sections_html(shown),
        "document": packed_text(to_json(graph)),
        "layout": packed_text(script("layout.js")),
        "script": script("page.js").replace("</script", "<\\/script"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _PAGE)


def write_report(shown: ShownBench, graph: DiagramDocument, made: str, path: str | os.PathLike[str]) -> Path:
    """Write :func:`report_page` to a file atomically.

    Raises:
        StorageError: it cannot be written; an older file is still there.
    """
    return write_file(path, report_page(shown, graph, made))


def _colours() -> str:
    lines = "".join(f"--pb-{name}:light-dark({shade.light},{shade.dark});" for name, shade in controls().items())
    return f"html{{{lines}}}"
