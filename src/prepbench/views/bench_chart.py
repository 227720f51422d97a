"""Accuracy against latency over all runs of a bench: computes the layout once, and draws it as a static picture."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prepbench.document.bench import Chart, ChartPoint, Tick
from prepbench.views.charts import (
    Axis,
    Box,
    Place,
    Point,
    last_latency,
    place_labels,
    round_ticks,
    score_span,
    within_metric,
)
from prepbench.views.palette import ACCENT, DIM, LINE, PAGE, TEXT, Shade

_WIDTH, _HEIGHT = 720, 380
_AREA = Box(72.0, 18.0, 700.0, 328.0)
_LABELS = 14  # labels that find a place
_LETTER, _LABEL_HEIGHT = 6.6, 17.0  # pixels
_NAME = 28
_LOG_FROM_RATIO = 25.0


@dataclass(frozen=True)
class ChartRun:
    """The values of a run in the chart.

    Attributes:
        name: of the run.
        note: its numbers in words.
        kind: the float model, a run, or a run of another machine.
        score: its score, which may be infinite.
        p50_ms: its median latency.
        p90_ms: the 90th percentile; the median where it is not known.
        spread: the least and the greatest score that other samples would have given.
        size_bytes: 0 where unknown.
        pinned: whether it always has a label.
    """

    name: str
    note: str
    kind: Literal["float", "run", "elsewhere"]
    score: float
    p50_ms: float
    p90_ms: float
    spread: tuple[float, float] | None = None
    size_bytes: int = 0
    pinned: bool = False


def bench_chart(
    runs: Sequence[ChartRun], metric: str, unit: str, higher_is_better: bool, *, per: str = "call"
) -> Chart:
    """Return the laid-out chart; each run has a number for both axes. ``per`` names the latency's unit of work."""
    runs = [run for run in runs if run.p50_ms > 0 and math.isfinite(run.p50_ms) and not math.isnan(run.score)]
    if not runs:
        return Chart()
    x, y = _latency(runs, per), _scores(runs, f"{metric} ({unit})" if unit else metric, unit)
    largest = max(run.size_bytes for run in runs)
    points = [_point(run, x, y, largest) for run in runs]
    best = _front(runs, higher_is_better)
    line = [points[i] for i in sorted(best, key=lambda i: (points[i].x, points[i].y))]
    return Chart(
        title=_sentence(runs, best, metric),
        x_title=x.title,
        y_title=y.title,
        better="↖ better" if higher_is_better else "↙ better",
        width=_WIDTH,
        height=_HEIGHT,
        left=int(_AREA.left),
        top=int(_AREA.top),
        right=int(_AREA.right),
        bottom=int(_AREA.bottom),
        x_ticks=tuple(Tick(_across(x.share(value)), text) for value, text in x.ticks),
        y_ticks=tuple(Tick(_down(y.share(value)), text) for value, text in y.ticks),
        front=tuple(value for point in line for value in (point.x, point.y)),
        points=_labelled(points, runs, best, higher_is_better),
    )


def _sentence(runs: Sequence[ChartRun], best: Sequence[int], metric: str) -> str:
    names = [_short(runs[i].name) for i in best[:5]] + (["others"] if len(best) > 5 else [])
    return f"{metric} against latency of {len(runs)} run{'s' * (len(runs) != 1)}; beaten by none: {', '.join(names)}."


def _latency(runs: Sequence[ChartRun], per: str) -> Axis:
    middles = tuple(run.p50_ms for run in runs)
    high = last_latency(middles, [run.p90_ms for run in runs])
    title = f"latency (ms per {per}): median, whisker to p90"
    if max(middles) / min(middles) > _LOG_FROM_RATIO:
        low, high = min(middles) / 2, high * 1.6
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        steps = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        ticks = tuple((step, f"{step:g}") for step in steps if low <= step <= high)
        return Axis(f"{title}, log scale", middles, low, high, log=True, ticks=ticks)
    return Axis(title, middles, 0.0, high * 1.15, ticks=tuple((v, f"{v:g}") for v in round_ticks(0.0, high * 1.15)))


