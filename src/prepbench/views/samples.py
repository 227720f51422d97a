"""Notebook outputs of single samples: images as images, text as text, and confused classes."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import Confusion
from prepbench.measure.kept_samples import WorstSamples
from prepbench.views.charts import CONFIG, GRID, LINE, TEXT
from prepbench.views.palette import RAMP
from prepbench.views.sample_html import samples_html
from prepbench.views.sample_parts import shown_samples

if TYPE_CHECKING:
    import plotly.graph_objects as go


_ROOM = 280_000  # bytes of one saved output
_CLASSES = 60  # more are too many for a heat map to be read
_NAMED = 20


def worst_bundle(worst: WorstSamples) -> dict[str, Any]:
    """Return a row for each sample with its inputs, both outputs and the target."""
    text = repr(worst)
    notes = "".join(f"<br>{html.escape(note)}" for note in worst.notes)
    small = f"<small>{html.escape(worst.caption)}{notes}</small>"
    if not worst.rows:
        return {"text/plain": text, "text/html": small}
    table = samples_html(shown_samples(worst, _ROOM), _ROOM - len(small.encode()))
    return {"text/plain": text, "text/html": f"{table}{small}"}


def confusion_figure(confusion: Confusion) -> go.Figure:
    """Draw the counts by target class and predicted class; with very many classes, those that are confused most."""
    import plotly.graph_objects as go

    counts, chosen = confusion.counts, list(range(len(confusion.counts)))
    if len(counts) > _CLASSES:
        wrong = counts - counts.diagonal().diag()
        chosen = sorted((wrong.sum(0) + wrong.sum(1)).topk(_CLASSES).indices.tolist())
    shown = counts[chosen][:, chosen].tolist()
    names = [f"class {label}" for label in chosen]
    few = len(chosen) <= _NAMED
    colours = [[i / (len(RAMP) - 1), fill.ground.light] for i, fill in enumerate(RAMP)]
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": [[count or None for count in row] for row in shown],
        "colorscale": colours,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "target %{y}<br>predicted %{x}<br>%{z} times<extra></extra>",
        "colorbar": {"title": {"text": "times"}, "outlinewidth": 0, "thickness": 12},
        **({"texttemplate": "%{z}"} if few else {}),
    }
    some = "" if len(chosen) == len(counts) else f" The {len(chosen)} of {len(counts)} classes confused most are shown."
    small = f"<br><span style='font-size:12px'>{html.escape(confusion.caption + some)}</span>"
    axis = {
        "gridcolor": GRID,
        "linecolor": LINE,
        "tickvals": names if few else None,
        "ticktext": list(map(str, chosen)) if few else None,
        "showticklabels": few,
        "zeroline": False,
        "constrain": "domain",
    }
    figure = go.Figure(data=[heat])
    figure.update_layout(
        template="none",
        height=480,
        margin={"l": 60, "r": 24, "t": 80, "b": 60},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": TEXT},
        title={"text": f"<b>Confused classes</b>{small}", "font": {"size": 16}, "x": 0.02, "y": 0.95, "yanchor": "top"},
        xaxis={**axis, "title": {"text": "predicted"}},
        yaxis={**axis, "title": {"text": "target"}, "autorange": "reversed", "scaleanchor": "x"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": TEXT},
    )
    return figure


def confusion_bundle(confusion: Confusion) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the confused pairs, else text."""
    chart = json.loads(confusion_figure(confusion).to_json())
    table = confusion.pairs().to_html(index=False, border=0)
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": CONFIG},
        "text/html": f"{table}<small>{html.escape(confusion.caption)}</small>",
        "text/plain": repr(confusion),
    }
