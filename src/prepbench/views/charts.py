"""Charts of results and runs as plotly figures, transparent, so that they are legible on light and dark pages."""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from prepbench.measure.comparison import CandidateResult, Comparison, megabytes, milliseconds, number
from prepbench.results.speed_up import SpeedUp

if TYPE_CHECKING:
    import plotly.graph_objects as go

_GAP = 6.0


# Works in pixels with y pointing down, on an area of a known size. Each label tries a fixed list of places around its
# point, nearest first, and takes the one with the least overlap; so the same points always give the same picture.


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, width: float, height: float) -> Box:
        """Return the rectangle with its centre at ``(x, y)``."""
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def overlap(self, other: Box) -> float:
        """Return the common area in square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def holds(self, point: Point) -> bool:
        """Return whether the point's centre lies inside."""
        return self.left <= point.x <= self.right and self.top <= point.y <= self.bottom

    def outside(self, area: Box) -> float:
        """Return by how many pixels it exceeds ``area``."""
        return (
            max(0.0, area.left - self.left)
            + max(0.0, self.right - area.right)
            + max(0.0, area.top - self.top)
            + max(0.0, self.bottom - area.bottom)
        )


@dataclass(frozen=True)
class Point:
    """A marker at ``(x, y)``, its radius, the end of its whisker, and the size of its label; all in pixels."""

    x: float
    y: float
    radius: float
    whisker_x: float
    label_width: float
    label_height: float

    def obstacles(self) -> list[Box]:
        """The marker and its whisker."""
        marker = Box.around(self.x, self.y, 2 * self.radius, 2 * self.radius)
        return [marker, Box(self.x, self.y - 4, max(self.whisker_x, self.x), self.y + 4)]


@dataclass(frozen=True)
class Place:
    """The centre of a label relative to its point; one that is not ``near`` needs a leader line."""

    dx: float
    dy: float
    near: bool


def place_labels(points: Sequence[Point], area: Box, reserved: Sequence[Box] = ()) -> list[Place]:
    """Return a place for each point's label, off the ``reserved`` boxes.

    Example:
        >>> place_labels([Point(100, 100, 8, 100, 60, 20)], Box(0, 0, 200, 200))
        [Place(dx=0.0, dy=-24.0, near=True)]
    """
    obstacles = [*reserved, *(box for point in points for box in point.obstacles())]
    taken: list[Box] = []
    places = []
    for point in points:
        costs = [(_cost(point, place, [*obstacles, *taken], area), i) for i, place in enumerate(_choices(point))]
        place = _choices(point)[min(costs)[1]]
        taken += [_box(point, place), *_leader(point, place)]
        places.append(place)
    return places


def _choices(point: Point) -> list[Place]:
    up = point.radius + _GAP + point.label_height / 2
    side = point.radius + _GAP + point.label_width / 2
    past_whisker = max(point.whisker_x - point.x, 0.0) + _GAP + point.label_width / 2
    shift = point.label_width / 2 - point.radius
    places = [Place(0.0, -up, True), Place(0.0, up, True), Place(max(side, past_whisker), 0.0, True)]
    places += [Place(-side, 0.0, True)]
    places += [Place(dx, dy, True) for dy in (-up, up) for dx in (shift, -shift)]
    for step in (1, 2, 3):
        far = up + step * (point.label_height + _GAP)
        places += [Place(dx, dy, False) for dy in (-far, far) for dx in (0.0, shift, -shift, side, -side)]
        wide = side + step * point.label_width / 2
        places += [Place(dx, dy, False) for dy in (-up, up) for dx in (wide, -wide)]
    return places


def _box(point: Point, place: Place) -> Box:
    return Box.around(point.x + place.dx, point.y + place.dy, point.label_width, point.label_height)


def _cost(point: Point, place: Place, others: Sequence[Box], area: Box) -> float:
    box = _box(point, place)
    covered = sum(box.overlap(other) for other in others)
    crossed = sum(dot.overlap(other) for dot in _leader(point, place) for other in others if not other.holds(point))
    length = 0.0 if place.near else math.hypot(place.dx, place.dy)  # a long leader costs as much as some overlap
    return covered + 5.0 * crossed + 50.0 * box.outside(area) + 0.5 * length


