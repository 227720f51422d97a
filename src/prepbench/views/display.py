"""Notebook outputs of results: a headline, a picture that needs neither kernel nor trust, and a table."""

from __future__ import annotations

import base64
import html
import json
import shutil
from collections.abc import Iterable
from dataclasses import fields
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from prepbench.capture.sizes.axis import counted_places
from prepbench.checks import check_switch, described
from prepbench.document.codec import to_json
from prepbench.document.hierarchy import differences, grouped
from prepbench.document.model import (
    MIME_TYPE,
    VERSION,
    DiagramDocument,
    Failure,
    Finding,
    GraphCollectionDocument,
    alike_failures,
)
from prepbench.errors import InputError
from prepbench.strict_pages import for_strict_pages, for_strict_pages_only
from prepbench.views.dot import HINT, description, render
from prepbench.views.page import packed, sizes_text, to_text
from prepbench.views.palette import STATUS
from prepbench.views.scene import Scene, scene

if TYPE_CHECKING:
    import pandas

# Notebook output of fixes: a card for each, with its change before and after, its proof and its assumption.


_FIXES_STYLE = """<style>
.pb-fix{border:1px solid #8888;border-radius:4px;padding:6px 10px;margin:6px 0}
.pb-fix>div{display:flex;gap:12px;flex-wrap:wrap}
.pb-fix figure{flex:1 1 300px;min-width:0;margin:4px 0}
.pb-fix pre{margin:0;overflow-x:auto;white-space:pre;background:none;text-align:left}
</style>"""


def fixed_bundle(fixed: Any) -> dict[str, Any]:
    """Return a headline, a card for each fix, and one for each remaining failure."""
    count, left = len(fixed.applied), len(fixed.remaining)
    verdict = "can be captured as one graph" if fixed.passed else "still fails"
    headline = f"<b>{html.escape(type(fixed.model).__name__)}</b> {verdict}: {count} fixed, {left} left"
    cards = [_fix_card(fix) for fix in fixed.applied] + [_draft_card(draft) for draft in fixed.remaining]
    return {"text/plain": repr(fixed), "text/html": f"{_FIXES_STYLE}\n<p>{headline}</p>{''.join(cards)}"}


def fix_cards(fixes: Iterable[Any]) -> str:
    """Return a card for each fix; empty without any."""
    cards = "".join(_fix_card(fix) for fix in fixes)
    return f"{_FIXES_STYLE}\n<p>Fixes, which <code>pb.fix(model, samples)</code> applies:</p>{cards}" if cards else ""


def _fix_card(fix: Any) -> str:
    lines = [f"✓ <b>{_name(fix.fqn)}</b> {html.escape(fix.place)}: {html.escape(fix.kind)}"]
    lines += [f"<small>Right if {html.escape(fix.right_if)}. Proof: {html.escape(fix.proof)}.</small>"]
    if fix.assumption:
        lines.append(f"<small>Assumes: {html.escape(fix.assumption)}.</small>")
    return f'<div class="pb-fix">{"<br/>".join(lines)}{_change(fix.diff)}</div>'


def _draft_card(draft: Any) -> str:
    failure = draft.failure
    place = f" {PurePath(failure.source.file).name}:{failure.source.line}" if failure.source else ""
    lines = [f"✕ <b>{_name(failure.fqn)}</b>{html.escape(place)}: {html.escape(failure.kind)}"]
    lines.append(f"<small>No fix: {html.escape(draft.reason)}</small>")
    what = "Draft, not proven" if draft.fix is None else f"Draft, proven but for that: {html.escape(draft.fix.proof)}"
    change = f"<small>{what}: {html.escape(draft.kind)}</small>{_change(draft.diff)}" if draft.diff else ""
    if draft.fix is not None:
        lines.append(f"<small><code>model_with({html.escape(repr(draft.fqn))})</code> applies it all the same.</small>")
    frame = f"<pre>{html.escape(failure.frame)}</pre>"
    return f'<div class="pb-fix">{"<br/>".join(lines)}{frame}{change}</div>'


def _name(fqn: str) -> str:
    return html.escape(fqn or "the model itself")


