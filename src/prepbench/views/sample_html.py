"""Samples on which two candidates differ as HTML of bounded size; every text is escaped."""

from __future__ import annotations

import html

from prepbench.document.bench import SamplePart, ShownSample, ShownSamples

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