def _leader(point: Point, place: Place) -> list[Box]:
    """Return the leader line as a row of small boxes, from the marker's edge to the label's."""
    if place.near:
        return []
    length = math.hypot(place.dx, place.dy)
    shares = [s / 24 for s in range(25) if s / 24 * length > point.radius]
    dots = [Box.around(point.x + s * place.dx, point.y + s * place.dy, 3, 3) for s in shares]
    label = _box(point, place)
    return [dot for dot in dots if not dot.overlap(label)]


TEXT = "#79797a"
"""Grey with the same contrast (4.4:1) on white and on #111111; style sheets find texts of this colour."""
LINE = "rgba(128,128,128,0.55)"
GRID = "rgba(128,128,128,0.18)"
FIRST = "#767A80"
OTHER = "#3F86BD"
RING = "rgba(255,255,255,0.6)"  # keeps markers that cover each other apart
BETTER = "rgba(63,134,189,0.09)"

# not responsive: JupyterLab resizes charts itself, and a responsive one loses its height then
CONFIG = {"displaylogo": False}
RESPONSIVE = {**CONFIG, "responsive": True}
"""Of charts with a row for each layer or step, which fill the width of other places, too."""

LOOK: dict[str, Any] = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": TEXT},
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": TEXT},
}
"""What the layouts of figures have in common."""

_HEIGHT = 450
_MARGIN = {"l": 76, "r": 28, "t": 108, "b": 58}
_LINES, _LINE = 3, 18
# labels are placed for a narrow output cell; on a wider one the points only move apart
_AREA = Box(0.0, 0.0, 520.0, float(_HEIGHT - _MARGIN["t"] - _MARGIN["b"]))
_LARGEST_MARKER = 30.0
_SMALLEST_MARKER = 11.0
_LOG_FROM_RATIO = 25.0
_FARTHEST = 1.5  # times the slowest median: how far whiskers stretch an axis
_NAME_LENGTH, _SPEED_LENGTH, _TITLE_LENGTH = 30, 45, 84
_UNUSED_BUTTONS = ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"]
_SIZES = (7.4, 6.0, 18.0)  # pixels: a letter of the name, a letter of the numbers, the height of a line


@dataclass(frozen=True)
class Axis:
    """An axis: positions of its points, its range, and its ticks where they are not plotly's."""

    title: str
    values: tuple[float, ...]
    low: float
    high: float
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    def share(self, value: float) -> float:
        """Return the position of ``value`` between the ends, 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def layout(self) -> dict[str, Any]:
        """Return the axis in plotly's form."""
        ends = [math.log10(self.low), math.log10(self.high)] if self.log else [self.low, self.high]
        own: dict[str, Any] = {"nticks": 8}
        if self.ticks:
            own = {"tickvals": [v for v, _ in self.ticks], "ticktext": [t for _, t in self.ticks]}
        elif self.log:
            own = {"dtick": "D2", "tickformat": "~g"}  # at 1, 2 and 5 of each decade
        return {
            "title": {"text": html.escape(self.title), "standoff": 12, "font": {"size": 13}},
            "range": ends,
            "type": "log" if self.log else "linear",
            "gridcolor": GRID,
            "linecolor": LINE,
            "showline": True,
            "zeroline": False,
            "ticks": "outside",
            "tickcolor": LINE,
            **own,
        }