def _change(diff: str) -> str:
    """Return the lines before and after, side by side."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    sides = (("before", " -"), ("after", " +"))
    parts = []
    for title, signs in sides:
        text = "\n".join("⋯" if line.startswith("@@") else line[1:] for line in lines if line[:1] in f"{signs}@")
        parts.append(f"<figure><figcaption><small>{title}</small></figcaption><pre>{html.escape(text)}</pre></figure>")
    return f"<div>{''.join(parts)}</div>" if diff else ""


LEVELS = {"module": "module", "aten": "ATen"}
"""How the levels of graphs are called."""

LIMIT = 300_000  # bytes of one saved output
TALLEST = 100_000  # characters of a picture in a saved output, where there may be others
_READABLE = 60_000  # bytes of a document that is saved as it is
_TOO_LARGE = (
    "This graph is too large to be saved in the notebook with its operations. It is live with .diagram(), and in a "
    "file with .save('model.graph.json') or .to_html('model.html')."
)

# The picture of an <img> follows the colour scheme of the element around it; a trusted page in JupyterLab's dark
# theme says so here.
# Where styles are stripped (untrusted notebooks, GitHub) it follows the browser's own preference.
_STYLE = """<style>
body[data-jp-theme-light="false"] .pb-picture img{color-scheme:dark}
body[data-jp-theme-light="true"] .pb-picture img{color-scheme:light}
.pb-picture{max-height:720px;overflow:auto;margin:4px 0}
.pb-picture img{max-width:none}
.pb-sizes{font-size:smaller;opacity:.8}
table.pb-failures.pb-failures tr>td{text-align:left;vertical-align:top}
table.pb-failures.pb-failures tr>th{text-align:left}
table.pb-failures tr pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;background:none;text-align:left}
</style>"""  # the class twice outweighs the rule by which JupyterLab and nbconvert align tables to the right


def collection_bundle(collection: Any) -> dict[str, Any]:
    """Return the module graphs of a model, with a row for each failure."""
    document = collection.document()
    return _bundle(document, collection.failures, repr(collection), "module graph")


def captured_bundle(captured: Any) -> dict[str, Any]:
    """Return a captured ATen graph, with a row for each leaf."""
    return _bundle(captured.document(), captured.leaves, repr(captured), "ATen graph")


def traceability_bundle(report: Any) -> dict[str, Any]:
    """Return one line for each check, a row for each failure, and a card for each fix."""
    lines = []
    for check in report.checks:
        mark = "✓" if check.passed else "✕"
        lines.append(f"<tr><td>{mark} {check.state}</td><td><b>{html.escape(check.name)}</b></td></tr>")
    fixes = fix_cards(report.fixes)
    page = (
        f'{_STYLE}\n<p><b>{html.escape(report.model_type)}</b> {report.verdict}</p><table class="pb-failures">'
        f"{''.join(lines)}</table>\n{failures_html(report.failures)}{fixes}"
    )
    return {"text/plain": repr(report), "text/html": page}


def preparation_bundle(report: Any) -> dict[str, Any]:
    """Return the changes, the operations that were kept with their reason, and the difference of outputs."""
    headline, _, rest = repr(report).partition("\n")
    summary = "".join(f"<li>{html.escape(line.strip())}</li>" for line in rest.splitlines())
    changes = [(c.module, c.module_type, c.was, c.why, c.source) for c in report.changes]
    kept = [(k.fqn or "(model)", k.node, k.operation, k.why, k.source) for k in report.kept]
    page = (
        f"{_STYLE}\n<p><b>{html.escape(headline)}</b></p><ul>{summary}</ul>"
        + _folded(f"{len(changes)} changes", ("module", "class", "was", "why", "where"), changes)
        + _folded(f"{len(kept)} kept", ("in", "node", "operation", "why", "where"), kept)
    )
    return {"text/plain": repr(report), "text/html": page}


def validation_bundle(report: Any) -> dict[str, Any]:
    """Return the violations of the guidelines."""
    rows = [(v.fqn or "(model)", v.kind, v.operation, v.why, v.source) for v in report.violations]
    verdict = "keeps all guidelines" if report.passed else f"breaks guidelines in {len(rows)} places"
    page = f"{_STYLE}\n<p><b>{html.escape(report.model_type)}</b> {verdict}</p>"
    page += _rows_html(("module", "kind", "operation", "why", "where"), rows) if rows else ""
    return {"text/plain": repr(report), "text/html": page}


def before_after_bundle(pair: Any) -> dict[str, Any]:
    """Return two module graphs side by side."""
    both = combined(pair.before, pair.after, compare=True)
    failures = (pair.before.failures, pair.after.failures)
    return _with_document({"text/plain": repr(pair), "text/html": _side_by_side(both, failures)}, both)


def diagram_bundle(whole: DiagramDocument) -> dict[str, Any]:
    """Return the still form of a diagram: one graph is a picture that every reader shows; of several, all are in HTML,
    side by side.
    """
    bundle: dict[str, Any] = {"text/plain": "\n\n".join(map(to_text, whole.documents))}
    view = scene(whole.documents[0])
    # what shows an SVG alone asks the reader's system, not the page, which is light almost everywhere
    svg = render(view, light_only=True) if len(whole.documents) == 1 else None
    if svg is not None and len(svg) < TALLEST:
        bundle["image/svg+xml"] = svg
    else:
        bundle["text/html"] = _side_by_side(whole)
    data = document_data(whole, LIMIT - sum(len(value.encode()) for value in bundle.values()))
    return bundle if data is None else {**bundle, MIME_TYPE: data}


def _side_by_side(whole: DiagramDocument, failures: tuple[tuple[Failure, ...], ...] = ()) -> str:
    """Return all graphs of a diagram in HTML, with the marks of what differs between them."""
    parts = []
    for i, document in enumerate(whole.documents):
        marks = {mark.id: str(mark.change) for mark in whole.marks if mark.document == i}
        view = scene(document, marks=marks)
        svg = render(view)
        if svg is not None and len(svg) > TALLEST:
            svg = None
        kind = " ".join([f"{LEVELS[document.level]} graph", *whole.titles[i : i + 1]])
        page = _page(document, view, failures[i] if failures else (), kind, svg)
        parts.append(f'<div style="flex:1 1 320px;min-width:0;overflow:auto">{page}</div>')
    return f'<div style="display:flex;gap:16px;align-items:flex-start;flex-wrap:wrap">{"".join(parts)}</div>'


_SHOWN_ROWS = 200


def _folded(title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    """Return a collapsed table that opens with a click, also without a kernel."""
    if not rows:
        return ""
    return f"<details><summary>{html.escape(title)}</summary>{_rows_html(head, rows)}</details>"


def _rows_html(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row[:-1]) + f"<td>{_where(row[-1])}</td></tr>"
        for row in rows[:_SHOWN_ROWS]
    )
    more = f"<p>and {len(rows) - _SHOWN_ROWS} more: see .table()</p>" if len(rows) > _SHOWN_ROWS else ""
    return f'<table class="pb-failures"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{more}'


def _where(source: Any) -> str:
    if source is None:
        return ""
    place = f"{PurePath(source.file).name}:{source.line}"
    return f"{html.escape(place)}<br/><code>{html.escape(source.code)}</code>"


def axes_bundle(axes: Any) -> dict[str, Any]:
    """Return the table of all dims of all inputs; those that differ only in indices share a row."""
    table = axes_table(axes, alike=True)
    return {"text/plain": repr(axes), "text/html": table.to_html(index=False, border=0)}


def _bundle(document: GraphCollectionDocument, failures: tuple[Failure, ...], text: str, kind: str) -> dict[str, Any]:
    view = scene(document)
    page = _page(document, view, failures, kind, render(view))
    return _with_document({"text/plain": text, "text/html": page}, document)


def _with_document(bundle: dict[str, Any], document: GraphCollectionDocument | DiagramDocument) -> dict[str, Any]:
    """Add the document of the live diagram to the output. A document that would bloat the notebook is left out, with
    a hint how to see it.
    """
    room = LIMIT - sum(len(str(value).encode()) for value in bundle.values())
    data = document_data(document, room)
    if data is not None:
        return {**bundle, MIME_TYPE: data}
    return {**bundle, "text/html": f"{bundle['text/html']}<p>{html.escape(_TOO_LARGE)}</p>"}


def document_data(document: GraphCollectionDocument | DiagramDocument, room: int = LIMIT) -> dict[str, Any] | None:
    """Return the saved form of a document: readable when small, compressed when larger, None beyond ``room`` bytes."""
    text = to_json(document)
    if len(text.encode()) <= min(_READABLE, room):
        data: dict[str, Any] = json.loads(text)
        return data
    small = {"version": VERSION, "gzip": base64.b64encode(packed(text)).decode()}
    return small if len(small["gzip"]) < room else None


def _page(
    document: GraphCollectionDocument, view: Scene, failures: tuple[Failure, ...], kind: str, svg: str | None
) -> str:
    legend = " &nbsp; ".join(
        f"{STATUS[status].glyph}&nbsp;{count}&nbsp;{STATUS[status].word}" for status, count in view.counts
    )
    operations = sum(node.op.startswith("call") for graph in document.graphs for node in graph.nodes)
    graphs = f"{len(document.graphs)} graphs, " if len(document.graphs) > 1 else ""
    name = html.escape(document.model_type)
    headline = f"<p><b>{name}</b> &nbsp; {kind}, {graphs}{operations} operations &nbsp;&nbsp; {legend}</p>"
    notes = findings_html(document.findings)
    sizes = html.escape(sizes_text(document, view))
    legend_of_sizes = f'<p class="pb-sizes">{sizes}</p>\n' if sizes and svg is not None else ""
    picture = _picture(document, view, svg)
    return f"{_STYLE}\n{headline}\n{picture}\n{legend_of_sizes}{failures_html(failures)}{notes}"


def _picture(document: GraphCollectionDocument, view: Scene, svg: str | None) -> str:
    """Return the diagram as an image; an indented tree where it cannot be laid out or is too large."""
    if svg is None:
        why = HINT if shutil.which("dot") is None else "This graph is too large for a picture."
        return f"<pre>{html.escape(to_text(document, view.expanded))}</pre><p>{html.escape(why)}</p>"
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img alt="{html.escape(description(view))}" src="data:image/svg+xml;base64,{data}"/>'
    return f'<div class="pb-picture">{image}</div>{for_strict_pages_only(to_text(document, view.expanded))}'


def failures_html(failures: tuple[Failure, ...]) -> str:
    """Return a table of failures: module, reason, place, line of code and remedy; empty without any."""
    if not failures:
        return ""
    rows = "".join(_failure_row(failure) for failure in alike_failures(failures))
    head = "".join(f"<th>{name}</th>" for name in ("module", "reason", "where", "code and remedy"))
    return f'<table class="pb-failures"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def findings_html(findings: tuple[Finding, ...]) -> str:
    """Return a list of the graph's assumptions; empty without any."""
    if not findings:
        return ""
    items = "".join(
        f"<li><b>{html.escape(finding.kind)}</b> {html.escape(finding.message)}"
        + (f" <code>{html.escape(finding.source.code)}</code>" if finding.source else "")
        + f" {html.escape(finding.remedy)}</li>"
        for finding in findings
    )
    return f'<ul class="pb-findings">{items}</ul>'


