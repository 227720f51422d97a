"""Profiles as tables, bars and text."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import megabytes, milliseconds
from prepbench.measure.profile_result import Profile, ProfileDifference, ProfileRow
from prepbench.views.charts import FIRST, LINE, OTHER
from prepbench.views.layer_bars import BARS, aligned, bar_figure, bars, short_name

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