def comparison_figure(
    comparison: Comparison, named: Collection[str] | None = None, beside: Sequence[CandidateResult] = ()
) -> go.Figure:
    """Draw the metric against the median latency, with a whisker to the 90th percentile and the size as marker area.

    Without latency the metric is drawn against the size. Candidates without it are left out, such as those that did not
    run on their own hardware.
    """
    import plotly.graph_objects as go

    timed = any(row.p50_ms is not None for row in comparison.rows)
    drawn = [row for row in comparison.rows if named is None or row.name in named]
    rows = [row for row in drawn if (row.p50_ms if timed else row.size_bytes) is not None]
    figure = go.Figure(layout=_layout(comparison, timed, any(row.size_bytes for row in rows)))
    if not rows:
        return figure
    placed = [*rows, *beside]
    x, y = _x_axis(placed, timed, "token" if comparison.workload else "call"), _y_axis(comparison, placed)
    diameters = _diameters(rows, timed)
    header, *body = comparison.cells()
    cells = dict(zip((row.name for row in comparison.rows), body, strict=True))
    found = dict(zip(cells, comparison.speed_ups, strict=True))
    for i, row in enumerate(rows):
        hover = _hover(header, cells[row.name])
        first = row is comparison.rows[0]
        figure.add_trace(_marker(row, hover, x.values[i], y.values[i], diameters[i], first, x.high if timed else None))
    if timed:
        _mark_cut(figure, rows, x, y)
    figure.update_layout(xaxis=x.layout(), yaxis=y.layout())
    if rows[0] is comparison.rows[0]:
        _add_guide(figure, comparison, x, y)
    corner = Box(0, 0, 80, 26) if comparison.higher_is_better else Box(0, _AREA.bottom - 26, 80, _AREA.bottom)
    words = [_words(comparison, row, found[row.name], timed) for row in rows]
    points = [_point(row, words[i], x, y, i, diameters[i], timed) for i, row in enumerate(rows)]
    for i, place in enumerate(place_labels(points, _AREA, [corner])):
        figure.add_annotation(_label(words[i], x, y.values[i], i, place, diameters[i]))
    return figure


def comparison_html(comparison: Comparison) -> str:
    """Return the table as HTML with the fonts and colours of the page."""
    remarks = "".join(f"<br>{html.escape(note)}" for note in comparison.notes)
    return f"{cells_html(comparison.cells())}<small>{html.escape(comparison.caption)}{remarks}</small>"


