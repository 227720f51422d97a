from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re

import pytest

from prepbench.measure.comparison import CandidateResult, Comparison
from prepbench.results.speed_up import EAGER, Reference
from prepbench.views import charts
from prepbench.views.charts import Box, Point, place_labels


def row(name, metric, p50, p90, megabytes=10.0, interval=None, **more):
    size = None if megabytes is None else int(megabytes * 1e6)
    timed = "own process" if p50 is not None else "not timed"
    return CandidateResult(name, metric, 0.0, p50, p90, interval, size, "saved artifact", "eager", timed, **more)


def comparison(*rows, unit="", higher_is_better=True, rounds=10):
    return Comparison(rows, "SQNR" if unit else "accuracy", unit, higher_is_better, 64, 8, rounds, 2)


BESIDE = Reference(EAGER, 33.1, (32.9, 33.3))
THREE = comparison(
    row("float32", 0.912, 33.1, 35.2, 102.4, (32.9, 33.3), is_float=True),
    row("onnxruntime int8", 0.9085, 11.8, 12.6, 25.6, (11.7, 11.9), group="ort", reference=BESIDE),
    row("inductor int8", 0.9097, 8.5, 9.4, 25.6, (8.4, 8.6), group="inductor", reference=BESIDE),
)


def labels(figure):
    return [a for a in figure.layout.annotations if a.showarrow]


def test_points_whiskers_and_marker_areas():
    figure = charts.comparison_figure(THREE)
    assert [(t.x[0], t.y[0]) for t in figure.data] == [(33.1, 0.912), (11.8, 0.9085), (8.5, 0.9097)]
    assert [round(t.x[0] + t.error_x.array[0], 6) for t in figure.data] == [35.2, 12.6, 9.4]
    assert all(tuple(t.error_x.arrayminus) == (0,) for t in figure.data)
    areas = [t.marker.size**2 for t in figure.data]
    assert areas[0] / areas[1] == pytest.approx(4.0)  # 102.4 MB against 25.6 MB
    assert figure.data[0].marker.symbol != figure.data[1].marker.symbol  # told by shape, not by colour alone


@pytest.mark.parametrize("log", [False, True])
def test_an_axis_goes_from_one_end_to_the_other(log):
    axis = charts.Axis("ms", (), 0.5, 200.0, log)
    low, *between, high = (axis.share(0.5 * 400 ** (step / 8)) for step in range(9))
    assert (low, high) == pytest.approx((0.0, 1.0))
    assert between == sorted(between)
    assert 0 < between[0] < between[-1] < 1
    middle = 10.0 if log else 100.25
    assert axis.share(middle) == pytest.approx(0.5)


def test_every_point_is_labelled_and_inside():
    figure = charts.comparison_figure(THREE)
    assert ["<b>float32</b>" in a.text for a in labels(figure)] == [True, False, False]
    assert "11.8 (11.7 to 11.9) ms · 25.6 MB<br>2.81× of PyTorch eager" in labels(figure)[1].text
    (x0, x1), (y0, y1) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert x0 == 0
    assert all(x0 <= t.x[0] + t.error_x.array[0] <= x1 and y0 < t.y[0] < y1 for t in figure.data)


def test_hover_has_all_numbers():
    hover = charts.comparison_figure(THREE).data[1].hovertemplate
    for words in (
        "onnxruntime int8",
        "accuracy: 0.9085",
        "p50 ms: 11.8 (11.7 to 11.9)",
        "p90 ms: 12.6",
        "speed-up: 2.81× of PyTorch eager",
        "size MB: 25.6",
    ):
        assert words in hover


@pytest.mark.parametrize(("higher", "arrow", "edge"), [(True, "↖", 1), (False, "↙", 0)])
def test_the_better_direction_is_told_and_shaded(higher, arrow, edge):
    figure = charts.comparison_figure(comparison(*THREE.rows, higher_is_better=higher))
    [direction] = [a for a in figure.layout.annotations if not a.showarrow]
    assert direction.text == f"{arrow} better"
    assert direction.y == edge
    [shade] = figure.layout.shapes
    assert (shade.x0, shade.x1, shade.y0) == (0, 33.1, 0.912)
    assert (shade.y1 > shade.y0) == higher


def test_a_reference_of_infinite_sqnr_has_a_place_of_its_own():
    figure = charts.comparison_figure(
        comparison(
            row("float32", math.inf, 33.0, 35.0), row("int8", 36.2, 8.8, 9.6), row("int4", 18.4, 9.8, 10), unit="dB"
        )
    )
    values = [t.y[0] for t in figure.data]
    assert values[1:] == [36.2, 18.4]
    assert math.isfinite(values[0])
    assert values[0] > 36.2
    ticks = dict(zip(figure.layout.yaxis.ticktext, figure.layout.yaxis.tickvals, strict=True))
    assert ticks.pop("∞") == values[0]
    assert ticks
    assert all(float(text) == value < values[0] for text, value in ticks.items())
    assert "reference" in figure.data[0].hovertemplate


