"""Tables as pandas data frames."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from prepbench.capture.sizes.axis import counted_places
from prepbench.document.model import Failure
from prepbench.strict_pages import for_strict_pages

if TYPE_CHECKING:
    import pandas

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

    columns = [field.name for field in fields(LayerReport)]
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
        rows: str = table.to_html(index=False, na_rep="", float_format="{:.1f}".format, formatters=_formatters(table))
    return f"<pre>{html.escape(chr(10).join(head))}</pre>" + (rows if len(table) else "")


_OF_EACH_LAYER = ("fqn", "sqnr")
_IN_SUMMARY = ("weights_bits", "activations_bits")


def _formatters(table: Any) -> dict[str, Any]:
    return {name: _cell for name in table.columns if table[name].dtype == object}


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
    """Return one row for each record of a dataclass, one column for each field; a source line becomes file, line and
    code.
    """
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
