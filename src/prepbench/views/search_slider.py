"""A slider over budgets in the chart of a search: it shows the best within each, without a kernel."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import megabytes, milliseconds, number
from prepbench.search.objective import DROP, OBJECTIVES, Budget, costs_besides_drop
from prepbench.search.search_result import SearchCandidate, SearchResult
from prepbench.views.charts import FIRST, GRID, LINE, LOOK, OTHER, TEXT, cells_html, chart_bundle
from prepbench.views.layer_charts import aligned

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


_ROOM = 84


def slider_figure(result: SearchResult, budgets: Sequence[Budget]) -> go.Figure:
    """Draw the chart of a search with a slider over budgets, which marks the best candidate of each."""
    solved = [result if budget == result.budget else result.with_budget(budget) for budget in budgets]
    known = {each.name: each for one in (*solved, result) for each in one.candidates}
    charts = [search_figure(replace(one, candidates=_with_best(known, one))) for one in solved]
    start = next((at for at, budget in enumerate(budgets) if budget == result.budget), 0)
    figure = charts[start]
    own = [len(chart.data) for chart in charts]
    traces = [trace for chart in charts for trace in chart.data]
    figure.data = ()
    for at, trace in enumerate(traces):
        trace.visible = sum(own[:start]) <= at < sum(own[: start + 1])
        figure.add_trace(trace)
    steps = [
        {
            "label": html.escape(_label(budget)),
            "method": "update",
            "args": [
                {"visible": [sum(own[:at]) <= trace < sum(own[: at + 1]) for trace in range(len(traces))]},
                {name: chart.layout.to_plotly_json().get(name, []) for name in ("shapes", "annotations")}
                | {"title.text": chart.layout.title.text},
            ],
        }
        for at, (budget, chart) in enumerate(zip(budgets, charts, strict=True))
    ]
    figure.update_layout(sliders=[_slider(steps, start)], height=figure.layout.height + _ROOM)
    figure.update_layout(margin={"b": figure.layout.margin.b + _ROOM})
    return figure


def _with_best(known: dict[str, Any], one: SearchResult) -> tuple[Any, ...]:
    return tuple(each for each in {**known, one.best.name: one.best}.values())


def _label(budget: Budget) -> str:
    """Return a short text of a budget's bounds."""
    bounds = [(one.bound(budget), one.unit) for one in (DROP, *costs_besides_drop())]
    return ", ".join(f"{value:g} {unit}".rstrip() for value, unit in bounds if value is not None)


def _slider(steps: list[dict[str, Any]], start: int) -> dict[str, Any]:
    return {
        "active": start,
        "steps": steps,
        "currentvalue": {"prefix": "budget: ", "font": {"size": 13, "color": TEXT}},
        "font": {"size": 11, "color": TEXT},
        "bgcolor": GRID,
        "bordercolor": LINE,
        "activebgcolor": LINE,
        "tickcolor": LINE,
        "pad": {"t": 58, "b": 8},
        "x": 0,
        "len": 1,
    }


# Searches as tables, text and a chart: measured candidates filled, predicted ones hollow, the budget as lines.


_SHOWN = 12
_HEIGHT = 440


def search_table(result: SearchResult) -> pandas.DataFrame:
    """Return one row for each candidate, the best first, numbers as numbers."""
    import pandas

    rows = _ordered(result)
    columns: dict[str, list[Any]] = {
        "candidate": [row.name for row in rows],
        "target": [row.target for row in rows],
        "measured": [row.measured for row in rows],
        "in float": [len(row.float_layers) for row in rows],
        _metric(result): [row.metric for row in rows],
        f"{_metric(result)}, predicted": [row.predicted_metric for row in rows],
        "drop": [row.drop for row in rows],
        "drop, predicted": [row.predicted_drop for row in rows],
        "ms": [row.ms for row in rows],
        "ms, predicted": [row.predicted_ms for row in rows],
        "MB": [None if row.size_bytes is None else row.size_bytes / 1e6 for row in rows],
        "MB, predicted": [None if row.predicted_bytes is None else row.predicted_bytes / 1e6 for row in rows],
        "note": [row.note for row in rows],
    }
    words = ("candidate", "target", "measured", "in float", "note")
    return pandas.DataFrame(columns).astype({name: float for name in columns if name not in words})


def search_text(result: SearchResult) -> str:
    """Return the best rows as aligned text, with how the search ended."""
    header, *body = _cells(result)
    return aligned(header, body, len(result.candidates) - len(body), "\n".join([result.caption, *result.remarks]))


def search_html(result: SearchResult) -> str:
    """Return the best rows as an HTML table with the fonts and colours of the page."""
    remarks = "<br>".join(map(html.escape, (result.caption, *result.remarks)))
    return f"{cells_html(_cells(result))}<small>{remarks}</small>"


def search_bundle(result: SearchResult) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    return chart_bundle(search_figure(result), search_html(result), search_text(result))


def search_figure(result: SearchResult) -> go.Figure:
    """Draw the metric against latency or size, with the front as a step line and the bounds of the budget as lines."""
    import plotly.graph_objects as go

    shown = [row for row in result.candidates if math.isfinite(_x(result, row)) and _y(row) is not None]
    figure = go.Figure(layout=_layout(result))
    highest = max((y for row in shown if math.isfinite(y := _y(row) or 0.0)), default=0.0)
    front = [row for row in result.front if row in shown]
    if front:
        figure.add_trace(_front(result, front, highest))
    for kind in (False, True):
        rows = [row for row in shown if row.measured is kind and row is not result.best]
        figure.add_trace(_points(result, rows, highest, "measured" if kind else "predicted", filled=kind))
    if result.best in shown:
        name = f"{'best' if result.reached else 'nearest'}: {result.best.name}"
        figure.add_trace(_points(result, [result.best], highest, name, filled=result.best.measured, best=True))
    _add_budget(figure, result)
    return figure


