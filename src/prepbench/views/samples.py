"""What a notebook shows of single samples: images as images, text as text; and which classes are confused."""

from __future__ import annotations

import html
import json
from typing import TYPE_CHECKING, Any

from prepbench.measure.confusion import Confusion
from prepbench.measure.kept_samples import SampleInput, WorstSample
from prepbench.measure.worst_samples import WorstSamples, distance_text
from prepbench.views.charts import CONFIG, GRID, LINE, TEXT
from prepbench.views.images import is_image, picture
from prepbench.views.palette import RAMP

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LIMIT = 300_000  # bytes of one saved output
_SIDE = 96  # pixels
_TEXT = 600  # characters of one cell
_CLASSES = 60  # more are too many for a heat map to be read
_NAMED = 20
_STYLE = """<style>
table.pb-samples tr>td,table.pb-samples tr>th{text-align:left;vertical-align:top}
table.pb-samples td div{white-space:pre-wrap;overflow-wrap:anywhere;max-width:26em;max-height:9em;overflow:auto}
table.pb-samples img{image-rendering:pixelated;border:1px solid #8888;max-width:none}
</style>"""


def worst_bundle(worst: WorstSamples) -> dict[str, Any]:
    """A row for each sample with its inputs, both outputs and the target."""
    text = repr(worst)
    notes = "".join(f"<br>{html.escape(note)}" for note in worst.notes)
    small = f"<small>{html.escape(worst.caption)}{notes}</small>"
    if not worst.rows:
        return {"text/plain": text, "text/html": small}
    has_targets = any(row.target for row in worst.rows)
    head = ["batch", "row", worst.measure, "input", worst.first, worst.candidate, *(["target"] if has_targets else [])]
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    room = _LIMIT - len(small.encode()) - 2000
    lines = []
    for row in worst.rows:
        line = _line(worst, row, has_targets, pictures=True)
        if len(line.encode()) > room:  # an output of a notebook is saved with it
            line = _line(worst, row, has_targets, pictures=False)
        if len(line.encode()) > room:
            lines.append(f'<tr><td colspan="{len(head)}">The rest is too long to be shown: see .table()</td></tr>')
            break
        room -= len(line.encode())
        lines.append(line)
    body = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return {"text/plain": text, "text/html": f'{_STYLE}\n<table class="pb-samples">{body}</table>{small}'}


def _line(worst: WorstSamples, row: WorstSample, has_targets: bool, *, pictures: bool) -> str:
    place = "–" if row.row is None else str(row.row)
    inputs = "".join(_input(worst, one, pictures=pictures) for one in row.inputs[:8])
    outputs = [_text(each) for each in worst.output_texts(row)]
    targets = [_text(row.target)] if has_targets else []
    cells = [str(row.batch), place, distance_text(row.distance), inputs, *outputs, *targets]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _input(worst: WorstSamples, one: SampleInput, *, pictures: bool) -> str:
    if pictures and one.values is not None and is_image(one.values):
        said = html.escape(f"{one.name}, shape {one.shape}", quote=True)
        return f'<img src="{picture(one.values, _SIDE)}" height="{_SIDE}" alt="{said}" title="{said}">'
    return _text(worst.input_text(one))


def _text(text: str) -> str:
    return f"<div>{html.escape(text if len(text) <= _TEXT else text[: _TEXT - 1] + '…')}</div>"


def confusion_figure(confusion: Confusion) -> go.Figure:
    """Counts by class of the target and predicted class. Of very many classes those that are confused most."""
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
    """What a notebook shows: the chart where plotly's renderer is installed, else the confused pairs, else text."""
    chart = json.loads(confusion_figure(confusion).to_json())
    table = confusion.pairs().to_html(index=False, border=0)
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": CONFIG},
        "text/html": f"{table}<small>{html.escape(confusion.caption)}</small>",
        "text/plain": repr(confusion),
    }
