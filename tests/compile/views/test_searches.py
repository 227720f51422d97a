"""Searches as chart, table and text."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

import prepbench as pb
from prepbench.search.search_result import SearchCandidate
from prepbench.views.layer_charts import bar_figure, bars
from prepbench.views.search_slider import search_figure, search_html, search_table, search_text

LAYERS = {"stem": "int8", "head": "float"}


def one(name: str, metric: float | None, ms: float | None, predicted: float, **more: Any) -> SearchCandidate:
    drop = None if metric is None else 0.9 - metric
    return SearchCandidate(
        name,
        "ONNX Runtime",
        LAYERS,
        predicted,
        0.9 - predicted,
        5.0,
        2e6,
        metric,
        drop,
        ms,
        size_bytes=1_500_000,
        **more,
    )


BEST = one("mixture <1>", 0.89, 4.0, 0.895)
ALL = (one("float", 0.9, 10.0, 0.9), one("int8", 0.7, 3.0, 0.7), BEST, one("predicted 1", None, None, 0.88))


def result(best: SearchCandidate = BEST, budget: pb.Budget | None = None, **more: Any) -> pb.SearchResult:
    facts: dict[str, Any] = {
        "reached": True, "proven": True, "why": "done & proven", "metric": "accuracy", "unit": "",
        "higher_is_better": True, "base": 0.9, "evaluations": 4, "compiled": 3,
    }  # fmt: skip
    return pb.SearchResult(budget or pb.Budget(max_drop=0.02), ALL, best, **{**facts, **more})


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_measured_points_are_filled_and_predicted_ones_hollow() -> None:
    shown = traces(search_figure(result()))
    assert list(shown) == ["front", "predicted", "measured", "best: mixture &lt;1&gt;"]
    assert shown["measured"].marker.symbol == "circle"
    assert shown["predicted"].marker.symbol == "circle-open"
    assert shown["best: mixture &lt;1&gt;"].marker.symbol == "star"
    assert list(shown["measured"].x) == [10.0, 3.0]
    assert list(shown["predicted"].x) == [5.0]
    assert shown["front"].line.shape == "hv"
    assert list(shown["front"].x) == [3.0, 4.0, 10.0]  # what is predicted is worse than the best in both


def test_the_budget_is_a_line_on_each_axis_that_it_bounds() -> None:
    lines = search_figure(result()).layout.shapes
    assert [round(line.y0, 6) for line in lines] == [0.88]
    smallest = pb.Budget(min_metric=0.8, max_size_mb=1.8)
    assert [line.y0 for line in search_figure(result(budget=smallest)).layout.shapes] == [0.8]
    fast = search_figure(result(budget=pb.Budget(max_latency_ms=4.5, minimize="drop")))
    assert [line.x0 for line in fast.layout.shapes] == [4.5]
    small = search_figure(result(budget=pb.Budget(max_size_mb=1.8, minimize="drop")))
    assert [line.x0 for line in small.layout.shapes] == [1.8]
    assert small.layout.xaxis.title.text == "size on disk (MB)"


def test_words_for_people_are_escaped_and_complete() -> None:
    page, text = search_html(result()), search_text(result())
    assert "<1>" not in page
    assert "The fastest with a drop of at most 0.02: done &amp; proven" in page
    assert [line.split()[0] for line in text.splitlines()[1:5]] == ["mixture", "int8", "float", "predicted"]
    assert "1 of 2" in text
    figure = search_figure(result())
    assert "<1>" not in str(figure.to_json())
    assert all(trace.hovertext is None or "ONNX Runtime" in trace.hovertext[0] for trace in figure.data)


def test_tables_have_numbers() -> None:
    table = search_table(result())
    assert list(table["candidate"]) == ["mixture <1>", "int8", "float", "predicted 1"]
    assert list(table["in float"]) == [1] * 4
    assert math.isnan(table["ms"][3])
    assert table["MB, predicted"][0] == 2.0


def test_a_reference_without_noise_has_its_place_above_the_others() -> None:
    reference = SearchCandidate("float", "", LAYERS, metric=math.inf, ms=9.0)
    best = SearchCandidate("int8", "", LAYERS, metric=30.0, ms=3.0)
    searched = pb.SearchResult(
        pb.Budget(min_metric=20), (reference, best), best, True, True, "", "SQNR", "dB", True, math.inf, 2, 2
    )
    shown = traces(search_figure(searched))
    assert list(shown["measured"].y) == [33.0]
    assert list(shown["front"].x) == [3.0, 9.0]
    nearest = traces(search_figure(result(reached=False)))
    assert "nearest: mixture &lt;1&gt;" in nearest


def test_a_slider_shows_the_best_of_each_budget() -> None:
    budgets = [pb.Budget(max_drop=drop) for drop in (0.0, 0.02, 0.5)]
    bests = dict(zip(map(str, budgets), (ALL[0], BEST, ALL[1]), strict=True))
    first = result()
    known = SimpleNamespace(result=lambda budget: result(bests[str(budget)], budget), is_outdated=False)
    object.__setattr__(first, "_known", known)
    figure = first.figure(budgets)
    [slider] = figure.layout.sliders
    assert [step.label for step in slider.steps] == ["0", "0.02", "0.5"]
    assert slider.active == 1
    for step, best in zip(slider.steps, bests.values(), strict=True):
        seen = [trace for trace, is_seen in zip(figure.data, step.args[0]["visible"], strict=True) if is_seen]
        [star] = [trace for trace in seen if trace.marker.symbol == "star"]
        assert list(star.x) == [best.ms]
        assert sum(len(trace.x) for trace in seen if trace.mode == "markers") == len(ALL)
        assert len(step.args[1]["shapes"]) == 1
    assert [trace.visible for trace in figure.data] == slider.steps[1].args[0]["visible"]


def test_a_slider_takes_budgets() -> None:
    with pytest.raises(pb.PrepbenchError, match=r"budgets\[1\] must be .*Budget.* Write budgets=\[pb\.Budget"):
        result().figure([pb.Budget(max_drop=0.02), 0.1])  # type: ignore[list-item]
    with pytest.raises(pb.PrepbenchError, match=r"budgets must be a list of budgets, got 0\.1"):
        result().figure(0.1)  # type: ignore[arg-type]


def test_a_negative_bar_leaves_room_for_its_number() -> None:
    traces = [bars("int8", ["stem", "head"], [-0.5, 60.0], ["−0.5", "60.0"], ["#000"] * 2, ["", ""])]
    low, high = bar_figure("What", "it says", traces, 2, legend=False, from_zero=False).layout.xaxis.range
    assert low < -5
    assert high > 60
    traces[0]["x"] = [1.0, 60.0]
    assert bar_figure("What", "it says", traces, 2, legend=False, from_zero=False).layout.xaxis.range[0] == 0