def test_all_equal_to_the_reference():
    figure = charts.comparison_figure(comparison(row("a", math.inf, 1.0, 1.1), row("b", math.inf, 2.0, 2.1), unit="dB"))
    assert figure.data[0].y == figure.data[1].y
    assert tuple(figure.layout.yaxis.ticktext) == ("∞",)


def test_very_different_latencies_use_a_logarithmic_axis():
    figure = charts.comparison_figure(comparison(row("slow", 0.9, 133.0, 180.0), row("fast", 0.8, 0.8, 0.9)))
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.range[0] < math.log10(0.8) < math.log10(180) < figure.layout.xaxis.range[1]
    assert [a.x for a in labels(figure)] == pytest.approx([math.log10(133.0), math.log10(0.8)])


def test_without_latency_the_metric_is_drawn_against_the_size():
    figure = charts.comparison_figure(
        comparison(row("a", 0.9, None, None, 40.0), row("f", 0.8, None, None, None), rounds=0)
    )
    assert [(t.x[0], t.y[0]) for t in figure.data] == [(40.0, 0.9)]
    assert "MB" in figure.layout.xaxis.title.text


def test_what_was_not_timed_is_no_point_of_the_chart():
    unlike = row(
        "tensorrt int8", 0.9, None, None, 25.6, note="not timed: it ran in ONNX Runtime, not on its own hardware"
    )
    figure = charts.comparison_figure(comparison(*THREE.rows, unlike))
    assert [trace.name for trace in figure.data] == [row.name for row in THREE.rows]
    first = charts.comparison_figure(comparison(unlike, *THREE.rows[1:]))
    assert [trace.name for trace in first.data] == [row.name for row in THREE.rows[1:]]


def test_a_label_says_where_no_ratio_is_known():
    busy = comparison(*(dataclasses.replace(row, busy=0.4) for row in THREE.rows))
    assert "measure again" in labels(charts.comparison_figure(busy))[1].text
    assert "×" not in labels(charts.comparison_figure(busy))[1].text


def test_a_longer_title_takes_nothing_from_the_plot(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    plain = comparison(row("float", 0.9, 2.0, 2.2), row("int8", 0.88, 1.0, 1.2), unit="dB")
    busy = dataclasses.replace(plain, busy_cores=1.5)
    short, long = (charts.comparison_figure(each).layout for each in (plain, busy))
    assert "other programs kept 1.5 of 2 cores busy" in long.title.text
    assert long.title.text.count("<br>") == short.title.text.count("<br>") + 1
    assert long.margin.t > short.margin.t
    assert long.height - long.margin.t == short.height - short.margin.t


def test_nothing_but_the_data_has_a_background_and_grey_text_reads_on_both_themes():
    layout = charts.comparison_figure(THREE).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0,0,0,0)"
    colors = {
        layout.font.color,
        layout.title.font.color,
        *(a.font.color for a in labels(charts.comparison_figure(THREE))),
    }
    for color in colors:
        assert min(contrast(color, "#ffffff"), contrast(color, "#111111")) > 4.3
    for color in (charts.FIRST, charts.OTHER):
        assert min(contrast(color, "#ffffff"), contrast(color, "#111111")) > 3.0


def contrast(one, other):
    def luminance(color):
        channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_names_are_text_not_markup():
    name = "<img src=x onerror=alert(1)>%{x}"
    result = comparison(row(name, 0.9, 1.0, 1.1), row("a" * 60, 0.8, 2.0, 2.1))
    figure = charts.comparison_figure(result)
    assert "<img" not in figure.to_json().replace("\\u003c", "<")
    assert "<img" not in charts.comparison_html(result)
    assert "%{x}" not in figure.data[0].hovertemplate
    assert "a" * 31 not in labels(figure)[1].text
    assert "a" * 60 in figure.data[1].hovertemplate


def test_the_bundle_is_plain_json_and_the_same_every_time():
    bundle = charts.comparison_bundle(THREE)
    assert json.dumps(bundle) == json.dumps(charts.comparison_bundle(THREE))
    chart = bundle["application/vnd.plotly.v1+json"]
    assert {"data", "layout"} <= set(chart)
    assert len(json.dumps(chart)) < 15_000
    assert bundle["text/html"].count("<tr>") == 4
    assert "10 interleaved rounds" in bundle["text/html"]


def test_a_whisker_far_beyond_the_medians_is_cut_where_the_plot_ends():
    rows = [row("float32", 1.0, 0.77, 32.8), row("int8", 1.0, 0.23, 0.29), row("float32 ORT", 1.0, 0.28, 0.33)]
    figure = charts.comparison_figure(comparison(*rows))
    (_, end), (low, _) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert end < 2 * 0.77
    assert low < 0.95  # equal scores have no fine scale
    slow, fast, *_, cut = figure.data
    assert slow.x[0] + slow.error_x.array[0] == pytest.approx(end)
    assert fast.x[0] + fast.error_x.array[0] == pytest.approx(0.29)
    assert (cut.x, cut.y) == ((end,), (1.0,))
    assert cut.hovertemplate == ("float32: p90 32.8 ms<extra></extra>",)
    assert all(math.hypot(label.ax, label.ay) < 200 for label in labels(figure))