def cells_html(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text, the first of which has the heads of columns, as an HTML table."""
    header, *body = rows
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def chart_bundle(figure: go.Figure, shown: str, text: str, config: Mapping[str, bool] = CONFIG) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the HTML, else the text."""
    chart = json.loads(figure.to_json())
    return {
        "application/vnd.plotly.v1+json": {**chart, "config": dict(config)},
        "text/html": shown,
        "text/plain": text,
    }


def comparison_bundle(comparison: Comparison) -> dict[str, Any]:
    """Return the notebook output: the chart if plotly's renderer is installed, else the table, else text."""
    return chart_bundle(comparison_figure(comparison), comparison_html(comparison), repr(comparison))


def _layout(comparison: Comparison, timed: bool, sized: bool) -> dict[str, Any]:
    title = _title(comparison, timed, sized)
    more = _LINE * max(title.count("<br>") - _LINES, 0)  # a longer title must not shrink the plot
    return {
        **LOOK,
        "height": _HEIGHT + more,
        "margin": _MARGIN | {"t": _MARGIN["t"] + more},
        "title": {
            "text": title,
            "font": {"size": 16, "color": TEXT},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 0.94,
            "yanchor": "top",
        },
        "modebar": {**LOOK["modebar"], "remove": _UNUSED_BUTTONS},
        "showlegend": False,
        "hovermode": "closest",
        "annotations": [_direction(comparison.higher_is_better)],
    }


def _title(comparison: Comparison, timed: bool, sized: bool) -> str:
    heading = f"{comparison.metric} against {'latency' if timed else 'size'}"
    keys = ["marker area: size on disk"] if timed and sized else []
    first = comparison.rows[0]
    is_drawn = (first.p50_ms if timed else first.size_bytes) is not None
    if comparison.unit != "dB" and len(comparison.rows) > 1 and is_drawn:
        keys.append(f"shaded: {'faster' if timed else 'smaller'} and better than {_short(comparison.rows[0].name)}")
    lines = [*comparison.caption.split("; "), " · ".join(keys)]
    lines = [part for line in lines for part in textwrap.wrap(line, _TITLE_LENGTH)]  # plotly would cut it off
    small = "".join(f"<br><span style='font-size:12px'>{html.escape(line)}</span>" for line in lines)
    return f"<b>{html.escape(heading)}</b>{small}"


def _direction(higher_is_better: bool) -> dict[str, Any]:
    """Return the annotation that names the better corner."""
    up = {"text": "↖ better", "y": 1, "yanchor": "top", "yshift": -4}
    down = {"text": "↙ better", "y": 0, "yanchor": "bottom", "yshift": 4}
    corner = up if higher_is_better else down
    place = {"x": 0, "xref": "paper", "yref": "paper", "xanchor": "left", "xshift": 6}
    return {**place, **corner, "showarrow": False, "font": {"size": 13, "color": TEXT}}


def _x_axis(rows: list[CandidateResult], timed: bool, unit: str) -> Axis:
    if not timed:
        sizes = tuple((row.size_bytes or 0) / 1e6 for row in rows)
        return Axis("size on disk (MB)", sizes, 0.0, max(*sizes, 1e-9) * 1.15)
    middles = tuple(row.p50_ms or 0.0 for row in rows)
    high = last_latency(middles, [row.p90_ms or 0.0 for row in rows])
    title = f"latency (ms per {unit}): median, whisker to p90"
    if min(middles) > 0 and max(middles) / min(middles) > _LOG_FROM_RATIO:
        return Axis(title + ", log scale", middles, min(middles) / 2, high * 1.6, log=True)
    return Axis(title, middles, 0.0, high * 1.15)


def last_latency(middles: Sequence[float], whiskers: Sequence[float]) -> float:
    """Return the latency up to which an axis has to reach. One whisker far beyond all medians would press the points
    into a corner: it is cut where the axis ends.

    Example:
        >>> last_latency([2.0, 4.0], [2.1, 5.0]), last_latency([2.0, 4.0], [2.1, 90.0])
        (5.0, 6.0)
    """
    slowest = max(middles)
    return max(slowest, min(max(whiskers), _FARTHEST * slowest))


def _y_axis(comparison: Comparison, rows: list[CandidateResult]) -> Axis:
    finite = [row.metric for row in rows if math.isfinite(row.metric)]
    seen = [*finite, *(bound for row in rows for bound in row.spread or ())]
    low, high = (min(seen), max(seen)) if finite else (0.0, 0.0)
    span = score_span(low, high, 3.0 if comparison.unit == "dB" else max(0.004, 0.01 * max(abs(low), abs(high))))
    above, below = high + 0.4 * span, low - 0.4 * span
    if len(finite) == len(rows):
        middle, half, (least_value, most) = (low + high) / 2, 0.9 * span, comparison.bounds
        # where the bounds are not known, the values tell them; markers on the edge are not clipped
        lower, upper = within_metric(middle - half, middle + half, seen, comparison.unit)
        ends = max(lower, least_value), min(upper, most)
        return Axis(comparison.metric_label, tuple(row.metric for row in rows), *ends)
    # a score of infinity gets a place of its own past the others, marked as such on the axis
    beyond = {math.inf: above + 0.3 * span, -math.inf: below - 0.3 * span}
    values = tuple(beyond.get(row.metric, row.metric) for row in rows)
    ticks = [(v, f"{v:g}") for v in round_ticks(low - 0.1 * span, high + 0.1 * span)] if finite else []
    ticks += [(beyond[v], number(v)) for v in (math.inf, -math.inf) if any(row.metric == v for row in rows)]
    return Axis(
        comparison.metric_label,
        values,
        min(*values, low) - 0.4 * span,
        max(*values, high) + 0.45 * span,
        ticks=tuple(ticks),
    )


def score_span(low: float, high: float, least: float) -> float:
    """Return the span of scores that an axis shows: at least ``least``, and more where all are equal, since a fine
    scale would promise differences.

    Example:
        >>> score_span(0.9, 0.95, 0.01), score_span(1.0, 1.0, 0.01)
        (0.04999999999999993, 0.1)
    """
    return max(high - low, least, 0.1 * abs(high) if high == low else 0.0)


def within_metric(low: float, high: float, seen: Sequence[float], unit: str) -> tuple[float, float]:
    """Return the ends of an axis within what a metric can be, as far as its values tell: a share of 0 to 1, or no
    number below 0.

    Args:
        low: the end that leaves room below the values.
        high: the end above them.
        seen: the values and their whiskers.
        unit: of the metric; one with a unit may be above 1.

    Example:
        >>> within_metric(0.9, 1.03, [0.95, 1.0], "")
        (0.9, 1.0)
    """
    if not seen or min(seen) < 0:
        return low, high
    is_share = not unit and max(seen) <= 1
    return max(low, 0.0), min(high, 1.0) if is_share else high


def round_ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers between ``low`` and ``high``."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _diameters(rows: list[CandidateResult], timed: bool) -> list[float]:
    largest = max((row.size_bytes or 0) for row in rows)
    if not timed or largest == 0:
        return [_SMALLEST_MARKER + 3] * len(rows)
    return [max(_SMALLEST_MARKER, _LARGEST_MARKER * math.sqrt((row.size_bytes or 0) / largest)) for row in rows]


def _marker(
    row: CandidateResult, hover: str, x: float, y: float, diameter: float, first: bool, edge: float | None
) -> dict[str, Any]:
    """Return the marker of a candidate, its whisker cut at the ``edge`` of an axis of latencies."""
    color = FIRST if first else OTHER
    reach = min(row.p90_ms or 0, edge or 0) - (row.p50_ms or 0)
    whisker = {"type": "data", "symmetric": False, "array": [reach], "arrayminus": [0]}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": html.escape(row.name),
        "x": [x],
        "y": [y],
        "marker": {
            "size": diameter,
            "symbol": "diamond" if first else "circle",
            "color": color,
            "opacity": 0.9,
            "line": {"width": 1, "color": RING},
        },
        "cliponaxis": False,  # a full score lies on the edge
        "error_y": _error_y(row, color),
        "error_x": {**whisker, "color": color, "thickness": 1.5, "width": 5} if edge else None,
        "hovertemplate": f"{hover}<extra></extra>",
    }


