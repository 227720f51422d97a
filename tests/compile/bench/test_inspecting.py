"""The inspector of the bench: computed beside other work, and again when the settings of its layer change."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.inspecting import CHANNELS, InspectionSummary, _together
from prepbench.bench.shown import shown
from prepbench.widgets.bench import BenchControls, plain_fields


@pytest.fixture
def bench() -> pb.Bench:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
        samples = [torch.randn(n, 8) for n in (4, 5, 6)]
    return pb.Bench(model, calibration_inputs=samples)


def looked(bench: pb.Bench, fqn: str) -> InspectionSummary:
    bench.inspecting.inspect(fqn)
    return bench.inspecting.wait(60)


def test_the_page_sees_what_inspect_layer_finds(bench: pb.Bench) -> None:
    controls = BenchControls(bench)
    controls._handle_custom_msg({"action": "inspect", "fqn": "0"}, [])
    found = bench.inspecting.wait(60)
    right = pb.inspect_layer(bench.model, bench.calibration_inputs, "0")
    assert (found.state, found.decided, found.type) == ("ready", "int8", "Linear")
    assert found.error.sqnr == pytest.approx(right.error.sqnr)
    assert found.values[0].counts == right.weight.histogram.counts
    choices = {one.label: one for one in found.what_if}
    assert choices["int8"].is_now
    assert choices["int4 weights"].change < 0
    assert choices["float"].change == right.float_bytes - right.weights_bytes
    shown: dict[str, Any] = controls.inspection
    assert shown["fqn"] == "0"
    assert shown["error"]["sqnr"] == found.error.sqnr
    assert len(json.dumps(plain_fields({"inspection": found}), allow_nan=False)) < 40_000
    controls.close()


def test_a_change_of_the_layer_is_computed_again_and_of_another_is_not(bench: pb.Bench) -> None:
    first = looked(bench, "0")
    bench.set_precision(["0"], "int4 weights")
    second = bench.inspecting.wait(60)
    assert (second.state, second.decided, second.why) == ("ready", "int4 weights", "by rule '0'")
    expected = next(one for one in first.what_if if one.label == "int4 weights")
    assert second.error.sqnr == pytest.approx(expected.sqnr)
    bench.set_precision(["2"], "float32")
    assert bench.inspecting.wait(60) is second
    bench.undo()
    bench.undo()
    assert bench.inspecting.wait(60).decided == "int8"


def test_closing_forgets_it(bench: pb.Bench) -> None:
    looked(bench, "0")
    bench.inspecting.inspect("")
    assert bench.summary().inspection == InspectionSummary()


def test_what_is_no_layer_is_a_card(bench: pb.Bench) -> None:
    found = looked(bench, "1")
    assert found.state == "failed"
    assert "no weight matrix" in found.failure.text


def test_without_calibration_inputs_tracing_inputs_are_counted(bench: pb.Bench) -> None:
    alone = pb.Bench(bench.model, tracing_inputs=bench.calibration_inputs)
    found = looked(alone, "2")
    assert (found.state, found.decided, found.shown) == ("ready", "float", "int8")
    assert "3 tracing inputs" in found.samples
    assert found.error.sqnr is not None


def test_after_a_compile_the_decision_is_shown(bench: pb.Bench) -> None:
    bench.compile()
    found = looked(bench, "2")
    report = {row.fqn: row for row in bench.runs[-1].report}
    assert found.decided == "int8"
    assert found.error.sqnr == pytest.approx(report["2"].sqnr, abs=1e-3)


def test_many_channels_are_put_together() -> None:
    values = tuple(range(1000))
    found = _together(values, max)
    assert len(found) <= CHANNELS
    assert max(found) == 999


def test_the_inspector_and_the_table_are_of_one_target(bench: pb.Bench) -> None:
    bench.set_targets([pb.OnnxRuntimeDeployment(), pb.EagerDeployment()])
    bench.compile()
    run = bench.run_history.shown_run()
    assert run is not None
    found = looked(bench, "0")
    (column,) = (one for one in bench.summary().columns if one.key == "sqnr")
    assert found.samples.startswith(f"{run.target_name}: ")
    assert column.help.endswith(f"in the run {run.name}")
    assert column.title == f"Own SQNR, {run.target_name}"
    (layers,) = (table for table in shown(bench).tables if table.title == "Layers")
    assert layers.columns[5] == f"applied, {run.name}"
    bench.set_precision("0", "int8 weights")
    assert "1 int8 weights" in next(fact.value for fact in shown(bench).settings if fact.name == "Precision")
    bench.undo()
    assert found.error.sqnr == pytest.approx(column.values[0], abs=0.3)
