"""Bars and aligned text, one row for each layer."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from prepbench.views.charts import GRID, LINE, TEXT

if TYPE_CHECKING:
    import plotly.graph_objects as go

BARS = 12
_NAME = 40


def short_name(name: str) -> str:
    """Return a name that fits beside a bar; its start is cut, since its end says most."""
    return (name if len(name) <= _NAME else "…" + name[1 - _NAME :]) or "(the model itself)"


def bars(
    title: str, names: list[str], values: list[float], texts: list[str], colours: list[str], hovers: list[str]
) -> dict[str, Any]:
    """Return one bar for each name."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": html.escape(title),
        "y": [html.escape(name) for name in names],
        "x": values,
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": colours},
        "hovertext": hovers,
        "hoverinfo": "text",
    }


def bar_figure(
    heading: str,
    caption: str,
    traces: list[dict[str, Any]],
    rows: int,
    *,
    legend: bool,
    axis: str = "ms per call",
    from_zero: bool = True,
) -> go.Figure:
    """Return bars of layers with a heading, the worst or slowest at the top; for light and dark themes.

    Args:
        heading: in bold.
        caption: under it; a line for each part that ends in a semicolon.
        traces: from :func:`bars`.
        rows: how many bars there are.
        legend: whether the names of the traces are shown.
        axis: the quantity of the bars.
        from_zero: whether all values are 0 or more.
    """
    import plotly.graph_objects as go

    values = [value for trace in traces for value in trace["x"]]
    longest, shortest = max(values, default=1.0), min(values, default=0.0)
    figure = go.Figure(data=traces)
    lines = caption.replace(", median", "; median").split("; ")
    small = "".join(f"<br><span style='font-size:12px'>{html.escape(line)}</span>" for line in lines)
    top = 60 + 18 * len(lines) + 24 * legend
    figure.update_layout(
        template="none",
        height=60 + top + 22 * rows,
        margin={"l": 16, "r": 24, "t": top, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": TEXT},
        title={
            "text": f"<b>{heading}</b>{small}",
            "font": {"size": 16},
            "x": 0.02,
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
        },
        xaxis={
            "title": {"text": axis, "font": {"size": 13}},
            "gridcolor": GRID,
            "range": [_least(shortest, longest) if shortest < 0 and not from_zero else 0, longest * 1.3],
            "zeroline": False,
        },
        yaxis={"autorange": "reversed", "automargin": True, "ticksuffix": " "},
        barmode="group",
        bargap=0.25,
        showlegend=legend,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": TEXT},
    )
    return figure


def _least(shortest: float, longest: float) -> float:
    """Return the start of an axis that leaves room for the number of a negative bar."""
    return shortest - 0.1 * max(longest - shortest, -3 * shortest)


def aligned(header: list[str], body: list[list[str]], more: int, caption: str) -> str:
    """Return a table as aligned text, and the number of rows that it leaves out."""
    rows = [header, *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, *([f"{more} more"] if more > 0 else []), caption])
