"""The sensitivity of layers as a table, bars and text."""

from __future__ import annotations

import html
import json
import math
from typing import TYPE_CHECKING, Any

from prepbench.search.sensitivity import Sensitivity, SensitivityRow
from prepbench.views.charts import OTHER
from prepbench.views.profiles import BARS, aligned, bar_figure, bars, short_name

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

# of candidates in their order; neighbours also differ in brightness
_COLOURS = (OTHER, "#D08A2E", "#5BA58C", "#9A6FB0", "#767A80")
_PALE = 0.45


def sensitivity_table(found: Sensitivity, candidate: str | None = None) -> pandas.DataFrame:
    """Return one row for each layer, numbers as numbers; for a single candidate, with all its columns."""
    import pandas

    first = next(iter(found.candidates))
    rows = [row for row in found.rows if row.candidate == (first if candidate is None else candidate)]
    columns: dict[str, list[Any]] = {"layer": [row.fqn for row in rows], "type": [row.type for row in rows]}
    if candidate is None:
        for name in found.candidates:
            of_candidate = [row for row in found.rows if row.candidate == name]
            columns[f"{name} {_word(found)}"] = [row.effect for row in of_candidate]
            if found.metric:
                columns[f"{name} drop"] = [row.drop for row in of_candidate]
    else:
        columns[f"estimated {_word(found)}"] = [row.estimated for row in rows]
        columns[f"exact {_word(found)}"] = [row.exact for row in rows]
        if found.metric:
            columns[found.metric] = [row.metric for row in rows]
            columns["drop"] = [row.drop for row in rows]
        columns["own SQNR"] = [row.own_sqnr for row in rows]
        columns["weights MB"] = [None if row.weights_bytes is None else row.weights_bytes / 1e6 for row in rows]
    numbers = list(columns)[2:]
    columns["multiplications"] = [row.multiplications for row in rows]
    columns["parameters"] = [row.parameters for row in rows]
    if candidate is not None:
        columns["refused because"] = [row.refusal for row in rows]
    return pandas.DataFrame(columns).astype(dict.fromkeys(numbers, float))


def sensitivity_figure(found: Sensitivity) -> go.Figure:
    """Draw the layers with the highest cost, a bar for each candidate, paler where only estimated."""
    layers = _worst_layers(found)[:BARS]
    is_drop = any(row.drop is not None for row in found.rows)
    traces = []
    for index, name in enumerate(found.candidates):
        rows = {row.fqn: row for row in found.rows if row.candidate == name}
        shown = [rows[fqn] for fqn in layers]
        values = [_bar(row, is_drop) for row in shown]
        texts = [_text(found, row, is_drop) for row in shown]
        colour = _COLOURS[index % len(_COLOURS)]
        trace = bars(
            name,
            [short_name(fqn) for fqn in layers],
            [0.0 if value is None else value for value in values],
            texts,
            [colour] * len(shown),
            [_hover(found, row) for row in shown],
        )
        trace["marker"]["opacity"] = [1.0 if row.exact is not None else _PALE for row in shown]
        traces.append(trace)
    if is_drop:
        axis = f"drop of {html.escape(found.metric)}"
    else:
        axis = "SQNR of the model's output in dB: short is bad" if found.unit == "dB" else "divergence in nats"
    return bar_figure(
        "What each layer costs", found.caption, traces, len(traces) * len(layers), legend=True, axis=axis,
        from_zero=False,
    )  # fmt: skip


def sensitivity_text(found: Sensitivity) -> str:
    """Return the layers with the highest cost as aligned text; ``~`` marks an estimate."""
    is_drop = any(row.drop is not None for row in found.rows)
    layers = _worst_layers(found)
    by_pair = {(row.fqn, row.candidate): row for row in found.rows}
    header = ["layer", *(f"{name} {'drop' if is_drop else _word(found)}" for name in found.candidates)]
    body = [
        [short_name(fqn), *(_text(found, by_pair[fqn, name], is_drop) for name in found.candidates)]
        for fqn in layers[:BARS]
    ]
    return aligned(header, body, len(layers) - BARS, found.caption)


def bundle(found: Sensitivity) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    chart = json.loads(found.figure().to_json())
    by_layer = found.table().set_index("layer", drop=False)
    table = by_layer.loc[_worst_layers(found)[:BARS]].to_html(
        index=False, na_rep="–", float_format=lambda value: f"{value:.3g}"
    )
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": {"displaylogo": False, "responsive": True}},
        "text/html": f"{table}<small>{html.escape(found.caption)}</small>",
        "text/plain": repr(found),
    }


def _worst_layers(found: Sensitivity) -> list[str]:
    """Return all layers, sorted by their highest cost with any candidate."""
    ordered = [row.fqn for row in found.worst(max(1, len(found.rows)))]
    return list(dict.fromkeys([*ordered, *(row.fqn for row in found.rows)]))


def _word(found: Sensitivity) -> str:
    return "SQNR" if found.unit == "dB" else "nats"


def _bar(row: SensitivityRow, is_drop: bool) -> float | None:
    value = row.drop if is_drop else row.effect
    return value if value is not None and math.isfinite(value) else None


def _text(found: Sensitivity, row: SensitivityRow, is_drop: bool) -> str:
    if row.refusal:
        return "refused"
    if is_drop:
        return "–" if row.drop is None else f"{row.drop:.3g}".replace("-", "−")
    if row.effect is None:
        return "–"
    number = f"{row.effect:.1f}" if found.unit == "dB" else f"{row.effect:.3g}"
    return ("" if row.exact is not None else "~") + number.replace("-", "−")


def _hover(found: Sensitivity, row: SensitivityRow) -> str:
    lines = [f"<b>{html.escape(row.fqn or '(the model itself)')}</b>", html.escape(f"{row.type}, {row.candidate}")]
    if row.refusal:
        lines.append(html.escape(row.refusal))
    for word, value in (("measured", row.exact), ("estimated", row.estimated)):
        lines += [f"{word}: {value:.4g} {found.unit}"] if value is not None else []
    lines += [f"{html.escape(found.metric)} {row.metric:.4g}, drop {row.drop:.3g}"] if row.drop is not None else []
    lines += [f"the layer itself: {row.own_sqnr:.1f} dB"] if row.own_sqnr is not None else []
    lines += [f"{row.multiplications:,} multiplications, {row.parameters:,} parameters"]
    return "<br>".join(lines).replace("%{", "% {")