def _failure_row(failure: Failure) -> str:
    source = failure.source
    where = f"{PurePath(source.file).name}:{source.line}" if source else ""
    cells = [
        f"<b>{html.escape(failure.fqn or 'the model itself')}</b><br/>{html.escape(failure.module_type)}",
        f"{html.escape(failure.kind)}<br/><small>{html.escape(failure.exception_type)}</small>",
        html.escape(where),
        # a column of its own would be narrow and, beside long lines of code, outside of the page
        f"<pre>{html.escape(failure.frame or (source.code if source else ''))}</pre>"
        f'<div style="margin-top:4px"><b>Remedy:</b> {html.escape(failure.remedy)}</div>',
    ]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


# Turn results into the documents of a diagram: one, several levels, or two side by side.


def combined(*things: Any, compare: bool = False, titles: tuple[str, ...] = ()) -> DiagramDocument:
    """Combine results into one document.

    Args:
        things: results with a ``document()``, such as a ``GraphCollection`` or a ``Captured``, or documents.
        compare: two of them side by side, with differences marked; else one at a time, to switch between.
        titles: a name for each.

    Raises:
        InputError: nothing to show, something without a document, or a comparison of more or fewer than two.
    """
    check_switch("compare", compare)
    if not isinstance(titles, tuple | list) or not all(isinstance(title, str) for title in titles):
        raise InputError(f"titles must be a list of texts, got {described(titles)}. Write titles=('before', 'after').")
    documents = tuple(_document(thing) for thing in things)
    if not documents:
        raise InputError("There is nothing to show: give at least one collection or captured graph.")
    if compare and len(documents) != 2:
        raise InputError(f"Two graphs can be compared side by side; got {len(documents)}.")
    if titles and len(titles) != len(documents):
        raise InputError(f"There are {len(documents)} graphs and {len(titles)} titles.")
    marks = differences(*documents) if compare else ()
    names = titles or (("before", "after") if compare else ())
    return DiagramDocument(documents, tuple(names), "compare" if compare else "levels", marks=marks)


