"""Speed-ups and gains on the bench: history, chart, report and comparison say one number, or why there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prepbench.bench.cards import CardFact
from prepbench.bench.history import comparison_of, is_far, speed_ups_of, where
from prepbench.bench.run_summaries import card_of, difference_of, outcome_of, run_summaries
from prepbench.bench.shown import runs_chart
from prepbench.quantize import LayerReport
from prepbench.results.measurement import Run, this_machine
from prepbench.results.speed_up import EAGER, Reference

BESIDE = Reference(EAGER, 39.0, (38.0, 40.0))
INT8 = Run(
    id="int8", name="int8 ONNX Runtime", state={"rules": {}}, target="onnxruntime", target_name="ONNX Runtime",
    made=2.0, score=30.0, metric="SQNR", unit="dB", p50_ms=1.0, p90_ms=1.1, interval_ms=(0.98, 1.02), reference=BESIDE,
    machine=this_machine(), workload="64 samples", report=(LayerReport("fc", "Linear", 20, weights_bits=8),),
)  # fmt: skip
FLOAT = replace(
    INT8, id="float", name="float32 ONNX Runtime", made=1.0, p50_ms=1.5, interval_ms=(1.47, 1.53),
    report=(LayerReport("fc", "Linear", 20),),
)  # fmt: skip


def summaries(*runs: Run) -> dict[str, tuple[str, str, bool]]:
    found = run_summaries(runs, (), (), speed_ups_of(runs))
    return {run.id: (run.speed, run.eager, run.slower) for run in found}


@pytest.mark.parametrize(
    ("machine", "is_elsewhere"), [("", False), (this_machine(), False), ("arm64 Darwin, laptop", True)]
)
def test_a_run_is_from_elsewhere_only_if_its_machine_is_known(machine: str, is_elsewhere: bool) -> None:
    run = replace(INT8, machine=machine)
    assert is_far(run) == is_elsewhere
    assert where(run) == ("laptop" if is_elsewhere else "")


def test_the_baseline_is_the_float_run_of_the_runtime_and_eager_stands_beside() -> None:
    beside = "PyTorch eager 39.0 (38.0 to 40.0) ms"
    assert summaries(FLOAT, INT8) == {
        "float": ("26× of PyTorch eager", beside, False),
        "int8": ("1.5× of float32 ONNX Runtime", beside, False),
    }
    assert summaries(INT8)["int8"][0] == "39× of PyTorch eager"


def test_a_run_knows_how_many_times_faster_it_is_than_what_it_was_timed_beside() -> None:
    assert INT8.speedup == 39.0
    assert replace(INT8, busy=0.5).speedup is None
    assert replace(INT8, reference=None).speedup == 1.0
    assert replace(INT8, reference=None, p50_ms=None).speedup is None


@pytest.mark.parametrize(
    "changed",
    [
        {"machine": "arm64 Darwin, laptop"},
        {"workload": "1 sample"},
        {"target_options": {"intra_op_threads": 2}},
        {"target": "openvino"},
        {"pruned": {"fc": "half of it"}},
        {"recovered": "a little"},
        {"p50_ms": None, "interval_ms": None},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_runs_are_no_baseline(changed: dict[str, object]) -> None:
    other = replace(FLOAT, **changed)  # type: ignore[arg-type]
    assert summaries(other, INT8)["int8"][0] == "39× of PyTorch eager"


def test_table_chart_sentence_and_difference_say_the_same() -> None:
    runs = (FLOAT, INT8)
    found = speed_ups_of(runs)
    said = "1.5× of float32 ONNX Runtime"
    assert summaries(*runs)["int8"][0] == said
    whole = comparison_of(runs, None, "float32")
    assert [one.text if one else "" for one in whole.speed_ups] == ["", "26× of PyTorch eager", said]
    assert said in repr(whole)
    assert said in outcome_of(INT8, found["int8"])
    assert "39.0 (38.0 to 40.0) ms" in outcome_of(INT8, found["int8"])
    assert card_of(INT8, found["int8"]).facts[0] == CardFact(
        "Speed", "1.5× as fast", "as float32 ONNX Runtime; 1.00 (0.980 to 1.02) ms a batch"
    )
    assert [row.second for row in difference_of(FLOAT, INT8, (), found).results if row.what == "Speed-up"] == [said]
    assert said in [point.note for point in runs_chart(runs, "float32", found).points][-1]
    assert "1.00 (0.980 to 1.02) ms" in [point.note for point in runs_chart(runs, "float32", found).points][-1]


def test_a_busy_machine_and_what_was_not_timed_have_no_ratio_anywhere() -> None:
    busy = replace(INT8, busy=0.3)
    found = speed_ups_of((FLOAT, busy))
    texts = [
        summaries(FLOAT, busy)["int8"][0],
        outcome_of(busy, found["int8"]),
        repr(comparison_of((busy,), None, "float32")),
        runs_chart((busy,), "float32", found).points[-1].note,
    ]
    assert all("measure again" in text and "×" not in text for text in texts)
    card = card_of(busy, found["int8"])
    assert "×" not in "".join(fact.value + fact.note for fact in card.facts)
    assert "measure again" in card.facts[0].note
    assert card.is_doubtful
    untimed = replace(
        INT8, p50_ms=None, p90_ms=None, interval_ms=None, reference=None, why="not timed: it ran elsewhere"
    )
    assert summaries(FLOAT, untimed)["int8"][0] == "–"
    assert "×" not in outcome_of(untimed, speed_ups_of((FLOAT, untimed))["int8"])
    assert not runs_chart((untimed,), "float32", {}).points


def test_a_run_of_an_older_version_keeps_the_time_of_eager() -> None:
    data = {name: value for name, value in INT8.to_json().items() if name not in ("reference", "interval_ms", "busy")}
    old = Run.from_json({**data, "speedup": 39.0})
    assert old.reference == Reference(EAGER, 39.0)
    assert summaries(old)["int8"][:2] == ("measure again: too few calls were timed", "PyTorch eager 39.0 ms")
    assert Run.from_json({**data, "speedup": None}).reference is None
    assert Run.from_json(INT8.to_json()) == INT8


def test_a_training_that_won_nothing_on_the_data_of_the_comparison_says_so() -> None:
    trained = replace(INT8, id="t", name="int8 trained back", recovered="loss 2 before, 1 after 9 of 9 steps", made=3.0,
                      state={**INT8.state, "recovery": {"steps": 9}})  # fmt: skip

    def why(*runs: Run) -> str:
        return next(run.why for run in run_summaries(runs, (), (), {}) if run.id == "t")

    assert why(trained) == "Trained back: loss 2 before, 1 after 9 of 9 steps."
    assert why(INT8, replace(trained, score=31.0)) == "Trained back: loss 2 before, 1 after 9 of 9 steps."
    worse = "Trained back, and not better than int8 ONNX Runtime on the data of the comparison: loss 2 before"
    assert why(INT8, replace(trained, score=29.0)).startswith(worse)
    assert why(INT8, trained).startswith(worse)
    assert "not better" not in why(replace(INT8, workload="others"), replace(trained, score=29.0))


def test_a_comparison_of_runs_has_no_row_that_both_lack():
    rows = {row.what for row in difference_of(FLOAT, INT8, (), {}).results}
    assert "Median ms" in rows
    assert "95 % interval" not in rows