def _front(result: SearchResult, rows: list[SearchCandidate], highest: float) -> dict[str, Any]:
    rows = sorted(rows, key=lambda row: _x(result, row))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "front",
        "x": [_x(result, row) for row in rows],
        "y": [_finite(_y(row), highest) for row in rows],
        "line": {"shape": "hv", "color": LINE, "width": 1.5},
        "hoverinfo": "skip",
    }


def _points(
    result: SearchResult, rows: list[SearchCandidate], highest: float, name: str, *, filled: bool, best: bool = False
) -> dict[str, Any]:
    colour = OTHER if best or filled else FIRST
    shape = "star" if best else "circle"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": html.escape(name),
        "x": [_x(result, row) for row in rows],
        "y": [_finite(_y(row), highest) for row in rows],
        "marker": {
            "size": 15 if best else 10,
            "symbol": shape if filled else f"{shape}-open",
            "color": colour,
            "line": {"width": 1.5, "color": colour},
        },
        "hovertext": [_hover(result, row) for row in rows],
        "hoverinfo": "text",
    }


def _add_budget(figure: go.Figure, result: SearchResult) -> None:
    """Add a line for each bound whose quantity is on an axis."""
    budget, line = result.budget, {"color": TEXT, "width": 1.5, "dash": "dash"}
    worst = budget.min_metric
    if budget.max_drop is not None:
        worst = result.base - budget.max_drop if result.higher_is_better else result.base + budget.max_drop
    place = {"font": {"size": 11, "color": TEXT}}
    if worst is not None:
        figure.add_hline(y=worst, line=line, annotation_text="budget", annotation=place)
    most = OBJECTIVES[result.goal].bound(budget)
    if most is not None:
        figure.add_vline(x=most, line=line, annotation_text="budget", annotation=place)


def _layout(result: SearchResult) -> dict[str, Any]:
    lines = [result.caption, *result.remarks]
    small = "".join(f"<br><span style='font-size:12px'>{html.escape(part)}</span>" for part in _wrapped(lines))
    grid = {"gridcolor": GRID, "linecolor": LINE, "showline": True, "zeroline": False, "ticks": "outside"}
    top = 76 + 18 * small.count("<br>")
    return {
        **LOOK,
        "height": _HEIGHT + top - 100,
        "margin": {"l": 76, "r": 28, "t": top, "b": 58},
        "title": {
            "text": f"<b>{html.escape(result.metric)} against {result.goal}</b>{small}",
            "font": {"size": 16, "color": TEXT},
            "x": 0.02,
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
        },
        "xaxis": {
            **grid,
            "title": {"text": OBJECTIVES[result.goal].title},
            "rangemode": "tozero",
        },
        "yaxis": {**grid, "title": {"text": html.escape(_metric(result))}},
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "hovermode": "closest",
    }


def _wrapped(lines: list[str], width: int = 96) -> list[str]:
    import textwrap

    return [part for line in lines for part in textwrap.wrap(line, width)]


def _ordered(result: SearchResult) -> list[SearchCandidate]:
    others = [row for row in result.candidates if row is not result.best]
    return [result.best, *sorted(others, key=lambda row: (not row.measured, row.value(result.goal)))]


def _cells(result: SearchResult) -> list[list[str]]:
    header = ["candidate", _metric(result), "predicted", "ms", "predicted", "MB", "predicted", "in float", ""]
    return [header, *(_row(result, row) for row in _ordered(result)[:_SHOWN])]


def _row(result: SearchResult, row: SearchCandidate) -> list[str]:
    best = "best" if result.reached else "nearest"
    return [
        row.name,
        _number(row.metric, result.unit),
        _number(row.predicted_metric, result.unit),
        milliseconds(row.ms),
        milliseconds(row.predicted_ms),
        megabytes(row.size_bytes),
        megabytes(None if row.predicted_bytes is None else round(row.predicted_bytes)),
        f"{len(row.float_layers)} of {len(row.layers)}",
        best if row is result.best else "",
    ]


def _hover(result: SearchResult, row: SearchCandidate) -> str:
    header, cells = _cells(result)[0], _row(result, row)
    pairs = [f"{name} {cell}" for name, cell in zip(header[1:-1], cells[1:-1], strict=True) if cell != "–"]
    kept = ", ".join(row.float_layers[:6]) + (" …" if len(row.float_layers) > 6 else "")
    lines = [f"<b>{html.escape(row.name)}</b>", html.escape(row.target), *map(html.escape, pairs)]
    return "<br>".join([*lines, *([f"float: {html.escape(kept)}"] if kept else [])]).replace("%{", "% {")


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else number(value, unit)


def _metric(result: SearchResult) -> str:
    return f"{result.metric} ({result.unit})" if result.unit else result.metric


def _x(result: SearchResult, row: SearchCandidate) -> float:
    return row.value(result.goal) / OBJECTIVES[result.goal].per_unit


def _y(row: SearchCandidate) -> float | None:
    return row.metric if row.metric is not None else row.predicted_metric


def _finite(value: float | None, highest: float) -> float:
    """Return a drawable value: an infinite metric is placed above all others."""
    return highest * 1.1 if value is None or math.isinf(value) else value
