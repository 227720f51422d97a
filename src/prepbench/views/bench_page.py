"""A bench without a kernel: its diagram, tables, chart, choices and code as HTML, for notebooks and files."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from prepbench.document import bench
from prepbench.document.codec import to_json
from prepbench.document.model import DiagramDocument
from prepbench.storage import write_file
from prepbench.strict_pages import for_strict_pages_only
from prepbench.views.bench_chart import chart_svg
from prepbench.views.display import LIMIT, TALLEST, document_data
from prepbench.views.dot import description, render
from prepbench.views.page import packed_text, script, to_text
from prepbench.views.palette import controls
from prepbench.views.samples import samples_html
from prepbench.views.scene import scene

# One HTML page of a bench: the live diagram, choices, runs, chart, layers and code. It needs no network.


_REPORT_STYLE = """
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


def report_page(shown: bench.ShownBench, graph: DiagramDocument, made: str) -> str:
    """Return the HTML of the report; ``made`` has its date and version in words."""
    first = graph.documents[0]
    policy = re.search(r'<meta http-equiv="Content-Security-Policy"[^>]*>', script("page.html"))
    assert policy is not None
    parts = {
        "policy": policy[0],
        "title": html.escape(shown.title),
        "sentence": html.escape(shown.sentence),
        "made": html.escape(made),
        "style": script("diagram.css") + _colours() + _REPORT_STYLE,
        "still": html.escape(to_text(first, scene(first).expanded)),
        "sections": sections_html(shown),
        "document": packed_text(to_json(graph)),
        "layout": packed_text(script("layout.js")),
        "script": script("page.js").replace("</script", "<\\/script"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _PAGE)


def write_report(shown: bench.ShownBench, graph: DiagramDocument, made: str, path: str | os.PathLike[str]) -> Path:
    """Write :func:`report_page` to a file atomically.

    Raises:
        StorageError: it cannot be written; an older file is still there.
    """
    return write_file(path, report_page(shown, graph, made))


def _colours() -> str:
    lines = "".join(f"--pb-{name}:light-dark({shade.light},{shade.dark});" for name, shade in controls().items())
    return f"html{{{lines}}}"


NO_KERNEL = (
    "This is the bench as it was saved. Its controls need a kernel: run the cell again to choose, compile and compare."
)
_ROWS = 60  # rows of a table in a saved output; all of them are in the saved file
_POINTS = 200
_CELL = 600  # letters of a text
_NAME = 20  # letters of a name that stands in one line
_TEXT = 20_000
_SAMPLES = 100_000  # bytes of samples
_LONGEST = LIMIT * 2 // 3  # bytes of the page: our own type needs room, too

_STYLE = """<style>
body[data-jp-theme-light="false"] .pb-still img{color-scheme:dark}
body[data-jp-theme-light="true"] .pb-still img{color-scheme:light}
.pb-still img{max-width:100%}
.pb-still .pb-picture{max-height:800px;overflow:auto;margin:4px 0}
.pb-still .pb-picture img{max-width:none}
.pb-still .pb-table{overflow-x:auto;margin:4px 0}
.pb-still table{margin:0;border-collapse:collapse}
.pb-still :is(td,th){text-align:left;vertical-align:top;padding:2px 16px 2px 0;overflow-wrap:break-word}
.pb-still :is(td,th).pb-number{text-align:right;font-variant-numeric:tabular-nums}
.pb-still pre{white-space:pre;overflow-x:auto}
.pb-still .pb-why{opacity:.8}
</style>"""


def bench_bundle(shown: bench.ShownBench, graph: DiagramDocument) -> dict[str, Any]:
    """Return the saved output of a bench beside its widget: HTML, and our own MIME type for the live diagram.

    Both together stay below the size limit of one output: where they do not fit, the picture is left out first, then
    the graph, then rows.
    """
    page = bench_html(shown, graph)
    data = bench.shown_to_json(shortened(shown))
    room = LIMIT - len(page.encode()) - _bytes(data)
    data["graph"] = document_data(graph, max(room, 0))
    return {"text/html": page, **({bench.BENCH_MIME_TYPE: data} if room > 0 else {})}


def bench_html(shown: bench.ShownBench, graph: DiagramDocument) -> str:
    """Return a bench as HTML of bounded size, in the style of the page around it, with a note instead of controls."""
    short = shortened(shown)
    page = _html(short, picture_html(graph))
    if len(page.encode()) > _LONGEST:  # our own type has the samples, too
        short = replace(short, samples=replace(short.samples, samples=()))
        page = _html(short, picture_html(graph))
    if len(page.encode()) > _LONGEST:
        page = _html(short, "")
    if len(page.encode()) > _LONGEST:
        page = _html(replace(short, chart=bench.Chart(), tables=(), failures=(), code=""), "")
    return page


def _html(shown: bench.ShownBench, picture: str) -> str:
    headline = f"<p><b>{html.escape(shown.title)}</b> &nbsp; {html.escape(shown.sentence)}</p>"
    said = f'<p class="pb-why">{html.escape(NO_KERNEL)}</p>'
    return f'{_STYLE}\n<div class="pb-still">{headline}{said}{picture}{sections_html(shown)}</div>'


def _bytes(data: Any) -> int:
    return len(json.dumps(data, ensure_ascii=False).encode())


def sections_html(shown: bench.ShownBench) -> str:
    """Return everything but the diagram as HTML, section by section."""
    tables = {table.title: table_html(table) for table in shown.tables}
    parts = [
        _section("Settings", facts_html(shown.settings)),
        _section("Cannot be captured", "".join(map(_failure_html, shown.failures))),
        _section("What the graph takes for granted", _list_html(shown.assumptions)),
        _section("Accuracy against latency", chart_html(shown.chart)),
        *(_section(title, text) for title, text in tables.items()),
        _section(f"{shown.samples.first} against {shown.samples.second}", _samples_html(shown.samples)),
        _section("Code", f"<pre><code>{html.escape(shown.code)}</code></pre>" if shown.code else ""),
        _section("Environment", facts_html(shown.environment)),
    ]
    return "".join(parts)


def _samples_html(shown: bench.ShownSamples) -> str:
    caption = f"<p>{html.escape(shown.caption)}</p>" if shown.caption else ""
    return caption + samples_html(shown, _SAMPLES) if shown.first else ""


def picture_html(graph: DiagramDocument) -> str:
    """Return the first graph as an image; as text where it is too large or cannot be laid out."""
    document = graph.documents[0]
    view = scene(document)
    svg, text = render(view), to_text(document, view.expanded)
    text = f"{text[:_TEXT]}{'…' if len(text) > _TEXT else ''}"
    if svg is None or len(svg) > TALLEST:
        return f"<pre>{html.escape(text)}</pre>"
    return f'<div class="pb-picture">{_image(svg, description(view))}</div>{for_strict_pages_only(text)}'


def chart_html(chart: bench.Chart) -> str:
    """Return the chart as an image, so that its text is never parsed as markup; empty without runs."""
    svg = chart_svg(chart)
    return _image(svg, chart.title) if svg else ""


def table_html(table: bench.Table) -> str:
    """Return a table as HTML, without columns that say nothing; empty without rows."""
    if not table.rows:
        return ""
    columns = [i for i in range(len(table.columns)) if any(row[i] not in ("", "–") for row in table.rows)]

    def row(tag: str, cells: tuple[str, ...]) -> str:
        kinds = [' class="pb-number"' if i in table.numbers else "" for i in columns]
        made = (f"<{tag}{kind}>{_breakable(cells[i])}</{tag}>" for kind, i in zip(kinds, columns, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    head = f"<thead>{row('th', table.columns)}</thead>" if any(table.columns) else ""
    body = "".join(row("td", cells) for cells in table.rows)
    more = f"<p>and {table.more} more</p>" if table.more else ""
    return f'<div class="pb-table"><table>{head}<tbody>{body}</tbody></table></div>{more}'


def _breakable(text: str) -> str:
    """Return the text of a cell, in which a line may also end within a long name, before one of its parts."""
    escaped = html.escape(text)
    return re.sub(r"(?<=\w)(?=[._/][A-Za-z]\w+)", "<wbr>", escaped) if len(text) > _NAME else escaped


def facts_html(facts: tuple[bench.Fact, ...]) -> str:
    """Return names and values as HTML."""
    return table_html(bench.Table("", ("", ""), tuple((fact.name, fact.value) for fact in facts)))


def _section(title: str, content: str) -> str:
    return f"<h4>{html.escape(title)}</h4>{content}" if content else ""


def _list_html(items: tuple[str, ...]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>" if items else ""


def _failure_html(failure: bench.ShownFailure) -> str:
    name = html.escape(failure.fqn or "the model itself")
    place = f" at {html.escape(failure.place)}" if failure.place else ""
    code = f"<pre><code>{html.escape(failure.code)}</code></pre>" if failure.code else ""
    state = f" ({html.escape(failure.state)})" if failure.state else ""
    return (
        f"<p><b>{html.escape(failure.title)}</b>: {name}, {html.escape(failure.type)}{place}{state}</p>{code}"
        f"<p>{html.escape(failure.remedy)}</p>"
    )


def _image(svg: str, about: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{html.escape(about)}" src="data:image/svg+xml;base64,{data}"/>'


def shortened(shown: bench.ShownBench) -> bench.ShownBench:
    """Return a copy with as many rows and letters as an output may keep."""
    tables = tuple(
        replace(table, rows=table.rows[:_ROWS], more=table.more + max(len(table.rows) - _ROWS, 0))
        for table in shown.tables
    )
    chart = replace(shown.chart, points=shown.chart.points[-_POINTS:])
    code = shown.code if len(shown.code) < _TEXT else shown.code[:_TEXT] + "\n# …"
    short: bench.ShownBench = _cut(
        replace(
            shown,
            settings=shown.settings[:_ROWS],
            failures=shown.failures[:20],
            assumptions=shown.assumptions[:20],
            tables=tables,
            chart=chart,
            code="",
            samples=bench.ShownSamples(),
        )
    )
    return replace(short, code=code, samples=shown.samples)


def _cut(value: Any) -> Any:
    """Return the value with long texts truncated."""
    if isinstance(value, str):
        return value if len(value) <= _CELL else value[: _CELL - 1] + "…"
    if isinstance(value, tuple):
        return tuple(map(_cut, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _cut(getattr(value, field.name)) for field in fields(value)})
    return value
