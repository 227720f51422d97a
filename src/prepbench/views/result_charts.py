"""Results of many models, targets and machines, and trainings back, as a table, a chart and text."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prepbench.adapt.recover import Recovery
from prepbench.measure.comparison import megabytes, milliseconds, number
from prepbench.results.measurement import Result
from prepbench.results.speed_up import SpeedUp, speed_up_text
from prepbench.views.charts import GRID, LINE, LOOK, OTHER, RESPONSIVE, RING, TEXT, cells_html, chart_bundle

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

    from prepbench.results.results import Results

_PANEL, _TOP, _BOTTOM = 320, 90, 70
_LOG_FROM_RATIO = 10.0
_COLOURS = ("#3F86BD", "#C0702C", "#3E9A66", "#A2609C", "#8A7F2E", "#767A80")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "hexagon", "x")
_TEXT_ROWS = 40
_TIMES = ("p50 ms", "p50 low", "p50 high", "p90 ms", "speed-up", "speed-up low", "speed-up high")
_NUMBERS = ("score", "change", *_TIMES, "size MB")


def results_table(results: Results) -> pandas.DataFrame:
    """Return one row for each result; a failed one has its error in the last column and no numbers."""
    import pandas

    rows = results.rows
    ratios = [found or SpeedUp(None, None, None, "") for found in results.speed_ups]
    columns: dict[str, list[Any]] = {
        "model": [model_of(row) for row in rows],
        "target": [row.target for row in rows],
        "settings": [row.settings_name for row in rows],
        "metric": [metric_of(row) for row in rows],
        "score": [row.score for row in rows],
        "change": [row.change for row in rows],
        "p50 ms": [row.p50_ms for row in rows],
        "p50 low": [row.interval_ms[0] if row.interval_ms else None for row in rows],
        "p50 high": [row.interval_ms[1] if row.interval_ms else None for row in rows],
        "p90 ms": [row.p90_ms for row in rows],
        "speed-up": [found.value for found in ratios],
        "speed-up low": [found.low for found in ratios],
        "speed-up high": [found.high for found in ratios],
        "speed-up of": [found.baseline for found in ratios],
        "size MB": [None if row.size_bytes is None else row.size_bytes / 1e6 for row in rows],
        "machine": [row.machine for row in rows],
        "workload": [row.workload for row in rows],
        "made": [datetime.fromtimestamp(row.made) for row in rows],
        "note": [row.why for row in rows],
        "error": [row.error for row in rows],
    }
    return pandas.DataFrame(columns).astype(dict.fromkeys(_NUMBERS, float))


def results_figure(results: Results) -> go.Figure:
    """Draw scores against latency: a panel for each metric, a colour for each machine and target, a symbol for each
    model.

    Latencies are in milliseconds as measured, and never compared between machines. Results without a score or a
    latency are left out.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rows = results.rows
    said = dict(zip(map(id, rows), map(speed_up_text, results.speed_ups), strict=True))
    shown = [row for row in rows if row.score is not None and not math.isnan(row.score) and row.p50_ms]
    metrics = list(dict.fromkeys(metric_of(row) for row in shown))
    figure = make_subplots(rows=max(1, len(metrics)), cols=1, vertical_spacing=0.3 / max(1, len(metrics)))
    figure.update_layout(**_layout(len(metrics), len(rows) - len(shown)))
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for row in shown:
        groups.setdefault((model_of(row), row.target, row.machine), []).append(row)
    models = list(dict.fromkeys(model for model, _, _ in groups))
    places = list(dict.fromkeys((target, machine) for _, target, machine in groups))
    several = len({machine for _, machine in places}) > 1
    named: set[str] = set()
    for (model, target, machine), members in groups.items():
        name = " · ".join([model, target, *([machine] if several else [])])
        for position, metric in enumerate(metrics):
            points = [row for row in members if metric_of(row) == metric]
            if points:
                colour = _COLOURS[places.index((target, machine)) % len(_COLOURS)]
                symbol = _SYMBOLS[models.index(model) % len(_SYMBOLS)]
                beyond = _beyond([row for row in shown if metric_of(row) == metric])
                hovers = [_hover(row, said[id(row)]) for row in points]
                trace = _trace(name, points, hovers, colour, symbol, beyond, is_named=name not in named)
                figure.add_trace(go.Scatter(trace), row=position + 1, col=1)
                named.add(name)
    for position, metric in enumerate(metrics):
        _axes(figure, position + 1, metric, [row for row in shown if metric_of(row) == metric])
    return figure


