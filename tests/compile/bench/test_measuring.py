"""Measuring layers on the bench: what each costs and takes, what follows the plan, what is old, jobs and errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn

import prepbench as pb
from prepbench.bench import layer_costs
from prepbench.bench.summary import LayerColumn
from prepbench.errors import PrepbenchError
from prepbench.widgets.bench import BenchControls, bench_widget


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.fixture
def bench() -> pb.Bench:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    made = pb.Bench(_net(), tracing_inputs=samples, calibration_inputs=samples)
    made.set_target("PyTorch eager")
    return made


def _columns(bench: pb.Bench) -> dict[str, LayerColumn]:
    return {column.key: column for column in bench.summary().columns}


def _notes(column: LayerColumn) -> list[str]:
    return [column.notes[at] for at in column.noted]


def test_both_become_columns_for_what_is_planned(bench: pb.Bench) -> None:
    assert not bench.costs.columns()
    costs, times = bench.measure_layers()
    assert (costs.title, costs.unit, costs.worst) == ("Model SQNR", "dB", "least")
    assert all(value is not None and 10 < value < 100 for value in costs.values)
    assert (times.title, times.unit) == ("Time", "%")
    told = sum(value or 0 for value in times.values)
    assert told < 100
    assert f"{told:.0f}% of it in layers that can be quantized" in bench.summary().measured
    alone = pb.sensitivity(
        bench.model, bench.calibration_inputs, candidates=[pb.QuantizationSettings()],
        deployment_settings=bench.state.targets[0],
    )  # fmt: skip
    assert costs.values == tuple(row.effect for row in alone.rows)
    bench.set_precision("0", "int8 weights")
    costs = _columns(bench)["sensitivity"]
    assert costs.values[0] is None
    assert costs.values[1] == alone["2"][0].effect
    assert _notes(costs)[0] == "not measured with these settings: measure layers again"
    bench.measure_layers()
    assert all(value is not None for value in _columns(bench)["sensitivity"].values)
    bench.undo()  # what was measured before is as true as it was
    assert _columns(bench)["sensitivity"].values == tuple(row.effect for row in alone.rows)


def test_a_layer_in_float_counts_with_what_applies_elsewhere(bench: pb.Bench) -> None:
    bench.measure_layers()
    planned = _columns(bench)["sensitivity"].values
    bench.set_precision("*", "float32")
    assert _columns(bench)["sensitivity"].values == planned


def test_what_is_old_is_said(bench: pb.Bench) -> None:
    bench.measure_layers()
    assert not any(column.stale for column in bench.costs.columns())
    bench.set_target("ONNX Runtime")
    assert "the target was PyTorch eager" in _columns(bench)["sensitivity"].stale
    bench.undo()
    assert not _columns(bench)["sensitivity"].stale
    bench.compile()
    assert "in PyTorch, and not of int8 PyTorch eager" in _columns(bench)["time"].stale
    bench.measure_layers()
    assert not _columns(bench)["time"].stale
    with torch.no_grad():
        bench.model[0].weight.mul_(2)  # type: ignore[index,union-attr,operator]
    bench.refresh()
    assert _columns(bench)["sensitivity"].stale == "measured before a change: the model had other values"


def test_weights_that_change_unseen_make_all_results_old(bench: pb.Bench) -> None:
    """Training writes through ``data``, which torch does not count; no action of the bench follows."""
    bench.compile()
    bench.measure_layers()
    shell = InteractiveShell.instance()
    controls = BenchControls(bench)
    try:
        assert not any(column["stale"] for column in controls.columns)
        shell.run_cell("1")
        assert not any(column["stale"] for column in controls.columns)
        shell.user_ns["model"] = bench.model
        shell.run_cell("model[0].weight.data *= 2")
        told = {column["key"]: column["stale"] for column in controls.columns}
        assert told["sensitivity"] == "measured before a change: the model had other values"
        assert told["time"] == "of a run before a change: the model had other values"
        assert [each["texts"] for each in controls.staleness] == [["the model had other values"]]
    finally:
        controls.close()
        InteractiveShell.clear_instance()
    assert not shell.events.callbacks["post_run_cell"]


def test_it_is_a_job_of_the_queue(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, free = threading.Event(), threading.Event()
    real = layer_costs.sensitivity

    def held(*args: Any, **named: Any) -> Any:
        begun.set()
        while not free.wait(0.01):
            named["progress"](pb.Progress("capture"))
        return real(*args, **named)

    monkeypatch.setattr(layer_costs, "sensitivity", held)
    job = bench.start_measuring()
    assert begun.wait(60)
    assert bench.costs.is_measuring
    assert not bench.compiling.is_queued, "a compile with the same choices may follow"
    second = bench.start()
    assert [run.name for run in bench.queue] == ["int8"]
    bench.cancel()
    with pytest.raises(pb.Cancelled):
        job.result(timeout=60)
    second.result(timeout=120)
    assert not bench.costs.is_measuring
    assert not bench.costs.columns(), "nothing half done"
    free.set()
    bench.start_measuring().result(timeout=120)
    assert bench.status.message.text.startswith("Layers measured. PyTorch eager: SQNR of the model's output")
    assert bench.status.elapsed_s > 0


def test_without_calibration_inputs_only_the_time_is_measured() -> None:
    bench = pb.Bench(_net(), tracing_inputs=[torch.randn(2, 4)])
    [times] = bench.measure_layers()
    assert times.key == "time"
    assert "needs calibration inputs" in bench.summary().measured


class Nothing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> str:
        self.fc(x)
        return "done"


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


@pytest.mark.parametrize("model", [Nothing(), Branches()])
def test_what_cannot_be_measured_is_a_card_and_the_time_is_there(model: nn.Module) -> None:
    samples = [torch.ones(2, 4), torch.ones(3, 4)]
    bench = pb.Bench(model.eval(), tracing_inputs=samples, calibration_inputs=samples)
    with pytest.raises(PrepbenchError):
        bench.start_measuring().result(timeout=120)
    assert bench.status.message.kind == "error"
    assert list(_columns(bench)) == ["time"]


def test_half_precision_is_measured() -> None:
    samples = [torch.randn(2, 4).bfloat16(), torch.randn(3, 4).bfloat16()]
    bench = pb.Bench(_net().bfloat16(), tracing_inputs=samples, calibration_inputs=samples)
    costs, _ = bench.measure_layers()
    assert None not in costs.values


def test_the_widget_measures_once_and_colours_the_diagram(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    box = bench_widget(bench)
    controls: BenchControls = box.children[0]
    picture = box.children[1].children[0]
    started = []
    monkeypatch.setattr(bench, "start_measuring", lambda: started.append(1))
    controls._handle_custom_msg({"action": "measure_layers"}, [])
    assert started == [1]
    bench.measure_layers()
    assert [overlay["name"] for overlay in picture.overlays] == ["precision", "sensitivity", "time"]
    assert picture.overlay == "precision", "what is looked at stays"
    assert [column["key"] for column in controls.columns] == ["sensitivity", "time"]
    picture.overlay = "time"
    bench.set_precision("0", "float32")
    assert picture.overlay == "time"
    controls.close()


def test_what_was_measured_is_shown_where_there_is_no_kernel(bench: pb.Bench, tmp_path: Any) -> None:
    bench.measure_layers()
    text = bench.report(tmp_path / "bench.html").read_text()
    assert "Model SQNR (dB)" in text
    assert "Time (%)" in text
