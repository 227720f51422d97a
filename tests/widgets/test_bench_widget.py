"""The bench widget: traits mirror the bench, messages from the page act on it."""

from __future__ import annotations

import functools
from typing import Any

import ipywidgets
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.measure.run import compare
from prepbench.widgets.bench import BenchControls, bench_bundle, bench_widget


@pytest.fixture
def bench() -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    return pb.Bench(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), tracing_inputs=samples, calibration_inputs=samples
    )


@pytest.fixture
def controls(bench: pb.Bench) -> BenchControls:
    return BenchControls(bench)


def _click(controls: BenchControls, **content: Any) -> None:
    """What the page sends when something is clicked."""
    controls._handle_custom_msg(content, [])


@pytest.fixture(autouse=True)
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.bench.bench.compare", functools.partial(compare, rounds=0))


def test_traits_mirror_the_bench(bench: pb.Bench, controls: BenchControls) -> None:
    assert [layer["fqn"] for layer in controls.layers] == ["0", "2"]
    assert controls.title == "Sequential"
    bench.set_precision("0", "float32")
    assert [layer["precision"] for layer in controls.layers] == ["float32", "int8"]
    assert controls.can_undo
    assert "skip_quantization=True" in controls.code


def test_clicks_act_on_the_bench(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="set_axis", path="input", dim=0, dynamic=False)
    assert not any(axis["dynamic"] for axis in controls.axes)
    _click(controls, action="set_precision", pattern=["0", "2"], precision="int8 weights")
    assert set(bench.precisions.values()) == {"int8 weights"}
    _click(controls, action="undo")
    assert set(bench.precisions.values()) == {"int8"}
    _click(controls, action="set_target", target="Inductor")
    assert bench.state.target == "Inductor"


def test_compile_click_runs_in_the_background_and_ends_with_the_comparison(
    bench: pb.Bench, controls: BenchControls
) -> None:
    box = bench_widget(bench)
    _click(controls, action="compile")
    assert controls.running
    assert bench.job is not None
    bench.job.result(timeout=300)
    assert not controls.running
    assert controls.message["kind"] == "info"
    assert "int8 ONNX Runtime" in controls.message["text"]
    assert all(layer["note"] for layer in controls.layers)
    chart = box.children[-1]
    assert isinstance(chart, ipywidgets.Output)
    assert "application/vnd.plotly.v1+json" in chart.outputs[0]["data"]


def test_the_diagram_is_coloured_by_the_precisions(bench: pb.Bench) -> None:
    picture = bench_widget(bench).children[0].children[0]
    first = next(iter(bench.precisions))
    bench.set_precision(first, "int8 weights")
    assert {value["fqn"]: value["text"] for value in picture.overlays[0]["values"]}[first] == "int8 weights"
    picture.overlay = ""
    bench.set_target("Inductor")
    assert picture.overlay == ""
    bench.set_precision(first, "float32")
    assert picture.overlay == "precision"


def test_errors_become_messages(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="set_target", target="TPU")
    assert controls.message["kind"] == "error"
    assert "TPU" in controls.message["text"]
    _click(controls, action="explode")
    assert "Unknown action 'explode'" in controls.message["text"]
    assert "set_target" in controls.message["text"]
    _click(controls, action="set_axis", path="input", dim="0", dynamic=True)
    assert "set_axis.dim must be of type int" in controls.message["text"]
    _click(controls, action="cancel")


def test_a_click_sends_only_what_it_changed(bench: pb.Bench, controls: BenchControls) -> None:
    sent: list[set[str]] = []
    controls.send_state = lambda key=None: sent.append({key} if isinstance(key, str) else set(key))
    _click(controls, action="set_target", target="Inductor")
    assert sent == [{"target", "code", "can_undo"}]


def test_the_summary_is_made_once_per_change(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[pb.Bench] = []
    original = pb.Bench._summarize
    monkeypatch.setattr(pb.Bench, "_summarize", lambda self: made.append(self) or original(self))
    BenchControls(bench), BenchControls(bench)
    made.clear()
    bench.set_precision("0", "float32")
    bench.code()
    assert len(made) == 1


def test_closing_ends_listening(bench: pb.Bench, controls: BenchControls) -> None:
    controls.close()
    bench.set_target("Inductor")
    assert controls.target == "ONNX Runtime"


def test_bundle_has_a_static_twin(bench: pb.Bench) -> None:
    bundle = bench_bundle(bench)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "dynamic axes" in bundle["text/plain"]
    assert "&lt;" not in bundle["text/plain"]