AREA = Box(0, 0, 520, 280)


def boxes(points):
    places = place_labels(points, AREA)
    return [
        Box.around(p.x + q.dx, p.y + q.dy, p.label_width, p.label_height) for p, q in zip(points, places, strict=True)
    ]


def point(x, y, radius=8, width=120):
    return Point(x, y, radius, x + 15, width, 36)


@pytest.mark.parametrize(
    "points",
    [
        [point(100, 100)],
        [point(100, 100), point(104, 101)],
        [point(100, 100), point(101, 100), point(102, 100)],
        [point(260, 140 + i) for i in range(4)],
        [point(20, 20), point(500, 20), point(500, 260), point(20, 260)],
        [point(500, 140, 15), point(498, 142, 15), point(502, 139, 15), point(503, 140, 15)],
        [point(100, 100, 15), point(130, 90), point(160, 110), point(90, 130)],
    ],
    ids=["one", "two near", "three near", "four near", "corners", "four near at the edge", "cluster"],
)
def test_labels_cover_neither_each_other_nor_a_marker_and_stay_inside(points):
    placed = boxes(points)
    assert all(one.overlap(other) == 0 for one, other in itertools.combinations(placed, 2))
    markers = [Box.around(p.x, p.y, 2 * p.radius, 2 * p.radius) for p in points]
    assert all(label.overlap(marker) == 0 for label in placed for marker in markers)
    assert all(label.outside(AREA) <= 2 for label in placed)  # the margins around the area are far wider


def test_labels_keep_off_reserved_boxes():
    reserved = Box(40, 40, 160, 95)
    [place] = place_labels([point(100, 100)], AREA, [reserved])
    assert Box.around(100 + place.dx, 100 + place.dy, 120, 36).overlap(reserved) == 0


@pytest.mark.parametrize(
    ("scores", "unit", "least", "most"),
    [((0.98, 1.0), "", -math.inf, 1.0), ((0.0, 0.01), "", 0.0, 1.0), ((0.2, 31.0), "dB", 0.0, math.inf)],
)
def test_the_axis_stays_within_what_a_metric_can_be(scores, unit, least, most):
    rows = [row(f"r{at}", score, 1.0 + at, 1.1 + at) for at, score in enumerate(scores)]
    low, high = charts.comparison_figure(comparison(*rows, unit=unit)).layout.yaxis.range
    assert least <= low < min(scores) or low == min(scores) == 0
    assert max(scores) <= high <= most


def test_a_metric_below_zero_keeps_its_axis():
    low, _ = charts.comparison_figure(comparison(row("a", -0.1, 1.0, 1.1), row("b", 0.3, 2.0, 2.1))).layout.yaxis.range
    assert low < -0.1


def test_each_series_of_the_runs_has_a_name_of_its_own():
    runs = [row(f"run {at}", 0.9 + 0.0001 * at, 20.0 - at % 5, 21.0) for at in range(30)]
    figure = charts.runs_figure(comparison(THREE.rows[0], *runs), {run.name: f"id {run.name}" for run in runs})
    names = [trace.name for trace in figure.data]
    assert all(names)
    assert len(set(names)) == len(names)
    assert figure.data[1].customdata[0] == f"id {figure.data[1].name}"


def test_a_logarithmic_axis_has_ticks_at_1_2_and_5():
    figure = charts.comparison_figure(comparison(row("slow", 0.9, 133.0, 180.0), row("fast", 0.8, 0.8, 0.9)))
    assert figure.layout.xaxis.dtick == "D2"


def test_lines_of_the_title_end_within_the_plot():
    title = charts.comparison_figure(THREE).layout.title.text
    lines = [re.sub("<[^>]*>", "", line) for line in title.split("<br>")]
    assert max(map(len, lines)) <= 84


def test_labels_leave_each_other_and_points_of_other_runs_alone():
    runs = [row(f"run {at}", 0.9 + 0.001 * (at % 9), 3.0 + 2 * at, 4.0 + 2 * at) for at in range(14)]
    figure = charts.runs_figure(comparison(THREE.rows[0], *runs), {})
    (x0, x1), (y0, y1) = figure.layout.xaxis.range, figure.layout.yaxis.range
    boxes = []
    for label in labels(figure):
        lines = [re.sub("<[^>]*>", "", line) for line in label.text.split("<br>")]
        width, height = 6.2 * max(map(len, lines)), 17 * len(lines)
        x = (label.x - x0) / (x1 - x0) * 520 + label.ax
        y = (y1 - label.y) / (y1 - y0) * 284 + label.ay
        boxes.append((x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    over = [
        (one, other)
        for at, one in enumerate(boxes)
        for other in boxes[:at]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]
    assert len(over) <= len(boxes) // 4, over