def diagram(*things: Any, compare: bool = False, titles: tuple[str, ...] = ()) -> Any:
    """Return the live diagram of one or several results: an anywidget with the traits ``selected``, ``view``,
    ``overlay``.

    Args:
        things: results with a ``document()``: a ``GraphCollection``, ``Captured`` or ``CompiledModel``; or documents.
        compare: two of them side by side with linked selection and marked differences, such as a model before and after
            preparation, or a captured graph beside the compiled one. Else one at a time, such as the module graph and
            the ATen graph of a model, with the selection carried over by name.
        titles: a name for each.

    Returns:
        The widget, which a notebook shows as the last value of a cell.

    Raises:
        InputError: nothing to show, something without a document, or a comparison of more or fewer than two.

    Example:
        >>> import torch, prepbench as pb
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2)).eval()
        >>> both = pb.diagram(pb.recursive_trace(model), pb.capture(model, torch.randn(3, 4)))
        >>> both.height
        '620px'
    """
    from prepbench._display import view

    return view("widgets.diagram", "diagram", combined(*things, compare=compare, titles=titles), things)


def _document(thing: Any) -> GraphCollectionDocument:
    found = thing if isinstance(thing, GraphCollectionDocument) else getattr(thing, "document", None)
    if callable(found):
        found = found()
    if not isinstance(found, GraphCollectionDocument):
        raise InputError(
            f"A {type(thing).__name__} has no graph to show. Give what recursive_trace or capture returned, or a "
            "document read from a file."
        )
    return found if found.groups else grouped(found)


