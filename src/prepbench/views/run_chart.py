"""The chart of all runs: accuracy against latency, with the Pareto front."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import CandidateResult, Comparison
from prepbench.views.charts import CONFIG, LINE, OTHER, comparison_figure, comparison_html

if TYPE_CHECKING:
    import plotly.graph_objects as go

_NAMED = 12  # runs with a label


def front_of(comparison: Comparison) -> list[CandidateResult]:
    """Return the Pareto front of score and latency, fastest first.

    Candidates without a score or a latency are left out.
    """
    known = [row for row in comparison.rows if row.p50_ms is not None and not math.isnan(row.metric)]
    sign = 1 if comparison.higher_is_better else -1
    front: list[CandidateResult] = []
    for row in sorted(known, key=lambda row: (row.p50_ms or 0.0, -sign * row.metric)):
        if not front or sign * row.metric > sign * front[-1].metric:
            front.append(row)
    return front


def runs_figure(comparison: Comparison, ids: Mapping[str, str], far: Collection[str] = ()) -> go.Figure:
    """Draw all runs; the front, the float model and the newest have labels, and a click on a point returns the run's
    id.

    Args:
        comparison: the runs as candidates, the float model first.
        ids: the id of each run, by its name; others cannot be clicked.
        far: the names of runs of other machines, which are hollow and on no front.
    """
    first, *runs = comparison.rows
    front = front_of(replace(comparison, rows=tuple(row for row in comparison.rows if row.name not in far)))
    named = [first, *_named(runs, front)]
    figure = comparison_figure(replace(comparison, rows=tuple(named)))
    _draw_front(figure, comparison, front)
    _draw_others(figure, [row for row in runs if row not in named], ids)
    for trace in figure.data:
        if trace.name and trace.customdata is None:
            trace.customdata = [ids.get(html.unescape(trace.name), "")]
        if trace.name and html.unescape(trace.name) in far:
            trace.marker.symbol, trace.marker.line.width = "circle-open", 2
    return figure


def runs_bundle(comparison: Comparison, ids: Mapping[str, str], far: Collection[str] = ()) -> dict[str, Any]:
    """Return the output of the bench: the chart if plotly's renderer is installed, else the table, else text."""
    chart = json.loads(runs_figure(comparison, ids, far).to_json())
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": CONFIG},
        "text/html": comparison_html(comparison),
        "text/plain": repr(comparison),
    }


def _named(runs: Sequence[CandidateResult], front: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return the runs with a label: those on the front and the newest, in their order."""
    wanted = [*(row for row in front if row in runs), *reversed(runs)]
    chosen = {row.name for row in list(dict.fromkeys(wanted))[:_NAMED]}
    return [row for row in runs if row.name in chosen]


def _draw_front(figure: go.Figure, comparison: Comparison, front: Sequence[CandidateResult]) -> None:
    points = [(row.p50_ms, row.metric) for row in front if math.isfinite(row.metric)]
    if len(points) < 2:
        return
    shape = "hv" if comparison.higher_is_better else "vh"
    figure.add_scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        mode="lines",
        line={"color": OTHER, "width": 1.5, "shape": shape, "dash": "dot"},
        hoverinfo="skip",
        name="",
    )


def _draw_others(figure: go.Figure, others: Sequence[CandidateResult], ids: Mapping[str, str]) -> None:
    """Add runs without a label as small hollow points; the axes grow to hold them."""
    shown = [row for row in others if row.p50_ms is not None and math.isfinite(row.metric)]
    if not shown:
        return
    figure.add_scatter(
        x=[row.p50_ms for row in shown],
        y=[row.metric for row in shown],
        mode="markers",
        marker={"size": 8, "symbol": "circle-open", "color": LINE},
        customdata=[ids.get(row.name, "") for row in shown],
        text=[html.escape(row.name) for row in shown],
        hovertemplate="%{text}<br>%{x:.3g} ms, %{y:.4g}<extra></extra>",
        name="",
    )
    values = [row.metric for row in shown]
    low, high = figure.layout.yaxis.range
    figure.update_yaxes(range=[min(low, *values), max(high, *values)])
    if figure.layout.xaxis.type != "log":
        low, high = figure.layout.xaxis.range
        figure.update_xaxes(range=[low, max(high, *(1.05 * (row.p50_ms or 0.0) for row in shown))])