def _scores(runs: Sequence[ChartRun], title: str, unit: str) -> Axis:
    """Return the axis of scores; infinite ones are drawn beyond the others."""
    ends = [end for run in runs for end in (run.score, *(run.spread or ())) if math.isfinite(end)]
    low, high = (min(ends), max(ends)) if ends else (0.0, 1.0)
    span = score_span(low, high, max(1e-3 * max(abs(low), abs(high)), 1e-6))
    ticks = [(value, f"{value:.6g}") for value in round_ticks(low - 0.1 * span, high + 0.1 * span)]
    beyond = {math.inf: high + 0.3 * span, -math.inf: low - 0.3 * span}
    used = {run.score for run in runs} & set(beyond)
    ticks += [(beyond[score], "∞" if score > 0 else "−∞") for score in sorted(used)]
    places = tuple(beyond.get(run.score, run.score) for run in runs)
    lower, upper = min(low, *places) - 0.2 * span, max(high, *places) + 0.3 * span
    if not used:
        lower, upper = within_metric(lower, upper, ends, unit)
    return Axis(title, places, lower, upper, ticks=tuple(each for each in ticks if lower <= each[0] <= upper))


def _across(share: float) -> float:
    return round(_AREA.left + share * (_AREA.right - _AREA.left), 1)


def _down(share: float) -> float:
    return round(_AREA.bottom - share * (_AREA.bottom - _AREA.top), 1)


def _point(run: ChartRun, x: Axis, y: Axis, largest: int) -> ChartPoint:
    place = x.share(run.p50_ms), y.share(run.score if math.isfinite(run.score) else _beyond(y, run.score))
    low, high = run.spread or (math.nan, math.nan)
    ends = [_down(y.share(end)) if math.isfinite(end) else _down(place[1]) for end in (low, high)]
    return ChartPoint(
        name=run.name,
        note=run.note,
        kind=run.kind,
        x=_across(place[0]),
        y=_down(place[1]),
        x_end=min(_across(x.share(max(run.p90_ms, run.p50_ms))), _AREA.right),
        y_low=ends[0],
        y_high=ends[1],
        radius=round(max(5.0, 13.0 * math.sqrt(run.size_bytes / largest)) if largest else 6.0, 1),
        label="",
        label_x=0.0,
        label_y=0.0,
    )


def _beyond(y: Axis, score: float) -> float:
    return max(y.values) if score > 0 else min(y.values)


def _front(runs: Sequence[ChartRun], higher_is_better: bool) -> list[int]:
    """Return the Pareto front of this machine's runs: those that no other run beats in speed or score without being
    worse in the other.
    """
    sign = 1.0 if higher_is_better else -1.0
    here = [i for i, run in enumerate(runs) if run.kind != "elsewhere"]
    front: list[int] = []
    best = -math.inf
    for i in sorted(here, key=lambda i: (runs[i].p50_ms, -sign * runs[i].score)):
        if not front or sign * runs[i].score > best:
            front.append(i)
            best = sign * runs[i].score
    return front


def _labelled(
    points: list[ChartPoint], runs: Sequence[ChartRun], front: list[int], higher_is_better: bool
) -> tuple[ChartPoint, ...]:
    """Label the float model, pinned runs, the front, and then the newest, as many as fit."""
    first = [i for i, run in enumerate(runs) if run.kind == "float" or run.pinned]
    order = list(dict.fromkeys([*first, *front, *reversed(range(len(runs)))]))[:_LABELS]
    marks = [_label_of(points[i]) for i in order]
    corner = Box(_AREA.left, _AREA.top, _AREA.left + 70, _AREA.top + 20)
    if not higher_is_better:
        corner = Box(_AREA.left, _AREA.bottom - 20, _AREA.left + 70, _AREA.bottom)
    # marks without a label are in the way, too
    others = [Box.around(p.x, p.y, 2 * p.radius, 2 * p.radius) for i, p in enumerate(points) if i not in order][:100]
    result = list(points)
    for i, place in zip(order, place_labels(marks, _AREA, [corner, *others]), strict=True):
        result[i] = _with_label(points[i], place)
    return tuple(result)


def _label_of(point: ChartPoint) -> Point:
    width = len(_short(point.name)) * _LETTER + 6
    return Point(point.x, point.y, point.radius, point.x_end + 4, width, _LABEL_HEIGHT)


def _with_label(point: ChartPoint, place: Place) -> ChartPoint:
    x, y = round(point.x + place.dx, 1), round(point.y + place.dy + 4, 1)
    return replace(point, label=_short(point.name), label_x=x, label_y=y)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 1] + "…"


