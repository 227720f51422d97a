"""The course of a recovery training as a table and curves."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from prepbench.adapt.recover import Recovery
from prepbench.views.charts import GRID, OTHER, TEXT

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

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


def bundle(found: Recovery) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the scores as a table, else
    text.
    """
    chart = json.loads(found.figure().to_json())
    table = (
        found.table()
        .dropna(subset=[found.metric])
        .to_html(index=False, na_rep="–", float_format=lambda value: f"{value:.4g}")
    )
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": {"displaylogo": False, "responsive": True}},
        "text/html": f"{table}<small>{html.escape(found.summary)}</small>",
        "text/plain": repr(found),
    }
