"""Profiles as tables, bars and text."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import megabytes, milliseconds
from prepbench.measure.profile import Profile, ProfileDifference, ProfileRow
from prepbench.views.charts import FIRST, GRID, LINE, OTHER, TEXT

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


def profile_table(profile: Profile) -> pandas.DataFrame:
    """Return one row for each layer and named part of the rest, numbers as numbers."""
    import pandas

    columns: dict[str, list[Any]] = {
        "layer": [row.name for row in profile.rows],
        "type": [row.type for row in profile.rows],
        "ms": [row.ms for row in profile.rows],
        "share": [row.share for row in profile.rows],
        "weights MB": [None if row.weights_bytes is None else row.weights_bytes / 1e6 for row in profile.rows],
        "results MB": [None if row.result_bytes is None else row.result_bytes / 1e6 for row in profile.rows],
        "is layer": [row.is_layer for row in profile.rows],
        "operators": [", ".join(row.operators) for row in profile.rows],
    }
    return pandas.DataFrame(columns).astype({"weights MB": float, "results MB": float})


def difference_table(difference: ProfileDifference) -> pandas.DataFrame:
    """Return one row for each layer, with both times and the memory of its weights; None without weights of its own."""
    import pandas

    first, second = ({row.name: row.ms for row in each.rows} for each in (difference.first, difference.second))
    names = list(difference.saved_ms)
    columns = {
        "layer": names,
        _titles(difference)[0]: [first.get(name) for name in names],
        _titles(difference)[1]: [second.get(name) for name in names],
        "saved ms": list(difference.saved_ms.values()),
    }
    for title, profile in (("first", difference.first), ("second", difference.second)):
        sizes = {row.name: row.weights_bytes for row in profile.rows if row.weights_bytes is not None}
        columns[f"weights MB, {title}"] = [sizes[name] / 1e6 if name in sizes else None for name in names]
    return pandas.DataFrame(columns).astype(dict.fromkeys(list(columns)[1:], float))


def profile_figure(profile: Profile) -> go.Figure:
    """Draw the slowest rows as bars, time outside of layers in grey, and all others as one bar."""
    shown, others = profile.rows[:BARS], profile.rows[BARS:]
    names = [short_name(row.name) for row in shown]
    lengths = [row.ms for row in shown]
    colours = [OTHER if row.is_layer else FIRST for row in shown]
    texts = [f"{milliseconds(row.ms)} ms · {row.share:.0%}" for row in shown]
    if others:
        names.append(f"{len(others)} more")
        lengths.append(sum(row.ms for row in others))
        colours.append(LINE)
        texts.append(f"{milliseconds(lengths[-1])} ms · {sum(row.share for row in others):.0%}")
    hovers = [_hover(row) for row in shown] + [""] * bool(others)
    trace = bars("", names, lengths, texts, colours, hovers)
    return bar_figure("Time by layer", profile.caption, [trace], len(names), legend=False)


def difference_figure(difference: ProfileDifference) -> go.Figure:
    """Draw both times of the layers that changed most."""
    names = list(difference.saved_ms)[:BARS]
    traces = []
    for profile, title, colour in zip(
        (difference.first, difference.second), _titles(difference), (FIRST, OTHER), strict=True
    ):
        rows = {row.name: row for row in profile.rows}
        ms = [rows[name].ms if name in rows else 0.0 for name in names]
        texts = [milliseconds(each) if each else "–" for each in ms]
        hovers = [_hover(rows[name]) if name in rows else "no time of its own" for name in names]
        traces.append(bars(title, [short_name(name) for name in names], ms, texts, [colour] * len(names), hovers))
    return bar_figure("What got faster, what slower", difference.caption, traces, 2 * len(names), legend=True)


def profile_text(profile: Profile) -> str:
    """Return the slowest rows as aligned text."""
    header = ["layer", "ms", "share", "weights MB", "results MB"]
    body = [
        [
            short_name(row.name),
            milliseconds(row.ms),
            f"{row.share:.0%}",
            *map(megabytes, (row.weights_bytes, row.result_bytes)),
        ]
        for row in profile.rows[:BARS]
    ]
    return aligned(header, body, len(profile.rows) - BARS, profile.caption)


def difference_text(difference: ProfileDifference) -> str:
    """Return the rows that changed most as aligned text."""
    rows = difference.table().iloc[:, :4].itertuples(index=False)
    body = [
        [short_name(row[0]), *("–" if each != each else f"{each:.3g}".replace("-", "−") for each in row[1:])]
        for row in rows
    ]
    header = ["layer", *_titles(difference), "saved ms"]
    return aligned(header, body[:BARS], len(body) - BARS, difference.caption)


def bundle(result: Profile | ProfileDifference) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    chart = json.loads(result.figure().to_json())
    shown = result.table().iloc[:, :4] if isinstance(result, ProfileDifference) else result.table()
    table = shown.head(BARS).to_html(index=False, na_rep="–", float_format=lambda value: f"{value:.3g}")
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": {"displaylogo": False, "responsive": True}},
        "text/html": f"{table}<small>{html.escape(result.caption)}</small>",
        "text/plain": repr(result),
    }


def _titles(difference: ProfileDifference) -> tuple[str, str]:
    first, second = (f"{each.target} ms" for each in (difference.first, difference.second))
    return (first, second) if first != second else (f"{first}, first", f"{second}, second")


def _hover(row: ProfileRow) -> str:
    lines = [f"<b>{html.escape(row.name or '(the model itself)')}</b>", html.escape(row.type)]
    lines += [f"{milliseconds(row.ms)} ms, {row.share:.1%}"]
    lines += [f"{megabytes(row.weights_bytes)} MB of weights"] if row.weights_bytes else []
    lines += [f"{megabytes(row.result_bytes)} MB of results"] if row.result_bytes else []
    lines += [html.escape(", ".join(row.operators[:6]))]
    return "<br>".join(filter(None, lines)).replace("%{", "% {")


# Bars and aligned text, one row for each layer.


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
