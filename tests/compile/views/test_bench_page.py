"""A bench without a kernel: a page of bounded size that shows everything and runs nothing of a model."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prepbench.document.bench import BENCH_MIME_TYPE, Chart, Fact, Table
from prepbench.views.bench_chart import ChartRun, bench_chart, chart_svg
from prepbench.views.bench_page import (
    NO_KERNEL,
    bench_bundle,
    bench_html,
    facts_html,
    report_page,
    table_html,
    write_report,
)
from prepbench.views.display import LIMIT
from tests.compile.views.benches import GRAPH, HOSTILE, RUNS, shown


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def names(self) -> list[str]:
        return [tag for tag, _ in self.found]


def test_the_page_has_everything_that_was_shown() -> None:
    page = Elements(bench_html(shown(), GRAPH))
    for text in ("batch dynamic", "if x.sum() > 0:", "Use torch.where.", "layers.2", "pb.compile_model", "2.13"):
        assert text in page.text
    assert NO_KERNEL in page.text
    assert page.names().count("img") == 2


def test_texts_of_a_model_stay_text() -> None:
    plain, hostile = Elements(bench_html(shown(), GRAPH)), Elements(bench_html(shown(HOSTILE), GRAPH))
    assert hostile.names() == plain.names()
    assert all(not name.startswith("on") for _, attributes in hostile.found for name in attributes)
    assert f"layers.2{HOSTILE}" in hostile.text


def test_an_output_has_a_bounded_size() -> None:
    bundle = bench_bundle(shown("x" * 3000, rows=20_000), GRAPH)
    assert len(json.dumps(bundle)) < LIMIT * 1.1
    assert "and 19940 more" in bench_bundle(shown(rows=20_000), GRAPH)["text/html"]


def test_our_own_type_holds_the_tables_and_the_graph() -> None:
    data = bench_bundle(shown(), GRAPH)[BENCH_MIME_TYPE]
    assert data["shown"]["tables"][0]["rows"][2] == ["layers.2", "2"]
    assert data["graph"]["documents"][0]["model_type"] == "Net"
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_report_needs_no_network_and_runs_only_our_scripts(tmp_path: Path) -> None:
    path = write_report(shown(HOSTILE), GRAPH, "today", tmp_path / "bench.html")
    text = path.read_text()
    plain, hostile = Elements(report_page(shown(), GRAPH, "today")), Elements(text)
    assert hostile.names() == plain.names()
    assert hostile.names().count("script") == 3
    assert "default-src 'none'" in text
    for tag, attributes in hostile.found:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for value in (attributes.get("src"), attributes.get("href")):
            assert value is None or value.startswith("data:image/svg+xml;base64,")


def test_a_report_has_all_rows() -> None:
    assert "layers.4999" in report_page(shown(rows=5000), GRAPH, "today")


def test_the_chart_shows_each_run_with_its_numbers() -> None:
    svg = ElementTree.fromstring(chart_svg(shown().chart))
    titles = [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[1:] == [f"{run.name}: {run.note}" for run in RUNS]
    kinds = [group.get("class") for group in svg.iter("{http://www.w3.org/2000/svg}g")]
    assert kinds == ["float", "run", "run", "elsewhere"]
    assert "∞" in [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]


def test_the_front_leaves_out_what_is_beaten_and_other_machines() -> None:
    chart = shown().chart
    best = [point for point in chart.points if point.name in ("float32", "int8 ONNX Runtime")]
    assert sorted(zip(chart.front[::2], chart.front[1::2], strict=True)) == sorted((p.x, p.y) for p in best)


@pytest.mark.parametrize("higher", [True, False])
def test_points_lie_inside_and_better_scores_higher(higher: bool) -> None:
    runs = [ChartRun(f"r{i}", "", "run", 0.1 * i, 1.0 + i, 2.0 + i, (0.1 * i - 0.05, 0.1 * i + 0.05)) for i in range(9)]
    chart = bench_chart(runs, "loss", "", higher)
    assert chart.better == ("↖ better" if higher else "↙ better")
    for point in chart.points:
        assert chart.left <= point.x <= point.x_end <= chart.right
        assert chart.top <= point.y_high < point.y < point.y_low <= chart.bottom
    assert [p.y for p in chart.points] == sorted((p.y for p in chart.points), reverse=True)
    assert len(chart.front) == (18 if higher else 2)


def test_a_whisker_far_beyond_the_medians_ends_in_an_arrow() -> None:
    runs = [ChartRun("eager", "", "float", 1.0, 0.77, 32.8), ChartRun("int8", "", "run", 1.0, 0.23, 0.29)]
    chart = bench_chart(runs, "accuracy", "", True)
    slow, fast = chart.points
    assert slow.x - fast.x > 150
    assert fast.x_end < slow.x_end == chart.right
    assert chart_svg(chart).count("l-6 -4m6 4l-6 4") == 1


def test_labels_do_not_cover_each_other() -> None:
    runs = [ChartRun(f"int8 weights run {i}", "", "run", 30 + (i % 5) * 0.1, 2.0 + 0.02 * i, 2.1) for i in range(12)]
    labelled = [point for point in bench_chart(runs, "SQNR", "dB", True).points if point.label]
    assert len(labelled) == 12
    overlaps = [
        (a.name, b.name)
        for a, b in combinations(labelled, 2)
        if abs(a.label_y - b.label_y) < 12 and abs(a.label_x - b.label_x) < 6.0 * (len(a.label) + len(b.label)) / 2
    ]
    assert len(overlaps) <= 1


def test_two_hundred_runs_are_drawn() -> None:
    runs = [ChartRun(f"run {i}", "", "run", 20 + i % 17, 1 + (i * 7) % 90, 1 + i, size_bytes=i) for i in range(200)]
    chart = bench_chart(runs, "SQNR", "dB", True)
    assert len(chart.points) == 200
    assert "log scale" in chart.x_title
    assert len(chart_svg(chart)) < 100_000


def test_runs_without_numbers_are_left_out() -> None:
    runs = [ChartRun("a", "", "run", math.nan, 1.0, 1.0), ChartRun("b", "", "run", 1.0, 0.0, 0.0)]
    assert bench_chart(runs, "SQNR", "dB", True) == Chart()
    assert chart_svg(Chart()) == ""


def test_one_run_and_equal_runs_have_a_place() -> None:
    for runs in ([ChartRun("a", "", "run", 0.0, 1.0, 1.0)], [ChartRun("a", "", "run", math.inf, 1.0, 1.0)] * 2):
        chart = bench_chart(runs, "accuracy", "", True)
        assert all(chart.top <= point.y <= chart.bottom for point in chart.points)
        assert len({tick.text for tick in chart.y_ticks}) == len(chart.y_ticks)


def test_the_pictures_follow_both_themes() -> None:
    page = bench_html(shown(), GRAPH)
    sources = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    for source in sources:
        assert "prefers-color-scheme:dark" in base64.b64decode(html.unescape(source)).decode()


def test_columns_that_say_nothing_are_left_out_and_long_names_may_break() -> None:
    name = "model.layers.0.self_attn.q_proj"
    page = table_html(Table("", ("layer", "change", "bits"), ((name, "–", "8"), ("head", "", "4")), (1, 2)))
    assert page.count("<th") - page.count("<thead") == 2
    assert '<th class="pb-number">bits</th>' in page
    assert "change" not in page
    assert "<td>model<wbr>.layers.0<wbr>.self<wbr>_attn<wbr>.q<wbr>_proj</td>" in page
    assert "<thead" not in facts_html((Fact("Target", "ONNX Runtime"),))