def results_text(results: Results) -> str:
    """Return the results as text, one line each; of many the last ones."""
    rows = results.rows
    header, *body = _cells(rows[-_TEXT_ROWS:], results.speed_ups[-_TEXT_ROWS:])
    widths = [max(len(row[i]) for row in (header, *body)) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in (header, ["-" * width for width in widths], *body)]  # fmt: skip
    more = len(rows) - len(body)
    return "\n".join([*([f"... {more} more before these"] if more > 0 else []), *lines])


def results_bundle(results: Results) -> dict[str, Any]:
    """Return the notebook output of results: the chart if plotly's renderer is installed, else the table."""
    shown, text = cells_html(_cells(results.rows, results.speed_ups)), repr(results)
    if any(row.score is not None and row.p50_ms for row in results.rows):
        return chart_bundle(results_figure(results), shown, text)
    return {"text/html": shown, "text/plain": text}


def model_of(row: Result) -> str:
    """Return the name of a result's model."""
    return row.model_name or row.model[:12]


def metric_of(row: Result) -> str:
    """Return the metric of a result with its unit; "" without a score."""
    return f"{row.metric} ({row.unit})" if row.unit else row.metric


def _cells(rows: Sequence[Result], found: Sequence[SpeedUp | None]) -> list[list[str]]:
    header = ["model", "target", "settings", "score", "change", "p50 ms", "speed-up", "size MB", "machine", "remark"]
    return [header, *(_row_cells(row, speed_up_text(one)) for row, one in zip(rows, found, strict=True))]


def _row_cells(row: Result, speed: str) -> list[str]:
    score = "–" if row.score is None else f"{number(row.score, row.unit)} {row.unit or row.metric}".rstrip()
    change = "–" if row.change is None else number(row.change, row.unit, signed=True)
    remark = f"failed: {row.error}" if row.error else row.why
    remark = remark if len(remark) <= 80 else f"{remark[:79]}…"
    time = milliseconds(row.p50_ms, row.interval_ms)
    return [model_of(row), row.target, row.settings_name, score, change, time, speed,
            megabytes(row.size_bytes), row.machine, remark.replace("\n", " ")]  # fmt: skip


