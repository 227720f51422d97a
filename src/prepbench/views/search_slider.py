"""A slider over budgets in the chart of a search: the best within each, without a kernel."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prepbench.search.budget import Budget
from prepbench.search.search_result import SearchResult
from prepbench.views.charts import GRID, LINE, TEXT
from prepbench.views.searches import search_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ROOM = 84


def slider_figure(result: SearchResult, budgets: Sequence[Budget]) -> go.Figure:
    """The chart of a search with a slider; the candidates of all budgets are shown, and the best of one.

    Args:
        result: what was searched.
        budgets: in the order of the slider; the result's own is where it starts, if it is among them.
    """
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
    """What a budget bounds, in a few words."""
    bounds = (budget.max_drop, ""), (budget.min_metric, ""), (budget.max_latency_ms, " ms"), (budget.max_size_mb, " MB")
    return ", ".join(f"{value:g}{unit}" for value, unit in bounds if value is not None)


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