# Tables as pandas data frames.


_FAILURE_COLUMNS = ["module", "type", "reason", "message", "file", "line", "code", "remedy"]


def failures_table(failures: Iterable[Failure]) -> pandas.DataFrame:
    """Return one row for each module that could not be captured: why, where, and how to change it."""
    import pandas

    rows = []
    for failure in failures:
        source = failure.source
        place = (source.file, source.line, source.code) if source else ("", None, "")
        message = f"{failure.exception_type}: {failure.message}"
        part = failure.part if failure.fqn or failure.lines else "(the model itself)"
        rows.append((part, failure.module_type, failure.kind, message, *place, failure.remedy))
    return pandas.DataFrame(rows, columns=_FAILURE_COLUMNS)


def traceability_table(report: Any) -> pandas.DataFrame:
    """Return one row for each passed check and for each reason why another failed."""
    import pandas

    rows: list[list[Any]] = []
    for check in report.checks:
        if check.passed:
            rows.append([check.name, True, check.equal, *[""] * len(_FAILURE_COLUMNS)])
        rows += [[check.name, False, check.equal, *row] for row in failures_table(check.failures).to_numpy().tolist()]
    return pandas.DataFrame(rows, columns=["check", "passed", "equal", *_FAILURE_COLUMNS])


def axes_table(axes: Any, *, alike: bool = False) -> pandas.DataFrame:
    """Return one row for each dim of each tensor input: its sizes in the samples, whether it is dynamic, its symbol.

    Args:
        axes: the axes.
        alike: one row for inputs of one argument that agree.
    """
    import pandas

    places: dict[tuple[Any, ...], list[str]] = {}
    for axis in axes.axes:
        said = (axis.dim, ", ".join(map(str, axis.sizes)), axis.dynamic, axis.symbol or "", axis.limits)
        top = axis.path.partition(".")[0].partition("[")[0]
        places.setdefault((top if alike else axis.path, *said), []).append(axis.path)
    # an object of tensors of several ranks has some dims in some of them only
    among = {dim: [axis.path for axis in axes.axes if axis.dim == dim] for dim in {axis.dim for axis in axes.axes}}
    rows = [(", ".join(counted_places(paths, among[said[0]])), *said) for (_, *said), paths in places.items()]
    return pandas.DataFrame(rows, columns=["argument", "dim", "sizes", "dynamic", "symbol", "limits"])


def generated_table(rows: Any, decode: Any) -> pandas.DataFrame:
    """Return one row for each prompt, and a column for each candidate with its generated text or token numbers.

    A notebook shows texts in full, side by side and with their line breaks.
    """
    import pandas

    class Texts(pandas.DataFrame):
        def _repr_html_(self) -> str:
            return for_strict_pages(texts_html(list(self.columns), self.to_numpy().tolist()))

    def text(tokens: tuple[int, ...]) -> str:
        return " ".join(map(str, tokens)) if decode is None else str(decode(list(tokens)))

    columns = {row.name: [text(one) for batch in row.generation.tokens for one in batch] for row in rows}
    table = Texts(columns)
    table.index.name = "prompt"
    return table