def _layout(panels: int, left_out: int) -> dict[str, Any]:
    note = f"{left_out} without a score or a latency left out" if left_out else ""
    return {
        **LOOK,
        "height": _TOP + _BOTTOM + _PANEL * max(1, panels),
        "margin": {"l": 76, "r": 28, "t": _TOP, "b": _BOTTOM},
        "title": {
            "text": f"<b>Score against latency</b><br><span style='font-size:12px'>{note}</span>",
            "font": {"size": 16, "color": TEXT},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 0.97,
            "yanchor": "top",
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        "hovermode": "closest",
    }


def _beyond(rows: Sequence[Result]) -> tuple[float, float]:
    """Return where scores of minus and plus infinity are drawn: beyond all others."""
    finite = [row.score for row in rows if row.score is not None and math.isfinite(row.score)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    step = max(0.25 * (high - low), 0.02 * max(abs(low), abs(high)), 1e-3)
    return low - step, high + step


def _trace(
    name: str,
    rows: Sequence[Result],
    hovers: Sequence[str],
    colour: str,
    symbol: str,
    beyond: tuple[float, float],
    *,
    is_named: bool,
) -> dict[str, Any]:
    scores = [row.score or 0.0 for row in rows]
    return {
        "mode": "markers",
        "name": html.escape(name),
        "legendgroup": html.escape(name),
        "showlegend": is_named,
        "x": [row.p50_ms for row in rows],
        "y": [score if math.isfinite(score) else beyond[score > 0] for score in scores],
        "marker": {"size": 12, "color": colour, "symbol": symbol, "opacity": 0.9, "line": {"width": 1, "color": RING}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max((row.p90_ms or 0.0) - (row.p50_ms or 0.0), 0.0) for row in rows],
            "arrayminus": [0.0] * len(rows),
            "color": colour,
            "thickness": 1.5,
            "width": 5,
        },
        "hovertemplate": [f"{hover}<extra></extra>" for hover in hovers],
    }


def _hover(row: Result, speed: str) -> str:
    names, cells = _cells([], [])[0], _row_cells(row, speed)
    lines = [f"{html.escape(n)}: {html.escape(c)}" for n, c in zip(names, cells, strict=True) if c not in ("–", "")]
    return "<br>".join(lines).replace("%{", "% {")


def _axes(figure: go.Figure, row: int, metric: str, rows: Sequence[Result]) -> None:
    times = [found.p50_ms or 0.0 for found in rows]
    is_log = max(times) / min(times) > _LOG_FROM_RATIO
    style = {"gridcolor": GRID, "linecolor": LINE, "showline": True, "zeroline": False, "ticks": "outside"}
    title = f"latency (ms per call): median, whisker to p90{', log scale' if is_log else ''}"
    figure.update_xaxes(row=row, col=1, title=title, type="log" if is_log else "linear", **style)
    if not is_log:
        figure.update_xaxes(row=row, col=1, rangemode="tozero")
    figure.update_yaxes(row=row, col=1, title=html.escape(metric), **style)


_SCORE = "#D08A2E"


def recovery_table(found: Recovery) -> pandas.DataFrame:
    """Return one row for each step, numbers as numbers; the first row is before any step."""
    import pandas

    steps = range(len(found.losses) + 1)
    columns = {
        "step": list(steps),
        "loss": [None, *found.losses],
        found.metric: [found.scores.get(step) for step in steps],
    }
    return pandas.DataFrame(columns).astype({"loss": float, found.metric: float})


def recovery_figure(found: Recovery) -> go.Figure:
    """Draw the loss of each step, and scores on an axis of their own, with a mark at the best."""
    import plotly.graph_objects as go

    name = html.escape(found.metric)
    steps = sorted(found.scores)
    axis = {"gridcolor": GRID, "zeroline": False}
    return go.Figure(
        [
            go.Scatter(
                x=list(range(1, len(found.losses) + 1)), y=list(found.losses), name="loss", mode="lines",
                line={"color": OTHER, "width": 1.5}, hovertemplate="step %{x}: loss %{y:.4g}<extra></extra>",
            ),
            go.Scatter(
                x=steps, y=[found.scores[step] for step in steps], name=name, mode="lines+markers", yaxis="y2",
                line={"color": _SCORE, "dash": "dot"},
                marker={"symbol": ["star" if step == found.best_step else "circle" for step in steps], "size": 10},
                hovertemplate=f"after %{{x}} steps: {name} %{{y:.4g}}<extra></extra>",
            ),
        ],
        {
            "title": {"text": f"Training back<br><sub>{html.escape(found.summary)}</sub>"},
            "xaxis": {"title": {"text": "step"}, **axis},
            "yaxis": {"title": {"text": "loss"}, **axis},
            "yaxis2": {"title": {"text": name}, "overlaying": "y", "side": "right", "showgrid": False},
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 1, "xanchor": "right"},
            "font": {"color": TEXT},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "height": 380,
        },
    )  # fmt: skip


def recovery_bundle(found: Recovery) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else a table of scores, else text."""
    table = (
        found.table()
        .dropna(subset=[found.metric])
        .to_html(index=False, na_rep="–", float_format=lambda value: f"{value:.4g}")
    )
    return chart_bundle(found.figure(), f"{table}<small>{html.escape(found.summary)}</small>", repr(found), RESPONSIVE)