def _mark_cut(figure: go.Figure, rows: Sequence[CandidateResult], x: Axis, y: Axis) -> None:
    """Put an arrow where a whisker leaves the plot."""
    cut = [(i, row) for i, row in enumerate(rows) if (row.p90_ms or 0.0) > x.high]
    if not cut:
        return
    figure.add_scatter(
        x=[x.high] * len(cut),
        y=[y.values[i] for i, _ in cut],
        mode="markers",
        marker={"symbol": "triangle-right", "size": 11, "color": [OTHER if i else FIRST for i, _ in cut]},
        cliponaxis=False,
        name="whiskers that go on",
        hovertemplate=[f"{html.escape(row.name)}: p90 {row.p90_ms:.3g} ms<extra></extra>" for _, row in cut],
    )


def _error_y(row: CandidateResult, color: str) -> dict[str, Any] | None:
    """Return a whisker over the scores on other draws of the data."""
    if row.spread is None or not math.isfinite(row.metric):
        return None
    low, high = row.spread
    up, down = max(high - row.metric, 0.0), max(row.metric - low, 0.0)
    return {"type": "data", "symmetric": False, "array": [up], "arrayminus": [down], "color": color, "thickness": 1}


def _hover(names: Sequence[str], cells: Sequence[str]) -> str:
    lines = [f"{html.escape(n)}: {html.escape(c)}" for n, c in zip(names[1:], cells[1:], strict=True) if c != "–"]
    return "<br>".join([f"<b>{html.escape(cells[0])}</b>", *lines]).replace("%{", "% {")


