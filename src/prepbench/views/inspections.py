"""One inspected layer as a figure and as text."""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prepbench.quantize.layer_values import Grid, TensorValues
from prepbench.search.inspection import LayerInspection, WhatIf
from prepbench.views.charts import FIRST, GRID, LINE, OTHER, TEXT
from prepbench.views.profiles import aligned

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of values that are clipped, and of the ends of a grid
_CLIPPED = "#D0552E"
# lines of a grid that the eye can tell apart
_LINES = 20


def inspection_figure(found: LayerInspection) -> go.Figure:
    """Draw the values of weights and input with their grids, and the error of the output."""
    from plotly.subplots import make_subplots

    tensors = [("Weights", found.weight), ("Input", found.input)]
    titles = [_values_title(name, values) for name, values in tensors]
    error = "" if found.error is None else f"Output: {found.error.sqnr:.1f} dB"
    figure = make_subplots(rows=2, cols=2, subplot_titles=[*titles, error, "SQNR by channel in dB"])
    for place, (_, values) in enumerate(tensors, start=1):
        _draw_values(figure, values, place)
    _draw_error(figure, found)
    said = f"<br><span style='font-size:12px'>{html.escape(found.caption)}</span>"
    figure.update_layout(
        template="none",
        height=640,
        margin={"l": 56, "r": 24, "t": 110, "b": 50},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": TEXT},
        title={
            "text": f"<b>{html.escape(_name(found))}</b>, {html.escape(_as(found))}{said}",
            "font": {"size": 16},
            "x": 0.02,
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 16},
        },
        showlegend=False,
        bargap=0,
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": TEXT},
    )
    figure.update_xaxes(gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    figure.update_annotations(font={"size": 13})
    return figure


def _draw_values(figure: go.Figure, values: TensorValues, column: int) -> None:
    """Draw a histogram; what lies beyond the grid in another colour, and the grid's ends as lines."""
    edges, grid = values.histogram.edges, values.grid
    if not edges:
        return
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    figure.add_bar(
        x=middles,
        y=list(values.histogram.counts),
        width=values.histogram.width,
        marker={"color": [_CLIPPED if grid is not None and _is_beyond(one, grid) else OTHER for one in middles]},
        hovertemplate="%{x:.4g}: %{y}<extra></extra>",
        row=1,
        col=column,
    )
    for place in grid_lines(grid):
        figure.add_vline(x=place, line={"color": LINE, "width": 1}, row=1, col=column)
    for place in () if grid is None else grid.range:
        figure.add_vline(x=place, line={"color": _CLIPPED, "width": 1, "dash": "dot"}, row=1, col=column)
    figure.update_yaxes(title={"text": "values"}, row=1, col=column)


def grid_lines(grid: Grid | None) -> list[float]:
    """Return the numbers of a grid where all channels have one, and few enough to be told apart."""
    if grid is None or grid.levels > _LINES or grid.step[0] != grid.step[1] or len(set(grid.range_by_channel)) > 1:
        return []
    return [grid.range[0] + place * grid.step[0] for place in range(grid.levels)]


def _is_beyond(value: float, grid: Grid) -> bool:
    return value < grid.range[0] - grid.step[1] / 2 or value > grid.range[1] + grid.step[1] / 2


def _draw_error(figure: go.Figure, found: LayerInspection) -> None:
    error = found.error
    if error is None:
        return
    ends = [min(error.reference, default=0.0), max(error.reference, default=0.0)]
    figure.add_scatter(x=ends, y=ends, mode="lines", line={"color": FIRST, "width": 1}, hoverinfo="skip", row=2, col=1)
    figure.add_scatter(
        x=list(error.reference),
        y=list(error.quantized),
        mode="markers",
        marker={"color": OTHER, "size": 4},
        customdata=list(error.channels),
        hovertemplate="channel %{customdata}<br>%{x:.4g} in float, %{y:.4g} quantized<extra></extra>",
        row=2,
        col=1,
    )
    figure.update_xaxes(title={"text": "in float"}, row=2, col=1)
    figure.update_yaxes(title={"text": "quantized"}, row=2, col=1)
    figure.add_bar(
        x=list(range(len(error.sqnr_by_channel))),
        y=list(error.sqnr_by_channel),
        marker={"color": OTHER},
        hovertemplate="channel %{x}: %{y:.1f} dB<extra></extra>",
        row=2,
        col=2,
    )
    figure.update_xaxes(title={"text": "output channel"}, row=2, col=2)


def inspection_text(found: LayerInspection) -> str:
    """Return the numbers of an inspected layer as text."""
    lines = [f"{_name(found)} ({found.type}): {_as(found)}{f', {found.why}' if found.why else ''}"]
    for name, values in (("weights", found.weight), ("input", found.input), ("output", found.output)):
        lines.append(f"{name + ':':<9}{values_text(values)}")
    if found.error is not None:
        worst = min(range(len(found.error.sqnr_by_channel)), key=found.error.sqnr_by_channel.__getitem__, default=0)
        lines.append(
            f"error:   {found.error.sqnr:.1f} dB, worst in channel {worst} "
            f"({found.error.sqnr_by_channel[worst]:.1f} dB)"
        )
    time = "" if found.time is None else f", {found.time.ms:.3g} ms ({found.time.share:.0%}) on {found.time.target}"
    lines.append(f"cost:    {kilobytes(found.weights_bytes)}, {found.multiplications:,} multiplications{time}")
    if found.source is not None:
        lines.append(f"source:  {found.source.file}:{found.source.line}: {found.source.code}")
    header, body = ["what if", "SQNR", "bytes", "change"], [list(_what_if_row(one)) for one in found.what_if]
    return "\n".join([*lines, "", aligned(header, body, 0, found.caption)])


def caption(found: LayerInspection) -> str:
    """Return how an inspected layer was measured."""
    of = "" if found.shown == found.decided else f" Grids and error are those of {found.shown}."
    samples = f"{found.samples} calibration input{'' if found.samples == 1 else 's'}"
    return f"{found.target}: values on {samples}, the error with all other layers in float.{of}"


def values_text(values: TensorValues) -> str:
    """Return the range of values, and their grid, in words."""
    if not values.count:
        return values.note
    said = f"{number(values.range[0])} to {number(values.range[1])}"
    grid = values.grid
    if grid is not None:
        first, last = map(number, grid.step)
        steps = first if first == last else f"{first} to {last}"
        said += f"; {grid.format}, steps of {steps}, {share(grid.clipped)} clipped"
    return said + (f"; {values.note}" if values.note else "")


def number(value: float) -> str:
    """Return a value with three digits."""
    return f"{value:.3g}".replace("-", "−")


def share(value: float) -> str:
    """Return a share in percent: none only where there is none."""
    return "none" if value == 0 else "under 0.01 %" if value < 1e-4 else f"{100 * value:.2g} %"


def kilobytes(count: int) -> str:
    """Return bytes in the unit that fits."""
    sign, count = "−" if count < 0 else "", abs(count)
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{sign}{count / size:.3g} {unit}"
    return f"{sign}{count} B"


def bundle(found: LayerInspection) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the text."""
    chart = json.loads(found.figure().to_json())
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": {"displaylogo": False, "responsive": True}},
        "text/html": f"<pre>{html.escape(repr(found))}</pre>",
        "text/plain": repr(found),
    }


def _what_if_row(one: WhatIf) -> Sequence[str]:
    if one.refusal:
        return [one.name, one.refusal, "–", "–"]
    sqnr = "–" if one.sqnr is None else f"{one.sqnr:.1f} dB"
    change = "–" if not one.change else ("+" if one.change > 0 else "") + kilobytes(one.change)
    return [one.name, sqnr, "–" if one.weights_bytes is None else kilobytes(one.weights_bytes), change]


def _name(found: LayerInspection) -> str:
    return found.layer or "(the model itself)"


def _as(found: LayerInspection) -> str:
    return found.decided if found.shown == found.decided else f"{found.decided}, shown as {found.shown}"


def _values_title(name: str, values: TensorValues) -> str:
    if not values.count:
        return f"{name}: {html.escape(values.note)}"
    clipped = f", {share(values.grid.clipped)} clipped" if values.grid is not None else ""
    return f"{name}{clipped}"
