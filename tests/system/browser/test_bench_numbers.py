"""No number of the page contradicts another: all that it says of a run, after a quiet and after a busy measurement."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from playwright.sync_api import Page

from prepbench.bench.history import comparison_of, speed_ups_of
from prepbench.bench.run_summaries import card_of, difference_of, run_summaries
from prepbench.quantize import LayerReport
from prepbench.results.measurement import Run, this_machine
from prepbench.results.speed_up import EAGER, Reference
from prepbench.views.charts import runs_bundle
from prepbench.widgets.bench import plain_fields
from tests.system.browser.fake_bench import card, open_bench, traits, turn_to

_BESIDE = Reference(EAGER, 39.4, (38.1, 40.2))
INT8 = Run(
    id="int8", name="int8 ONNX Runtime", state={"rules": {}}, target="onnxruntime", target_name="ONNX Runtime",
    made=2.0, score=0.9731, change=-0.0021, metric="accuracy", p50_ms=2.417, p90_ms=2.61, interval_ms=(2.38, 2.45),
    reference=_BESIDE, machine=this_machine(), workload="64 samples", size_bytes=4_137_000,
    report=(LayerReport("fc", "Linear", 20, weights_bits=8),),
)  # fmt: skip
FLOAT = replace(
    INT8, id="float", name="float32 ONNX Runtime", made=1.0, score=0.9752, change=0.0, p50_ms=5.913, p90_ms=6.2,
    interval_ms=(5.8, 6.02), size_bytes=16_400_000, report=(LayerReport("fc", "Linear", 20),),
)  # fmt: skip
SLOWER = replace(INT8, id="slow", name="int4 ONNX Runtime", made=3.0, p50_ms=7.71, p90_ms=8.3, interval_ms=(7.6, 7.9))
UNTIMED = replace(
    INT8, id="far", name="int8 TensorRT", target="tensorrt", target_name="TensorRT", made=4.0, p50_ms=None, p90_ms=None,
    interval_ms=None, reference=None,
)  # fmt: skip
QUIET = (FLOAT, INT8, SLOWER, UNTIMED)
BUSY = tuple(run if run.p50_ms is None else replace(run, busy=0.4) for run in QUIET)
READ = """() => {
  const seen = (node) => node.checkVisibility({visibilityProperty: true});
  const places = '.pbb-outcomes, .pbb-runs tr[data-run], .pbb-compare tr';
  return [...document.querySelectorAll(places)].filter(seen)
    .map((node) => [node.innerText, ...[...node.querySelectorAll('[title]')].map((each) => each.title)].join(' | '));
}"""
_TIMES = re.compile(r"(?<![\dp.])(\d[\d.,]*) (?:\(\d[\d.,]* to \d[\d.,]*\) )?ms")
_NAMED_TIMES = re.compile(r"p[59]0 ms: ([\d.]+)")  # as hovering over the chart says them
_RATIOS = re.compile(r"(\d[\d.,]*)\s*×")
_SIZES = re.compile(r"(\d[\d.,]*) MB")


def facts(runs: Sequence[Run]) -> dict[str, Any]:
    """What Python sets when these runs were measured."""
    found = speed_ups_of(tuple(runs))
    live = [run.id for run in runs]
    cards = tuple(card_of(run, found[run.id]) for run in runs)
    done = card("info", "2 runs are ready.", about="compile", outcomes=[plain_fields(vars(each)) for each in cards])
    difference = difference_of(runs[0], runs[1], (), found)
    return {
        **traits(),
        "runs": [asdict(each) for each in run_summaries(runs, live, live, found)],
        "shown_run": "int8", "staleness": [{"texts": []}], "stale_of": [0] * len(runs),
        "message": done, "difference": asdict(difference),
    }  # fmt: skip


def charted(runs: Sequence[Run]) -> list[str]:
    """Each text of the chart of results, and of the table that stands for it where nothing is live."""
    bundle = runs_bundle(comparison_of(runs, None, "float32"), {run.name: run.id for run in runs})
    chart = bundle["application/vnd.plotly.v1+json"]
    rows = re.findall(r"<tr.*?</tr>", bundle["text/html"], re.DOTALL)
    return [*strings(chart["data"]), *strings(chart["layout"]), *(re.sub(r"<[^>]*>", " ", row) for row in rows)]


def strings(part: Any) -> list[str]:
    """Every text in nested lists and dicts."""
    if isinstance(part, str):
        return [part]
    values = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [text for value in values for text in strings(value)]


def read(page: Page, runs: Sequence[Run]) -> list[str]:
    """Each place of the page that says something of runs, as text with what hovering says."""
    open_bench(page, facts(runs))
    texts = charted(runs)
    for step in ("run", "results"):
        turn_to(page, step)
        texts += page.evaluate(READ)
    return texts


@pytest.mark.parametrize("runs", [QUIET, BUSY], ids=["quiet", "busy"])
def test_all_numbers_of_a_run_are_the_same_wherever_they_stand(page: Page, runs: tuple[Run, ...]) -> None:
    texts = read(page, runs)
    assert len(texts) > 2 * len(runs), "card, table, chart and comparison were read"
    found = speed_ups_of(runs)
    own = {
        "ms": {f"{run.p50_ms:.2f}" for run in runs if run.p50_ms} | {f"{run.p90_ms:.2f}" for run in runs if run.p90_ms},
        "ratio": {one.ratio.rstrip("× ") for one in found.values() if one is not None and one.ratio},
        "MB": {f"{run.size_bytes / 1e6:.3g}" for run in runs if run.size_bytes},
    }
    own["ms"] |= {f"{_BESIDE.p50_ms:.1f}"}
    for text in texts:
        assert {*_TIMES.findall(text), *_NAMED_TIMES.findall(text)} <= own["ms"], text
        assert set(_SIZES.findall(text)) <= own["MB"] | {"4.1", "16"}, text
        assert {each.rstrip("× ") for each in _RATIOS.findall(text)} <= own["ratio"], text


def test_after_a_busy_measurement_no_place_has_a_ratio(page: Page) -> None:
    texts = read(page, BUSY)
    assert any("×" in text for text in read(page, QUIET)), "else nothing is looked at"
    assert not [text for text in texts if _RATIOS.search(text)]


@pytest.mark.parametrize("runs", [QUIET, BUSY], ids=["quiet", "busy"])
def test_what_did_not_run_has_no_time_anywhere(page: Page, runs: tuple[Run, ...]) -> None:
    said = [text for text in read(page, runs) if "TensorRT" in text and "ONNX" not in text]
    assert said
    for text in said:
        assert not _TIMES.search(text), text