def chart_svg(chart: Chart) -> str:
    """Return the chart as SVG with both themes inside; "" without runs."""
    if not chart.points:
        return ""
    area = f'x="{chart.left}" y="{chart.top}" width="{chart.right - chart.left}" height="{chart.bottom - chart.top}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {chart.width} {chart.height}" width="{chart.width}" '
        f'height="{chart.height}" role="img" aria-label="{html.escape(chart.title)}">',
        f"<title>{html.escape(chart.title)}</title><style>{_css()}</style>",
        f'<rect class="page" width="{chart.width}" height="{chart.height}" rx="8"/><rect class="area" {area}/>',
        *(f'<path class="grid" d="M{tick.at:g} {chart.top}V{chart.bottom}"/>' for tick in chart.x_ticks),
        *(f'<path class="grid" d="M{chart.left} {tick.at:g}H{chart.right}"/>' for tick in chart.y_ticks),
        *(_text(tick.at, chart.bottom + 18, tick.text, "middle") for tick in chart.x_ticks),
        *(_text(chart.left - 8, tick.at + 4, tick.text, "end") for tick in chart.y_ticks),
        _text((chart.left + chart.right) / 2, chart.height - 10, chart.x_title, "middle"),
        f'<text class="dim" text-anchor="middle" transform="translate(16 {(chart.top + chart.bottom) / 2:g}) '
        f'rotate(-90)">{html.escape(chart.y_title)}</text>',
        _text(chart.left + 6, chart.top + 15 if "↖" in chart.better else chart.bottom - 7, chart.better, "start"),
        *_front_line(chart),
        *(_mark(point, chart.right) for point in chart.points),
        *(_label(point) for point in chart.points if point.label),
        "</svg>",
    ]
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="dim" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _front_line(chart: Chart) -> list[str]:
    pairs = list(zip(chart.front[::2], chart.front[1::2], strict=False))
    if len(pairs) < 2:
        return []
    return [f'<polyline class="front" points="{" ".join(f"{x:g},{y:g}" for x, y in pairs)}"/>']


def _mark(point: ChartPoint, edge: int) -> str:
    x, y, r = point.x, point.y, point.radius
    shape = f'<circle cx="{x:g}" cy="{y:g}" r="{r:g}"/>'
    if point.kind == "float":
        shape = f'<path d="M{x:g} {y - r:g}L{x + r:g} {y:g}L{x:g} {y + r:g}L{x - r:g} {y:g}Z"/>'
    arrow = "l-6 -4m6 4l-6 4" if point.x_end >= edge else ""  # it goes on beyond the plot
    d = f"M{x:g} {y:g}H{point.x_end:g}{arrow}M{x:g} {point.y_low:g}V{point.y_high:g}"
    whiskers = f'<path class="whisker" d="{d}"/>'
    about = html.escape(f"{point.name}: {point.note}")
    return f'<g class="{point.kind}"><title>{about}</title>{whiskers}{shape}</g>'


def _label(point: ChartPoint) -> str:
    middle = point.label_y - 4
    far = math.hypot(point.label_x - point.x, middle - point.y) > point.radius + 60 and point.label_x != point.x
    leader = f'<path class="grid" d="M{point.x:g} {point.y:g}L{point.label_x:g} {middle:g}"/>' if far else ""
    text = html.escape(point.label)
    return f'{leader}<text x="{point.label_x:g}" y="{point.label_y:g}" text-anchor="middle">{text}</text>'


def _css() -> str:
    def colours(shades: dict[str, Shade], dark: bool) -> str:
        return ";".join(f"--{name}:{shade.dark if dark else shade.light}" for name, shade in shades.items())

    shades = {"page": PAGE, "text": TEXT, "dim": DIM, "line": LINE, "accent": ACCENT}
    return (
        f"svg{{{colours(shades, False)}}}@media (prefers-color-scheme:dark){{svg{{{colours(shades, True)}}}}}"
        "text{font:12px system-ui,sans-serif;fill:var(--text)}text.dim{fill:var(--dim)}.page{fill:var(--page)}"
        ".area{fill:none;stroke:var(--line)}.grid{stroke:var(--line);fill:none}"
        ".front{fill:none;stroke:var(--accent);stroke-width:1.5;stroke-dasharray:5 4}"
        ".whisker{stroke:var(--dim);fill:none}"
        ".run circle{fill:var(--accent);fill-opacity:.75;stroke:var(--page)}.float path:last-child{fill:var(--dim)}"
        ".elsewhere circle{fill:none;stroke:var(--accent);stroke-width:1.5}"
    )