def _add_guide(figure: go.Figure, comparison: Comparison, x: Axis, y: Axis) -> None:
    """Shade the region that beats the first candidate in both; for an SQNR, which nothing can beat, draw a line."""
    if comparison.unit == "dB":
        figure.add_hline(y=y.values[0], line={"color": LINE, "width": 1, "dash": "dot"}, layer="below")
        return
    figure.add_shape(
        type="rect",
        x0=x.low,
        x1=x.values[0],
        y0=y.values[0],
        y1=y.high if comparison.higher_is_better else y.low,
        fillcolor=BETTER,
        line={"width": 0},
        layer="below",
    )


def _short(name: str, length: int = _NAME_LENGTH) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _words(comparison: Comparison, row: CandidateResult, found: SpeedUp | None, timed: bool) -> tuple[str, ...]:
    """Return the lines of a label: the name, the numbers, and the speed-up where there is one."""
    size = f"{megabytes(row.size_bytes)} MB" if row.size_bytes is not None else ""
    latency = f"{milliseconds(row.p50_ms, row.interval_ms)} ms" if timed else number(row.metric, comparison.unit)
    numbers = " · ".join(filter(None, [latency, size]))
    speed = _short(found.text, _SPEED_LENGTH) if timed and found is not None else ""
    return _short(row.name), *filter(None, (numbers, speed))


def _point(row: CandidateResult, words: Sequence[str], x: Axis, y: Axis, i: int, diameter: float, timed: bool) -> Point:
    name, *others = words
    end = min(row.p90_ms, x.high) if timed and row.p90_ms else x.values[i]
    return Point(
        x=x.share(x.values[i]) * _AREA.right,
        y=(1 - y.share(y.values[i])) * _AREA.bottom,
        radius=diameter / 2,
        whisker_x=x.share(end) * _AREA.right + 4,
        label_width=max(len(name) * _SIZES[0], *(len(line) * _SIZES[1] for line in others)) + 8,
        label_height=len(words) * _SIZES[2],
    )


def _label(words: Sequence[str], x: Axis, y: float, i: int, place: Place, diameter: float) -> dict[str, Any]:
    name, *others = map(html.escape, words)
    return {
        "text": f"<b>{name}</b><br><span style='font-size:11px'>{'<br>'.join(others)}</span>",
        # positions on a logarithmic axis are given as exponents
        "x": math.log10(x.values[i]) if x.log else x.values[i],
        "y": y,
        "showarrow": True,
        "ax": place.dx,
        "ay": place.dy,
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": "rgba(0,0,0,0)" if place.near else LINE,
        "standoff": diameter / 2,
        "font": {"size": 13, "color": TEXT},
        "align": "center",
    }


# The chart of all runs: accuracy against latency, with the Pareto front.


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
    others = [row for row in runs if row not in named and row.p50_ms is not None and math.isfinite(row.metric)]
    figure = comparison_figure(comparison, [row.name for row in named], others)
    for trace in figure.data:
        trace.customdata = [ids.get(html.unescape(trace.name), "")]
        if html.unescape(trace.name) in far:
            trace.marker.symbol, trace.marker.line.width = "circle-open", 2
    _draw_front(figure, comparison, front)
    _draw_others(figure, others, ids)
    return figure


def runs_bundle(comparison: Comparison, ids: Mapping[str, str], far: Collection[str] = ()) -> dict[str, Any]:
    """Return the output of the bench: the chart if plotly's renderer is installed, else the table, else text."""
    return chart_bundle(runs_figure(comparison, ids, far), comparison_html(comparison), repr(comparison))


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
        name="the fastest of each score",
    )


def _draw_others(figure: go.Figure, others: Sequence[CandidateResult], ids: Mapping[str, str]) -> None:
    """Add runs without a label as small hollow points."""
    if not others:
        return
    figure.add_scatter(
        x=[row.p50_ms for row in others],
        y=[row.metric for row in others],
        mode="markers",
        marker={"size": 8, "symbol": "circle-open", "color": LINE},
        customdata=[ids.get(row.name, "") for row in others],
        text=[html.escape(row.name) for row in others],
        hovertemplate="%{text}<br>%{x:.3g} ms, %{y:.4g}<extra></extra>",
        name="further runs",
    )
