"""Notebook outputs of single samples: images as images, text as text, and confused classes."""

from __future__ import annotations

import base64
import html
import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

import torch

from prepbench.measure.confusion import Confusion
from prepbench.measure.kept_samples import SampleInput, WorstSample, WorstSamples, distance_text
from prepbench.views.charts import CONFIG, GRID, LINE, TEXT
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
    """Return a row for each sample with its inputs, both outputs and the target."""
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


# Tensors as small pictures: PNG files in ``data:`` addresses, made with the standard library.


_SMALLEST = 4  # pixels of a side
_DARKEST, _BRIGHTEST = 0, 255


def is_image(values: torch.Tensor | None) -> bool:
    """Return whether a row looks like an image: 1 or 3 channels before or after height and width, floats or bytes."""
    if values is None or values.dim() != 3 or values.numel() == 0:
        return False
    if not (values.is_floating_point() or values.dtype == torch.uint8):
        return False
    return _channels_first(values) is not None


def picture(values: torch.Tensor, side: int) -> str:
    """Return an image as a ``data:`` address.

    Bytes and floats between 0 and 1 are shown unchanged; other ranges are stretched to black and white. NaN is
    black.

    Args:
        values: of shape (channels, height, width) or (height, width, channels).
        side: pixels of its longer side at most; larger images lose lines and columns.

    Example:
        >>> picture(torch.zeros(3, 8, 8), 96).startswith("data:image/png;base64,")
        True
    """
    pixels = values if _channels_first(values) else values.movedim(-1, 0)
    step = -(-max(pixels.shape[1:]) // side)
    shown = _bytes(pixels[:, ::step, ::step])
    return "data:image/png;base64," + base64.b64encode(png(shown.movedim(0, -1))).decode()


def png(pixels: torch.Tensor) -> bytes:
    """Encode a PNG file.

    Args:
        pixels: uint8 of shape (height, width, 1 or 3).
    """
    height, width, channels = pixels.shape
    rows = pixels.contiguous().reshape(height, -1).tolist()
    data = b"".join(b"\0" + bytes(row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _channels_first(values: torch.Tensor) -> bool | None:
    for first, channels, sides in ((True, 0, (1, 2)), (False, 2, (0, 1))):
        if values.shape[channels] in (1, 3) and all(values.shape[side] >= _SMALLEST for side in sides):
            return first
    return None


def _bytes(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.uint8:
        return values
    wide = values.double()
    finite = wide[wide.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = (wide.clamp(low, high) - low) / ((high - low) or 1.0) * _BRIGHTEST
    return torch.nan_to_num(scaled, nan=_DARKEST).round().to(torch.uint8)
