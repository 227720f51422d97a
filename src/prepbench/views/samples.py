"""Notebook outputs of single samples: images as images, text as text, and confused classes."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from prepbench.document.bench import SamplePart, ShownSample, ShownSamples
from prepbench.measure.comparison import Confusion
from prepbench.measure.kept_samples import WorstSamples
from prepbench.views.charts import GRID, LINE, LOOK, chart_bundle
from prepbench.views.palette import RAMP
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
        **LOOK,
        height=480,
        margin={"l": 60, "r": 24, "t": 80, "b": 60},
        title={"text": f"<b>Confused classes</b>{small}", "font": {"size": 16}, "x": 0.02, "y": 0.95, "yanchor": "top"},
        xaxis={**axis, "title": {"text": "predicted"}},
        yaxis={**axis, "title": {"text": "target"}, "autorange": "reversed", "scaleanchor": "x"},
    )
    return figure


def confusion_bundle(confusion: Confusion) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the confused pairs, else text."""
    table = confusion.pairs().to_html(index=False, border=0)
    return chart_bundle(
        confusion_figure(confusion), f"{table}<small>{html.escape(confusion.caption)}</small>", repr(confusion)
    )


_SIDE = 96  # pixels of a picture's height
_WAVE = (240, 48)  # pixels of a drawn waveform
_STYLE = """<style>
table.pb-samples tr>td,table.pb-samples tr>th{text-align:left;vertical-align:top}
table.pb-samples td div{white-space:pre-wrap;overflow-wrap:anywhere;max-width:26em;max-height:9em;overflow:auto}
table.pb-samples img{image-rendering:pixelated;outline:1px solid #8888;max-width:none}
table.pb-samples svg{display:block;overflow:visible}
table.pb-samples audio{display:block;width:240px;height:32px}
table.pb-samples .pb-frame{position:relative;display:inline-block}
table.pb-samples .pb-frame svg{position:absolute;inset:0;width:100%;height:100%}
</style>"""


def samples_html(shown: ShownSamples, room: int) -> str:
    """Return a table with a row for each sample; pictures and sounds are left out where they do not fit into ``room``
    bytes, then rows.
    """
    if not shown.samples:
        return ""
    has_targets = any(sample.target for sample in shown.samples)
    head = ["sample", "apart", "input", shown.first, shown.second, *(["target"] if has_targets else [])]
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    room -= len(cells.encode()) + len(_STYLE) + 500
    lines = []
    for sample in shown.samples:
        line = _line(sample, has_targets, seen=True)
        if len(line.encode()) > room:  # an output of a notebook is saved with it
            line = _line(sample, has_targets, seen=False)
        if len(line.encode()) > room:
            lines.append(f'<tr><td colspan="{len(head)}">The rest is too long to be shown: see .table()</td></tr>')
            break
        room -= len(line.encode())
        lines.append(line)
    body = f"<thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'{_STYLE}\n<table class="pb-samples">{body}</table>'


def _line(sample: ShownSample, has_targets: bool, *, seen: bool) -> str:
    parts = (sample.inputs, sample.first, sample.second)
    cells = [html.escape(sample.place), html.escape(sample.distance)]
    cells += ["".join(_part(one, seen=seen) for one in each) for each in parts]
    cells += [f"<div>{html.escape(sample.target)}</div>"] if has_targets else []
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _part(part: SamplePart, *, seen: bool) -> str:
    said = html.escape(" ".join(filter(None, (part.name, part.said))), quote=True)
    if part.modality == "image" and seen:
        image = f'<img src="{part.picture}" height="{_SIDE}" alt="{said}" title="{said}">'
        return f'<div class="pb-frame">{image}{_boxes(part)}</div>' if part.boxes else image
    if part.modality == "audio" and seen:
        heard = f'<audio controls preload="none" src="{part.sound}" title="{said}"></audio>' if part.sound else ""
        return f"<div>{said}</div>{_wave(part)}{heard}"
    if part.modality == "text":
        mark = f"<mark>{html.escape(part.other or '∅')}</mark>" if part.said and (part.other or not part.rest) else ""
        return f"<div>{html.escape(part.same)}{mark}{html.escape(part.rest)}</div>"
    return f"<div>{said}</div>"


def _boxes(part: SamplePart) -> str:
    rows = (
        f'<rect x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}"><title>{html.escape(box.text)}'
        "</title></rect>"
        for box in part.boxes
    )
    style = 'fill="none" stroke="#e66100" stroke-width="2" vector-effect="non-scaling-stroke"'
    return f'<svg viewBox="0 0 1 1" preserveAspectRatio="none"><g {style}>{"".join(rows)}</g></svg>'


def wave_path(wave: tuple[float, ...], width: int, height: int) -> str:
    """Return the outline of a waveform as the path of an SVG element."""
    count = max(len(wave) // 2, 1)
    places = [width * at / count for at in range(count)]
    ends = [height / 2 * (1 - value) for value in wave]
    up = [f"{x:.1f} {y:.1f}" for x, y in zip(places, ends[1::2], strict=False)]
    down = [f"{x:.1f} {y:.1f}" for x, y in zip(places, ends[::2], strict=False)]
    return f"M{'L'.join([*up, *reversed(down)])}Z" if up else ""


def _wave(part: SamplePart) -> str:
    width, height = _WAVE
    path = f'<path d="{wave_path(part.wave, width, height)}" fill="#8888" stroke="currentColor" stroke-width="0.5"/>'
    return f'<svg width="{width}" height="{height}" role="img" aria-label="waveform">{path}</svg>'