def texts_html(names: list[str], rows: list[list[str]]) -> str:
    """Return texts in columns of equal width, with their line breaks."""
    style = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:anywhere"
    head = "".join(f'<th style="text-align:left">{html.escape(str(name))}</th>' for name in ("prompt", *names))
    body = "".join(
        f'<tr><td style="vertical-align:top">{index}</td>'
        + "".join(f'<td style="{style}">{html.escape(str(cell))}</td>' for cell in row)
        + "</tr>"
        for index, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def layers_table(report: Any) -> pandas.DataFrame:
    """Return one row for each layer of a compile report: how it was quantized, or why not, and what was pruned."""
    import pandas

    from prepbench.quantize import LayerReport

    names = [field.name for field in fields(LayerReport)]
    # bits alone name most formats
    columns = [name for name in names if name != "weights_format" or any(row.weights_format for row in report.layers)]
    rows = [[*(getattr(row, name) for name in columns), row.summary] for row in report.layers]
    table = pandas.DataFrame(rows, columns=[*columns, "summary"])
    if not report.pruned:
        return table
    pruned = {row.fqn: (row.sparsity, row.removed_channels, row.summary) for row in report.pruned}
    if not report.layers:
        table = pandas.DataFrame({"fqn": list(pruned), "type": [row.type for row in report.pruned]})
    for place, name in enumerate(("sparsity", "removed_channels", "pruning")):
        table[name] = [pruned[fqn][place] if fqn in pruned else None for fqn in table["fqn"]]
    return table


def tensors_table(report: Any) -> pandas.DataFrame:
    """Return one row for each parameter, buffer and constant of the model, with its outcome."""
    from prepbench.quantize import TensorReport

    return records_table(report.tensors, TensorReport)


def report_html(report: Any) -> str:
    """Return a compile report for a notebook: values that all layers share are stated once and have no column."""
    import pandas

    table = report.table()
    head = [report.headline]
    if len(table) > 1:
        texts = {name: list(map(_cell, table[name])) for name in table.columns if name not in _OF_EACH_LAYER}
        alike = {name: cells[0] for name, cells in texts.items() if len(set(cells)) == 1}
        # the summary says the bits
        table = table.drop(columns=[*alike, *({"weights_bits", "activations_bits"} - set(alike))])
        said = [f"{name} {text}" for name, text in alike.items() if text and name not in _IN_SUMMARY]
        head += [f"  all layers: {', '.join(said)}"] if said else []
    table = table.rename(columns={"sqnr": "sqnr dB"})
    with pandas.option_context("display.max_colwidth", 80):
        formatters = {name: _cell for name in table.columns if table[name].dtype == object}
        rows: str = table.to_html(index=False, na_rep="", float_format="{:.1f}".format, formatters=formatters)
    return f"<pre>{html.escape(chr(10).join(head))}</pre>" + (rows if len(table) else "")


_OF_EACH_LAYER = ("fqn", "sqnr")
_IN_SUMMARY = ("weights_bits", "activations_bits")


def _cell(value: Any) -> str:
    if value is None or value != value or value == ():
        return ""
    if isinstance(value, tuple):
        return " to ".join(map(_cell, value)) if len(value) == 2 else ", ".join(map(_cell, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def explanation_table(layers: Any) -> pandas.DataFrame:
    """Return one row for each quantizable layer: its settings, the deciding rule, and the rules that it overrides."""
    import pandas

    rows = [(row.fqn, row.type, row.summary, row.rule, ", ".join(row.overruled)) for row in layers]
    return pandas.DataFrame(rows, columns=["layer", "type", "precision", "rule", "overruled"])


def records_table(records: Iterable[Any], kind: type) -> pandas.DataFrame:
    """Return a row for each record of a dataclass, a column for each field; source lines become file, line and code."""
    import pandas

    names = [field.name for field in fields(kind)]
    plain = [name for name in names if name != "source"]
    columns = [*plain, *(("file", "line", "code") if "source" in names else ())]
    rows = []
    for record in records:
        source = getattr(record, "source", None)
        place = ((source.file, source.line, source.code) if source else ("", None, "")) if "source" in names else ()
        rows.append([*(getattr(record, name) for name in plain), *place])
    return pandas.DataFrame(rows, columns=columns)
