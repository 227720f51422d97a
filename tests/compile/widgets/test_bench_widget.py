"""The bench widget: traits mirror the bench, messages from the page act on it."""

from __future__ import annotations

import functools
import threading
import time
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.summarize import summarize
from prepbench.errors import CaptureError
from prepbench.fixes import fix
from prepbench.jobs import check_cancelled
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
    monkeypatch.setattr("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0))


def test_traits_mirror_the_bench(bench: pb.Bench, controls: BenchControls) -> None:
    assert [layer["fqn"] for layer in controls.layers] == ["0", "2"]
    assert controls.title == "Sequential"
    bench.set_precision("0", "float32")
    assert [controls.decisions[index]["label"] for index in controls.planned] == ["float", "int8"]
    assert controls.decisions[controls.planned[0]]["rule"] == "0"
    assert controls.can_undo


def test_the_code_follows_the_choices(bench: pb.Bench) -> None:
    controls = bench_widget(bench).children[0]
    bench.set_precision("0", "float32")
    assert "skip_quantization=True" in controls.code


def test_clicks_act_on_the_bench(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="set_axis", path=["input"], dim=0, dynamic=False)
    assert not any(axis["dynamic"] for axis in controls.axes)
    _click(controls, action="set_precision", pattern=["0", "2"], precision="int8 weights")
    assert set(bench.precisions.values()) == {"int8 weights"}
    _click(controls, action="undo")
    assert set(bench.precisions.values()) == {"int8"}
    _click(controls, action="set_target", target="Inductor", chosen=True)
    _click(controls, action="set_target", target="ONNX Runtime", chosen=False)
    assert [settings.__class__.__name__ for settings in bench.state.targets] == ["InductorDeployment"]
    _click(controls, action="set_target", target="Inductor", chosen=False)
    assert "only target" in controls.message["text"]


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
    assert [controls.outcomes[index]["label"] for index in controls.applied] == ["int8", "int8"]
    assert [run["name"] for run in controls.runs] == ["int8 ONNX Runtime"]
    chart = box.children[-1]
    assert isinstance(chart, ipywidgets.Output)
    assert "application/vnd.plotly.v1+json" in chart.outputs[0]["data"]


def test_the_diagram_is_coloured_by_the_precisions(bench: pb.Bench) -> None:
    (picture,) = bench_widget(bench).children[1].children
    first = next(iter(bench.precisions))
    bench.set_precision(first, "int8 weights")
    assert {value["fqn"]: value["text"] for value in picture.overlays[0]["values"]}[first] == "int8 weights"
    picture.overlay = ""
    bench.set_target("Inductor")
    assert picture.overlay == ""
    bench.set_precision(first, "float32")
    assert picture.overlay == "precision"


def test_errors_become_messages(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="set_target", target="TPU", chosen=True)
    assert controls.message["kind"] == "error"
    assert "'TPU'" in controls.message["text"]
    _click(controls, action="explode")
    assert "Unknown action 'explode'" in controls.message["text"]
    assert "set_target" in controls.message["text"] + controls.message["details"]
    _click(controls, action="set_axis", path=["input"], dim="0", dynamic=True)
    assert "set_axis.dim must be of type int" in controls.message["text"]
    _click(controls, action="cancel")


class Gate(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_an_error_is_a_card_in_the_words_of_the_bench() -> None:
    samples = [torch.ones(2, 4), torch.ones(3, 4)]
    bench = pb.Bench(nn.Sequential(nn.Linear(4, 4), Gate()).eval(), tracing_inputs=samples)
    controls = BenchControls(bench)
    _click(controls, action="compile")
    assert bench.job is not None
    with pytest.raises(pb.PrepbenchError):
        bench.job.result(timeout=300)
    card = controls.message
    assert card["text"] == "1 cannot be captured: data-dependent branch"
    (trouble,) = card["troubles"]
    assert "x.sum() > 0" in trouble["code"]
    assert "leaf_modules" not in trouble["remedy"]
    assert "fullgraph" not in card["details"]
    assert controls.leaf_label in card["details"]
    assert card["about"] == "compile"
    label = "Keep it in PyTorch and compile"
    assert card["buttons"] == [{"label": label, "action": "keep_in_pytorch", "value": "", "again": "compile"}]
    (failure,) = controls.failures
    assert failure["title"] == "data-dependent branch"
    assert failure["code"] in failure["report"]
    _click(controls, action="repair", how="keep_in_pytorch", value="", again="compile")
    bench.job.result(timeout=300)
    assert bench.state.leaf_wrap
    assert controls.message["kind"] == "info"
    assert controls.message["text"].endswith(" is ready.")
    ((*_, size),) = [outcome["facts"] for outcome in controls.message["outcomes"]]
    assert size["label"] == "Size"
    assert not size["value"].startswith("0 MB")


def test_a_contradiction_and_old_results_are_marked(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="set_axis", path=["input"], dim=0, dynamic=False)
    assert "sample 2 has 3" in controls.axes[0]["problem"]
    _click(controls, action="undo")
    assert not any(axis["problem"] for axis in controls.axes)
    bench.set_precision("0", "float32")
    bench.set_precision("2", "float32")
    bench.compile()
    assert not controls.stale
    bench.set_target("Inductor")
    assert "the target was ONNX Runtime" in controls.stale
    bench.undo()
    assert not controls.stale


def test_files_are_written_where_the_page_says(bench: pb.Bench, controls: BenchControls, tmp_path: Path) -> None:
    sent: list[tuple[dict[str, Any], Any]] = []
    controls.send = lambda content, buffers=None: sent.append((content, buffers))
    for action, name in (("save", "net.bench.json"), ("report", "net.html")):
        _click(controls, action=action, path=str(tmp_path / name))
        assert sent.pop()[0]["card"]["text"] == f"Written to {tmp_path / name}."
        assert (tmp_path / name).exists()
    _click(controls, action="download", what="report")
    content, (page,) = sent.pop()
    assert content["name"] == "Sequential.html"
    assert page.startswith(b"<!doctype html>")
    _click(controls, action="save", path=str(tmp_path / "net.json"))
    assert "must end in" in sent.pop()[0]["card"]["text"]


def test_limits_of_a_dim_are_counts(bench: pb.Bench, controls: BenchControls) -> None:
    _click(controls, action="limit_axis", path=["input"], dim=0, min=0, max=64)
    assert (controls.axes[0]["min"], controls.axes[0]["max"]) == (-1, 64)


def test_a_click_sends_only_what_it_changed(bench: pb.Bench, controls: BenchControls) -> None:
    sent: list[set[str]] = []
    controls.send_state = lambda key=None: sent.append({key} if isinstance(key, str) else set(key))
    _click(controls, action="set_axis", path=["input"], dim=1, dynamic=True)
    assert sent == [{"axes", "sentence", "steps", "code", "can_undo", "fixes_known"}]


def test_the_summary_is_made_once_per_change(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[pb.Bench] = []
    monkeypatch.setattr("prepbench.bench.bench.summarize", lambda *args: made.append(args[0]) or summarize(*args))
    BenchControls(bench), BenchControls(bench)
    made.clear()
    bench.set_precision("0", "float32")
    bench.code()
    assert len(made) == 1


def test_closing_ends_listening(bench: pb.Bench, controls: BenchControls) -> None:
    controls.close()
    bench.set_target("Inductor")
    assert [target["name"] for target in controls.targets if target["chosen"]] == ["ONNX Runtime"]


def test_bundle_has_a_static_twin(bench: pb.Bench) -> None:
    bundle = bench_bundle(bench)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert "dynamic axes" in bundle["text/plain"]
    assert "&lt;" not in bundle["text/plain"]


def test_a_selection_is_one_for_all_views(bench: pb.Bench) -> None:
    controls, place, *_ = bench_widget(bench).children
    (picture,) = place.children
    _click(controls, action="select", fqn="2")
    assert bench.selected == "2"
    assert picture.selected == ["2"]
    picture.selected = ["0"]
    assert bench.selected == controls.selected == "0"
    _click(controls, action="select", fqn="")
    assert picture.selected == []


def test_a_fix_changes_the_diagram_in_its_place() -> None:
    samples = [torch.rand(2, 4), -torch.rand(3, 4)]
    bench = pb.Bench(nn.Sequential(nn.Linear(4, 4), Gate()).eval(), tracing_inputs=samples)
    box = bench_widget(bench)
    parts, (picture,) = box.children, box.children[1].children
    before = picture.data
    picture.view = {"open": ["1"]}
    _click(box.children[0], action="apply_fix", fqn="1")
    assert bench.state.fixes == ("1",), box.children[0].message
    assert box.children == parts, "the views of chart and code stay"
    assert box.children[1].children == (picture,)
    assert picture.data != before, "the diagram shows the fixed module"
    assert picture.document.documents == (bench.collection.document(),)
    assert picture.view == {"open": ["1"]}
    assert picture.overlay == "precision", "colours belong to the new graph"
    _click(box.children[0], action="undo")
    assert not bench.state.fixes


def _gated() -> pb.Bench:
    samples = [torch.rand(2, 4), -torch.rand(3, 4)]
    bench = pb.Bench(nn.Sequential(nn.Linear(4, 4), Gate()).eval(), tracing_inputs=samples, calibration_inputs=samples)
    bench.set_target("PyTorch eager")
    return bench


def test_fixes_are_looked_for_in_the_background_once_the_bench_is_shown() -> None:
    controls = BenchControls(_gated())
    assert not controls.fixes_known
    assert not controls.failures[0]["can_fix"]
    controls.look_for_fixes()
    assert controls._search is not None
    controls._search.result(120)
    assert controls.fixes_known
    assert controls.failures[0]["can_fix"]
    _click(controls, action="apply_fix", fqn="1")
    assert controls.failures[0]["fixed"]


def test_a_compile_goes_before_the_search_for_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, left = threading.Event(), threading.Event()

    def slow(model: Any, samples: Any, *, progress: Any) -> Any:
        begun.set()
        while not left.is_set():
            time.sleep(0.01)
            check_cancelled()
        return fix(model, samples)

    monkeypatch.setattr("prepbench.bench.captures.fix", slow)
    controls = BenchControls(_gated())
    controls.look_for_fixes()
    assert begun.wait(60)
    first = controls._search
    _click(controls, action="compile")
    assert controls.bench.job is not None
    with pytest.raises(pb.PrepbenchError):
        controls.bench.job.result(120)
    assert first is not None
    with pytest.raises(pb.Cancelled):
        first.result(60)
    left.set()
    assert controls._search is not first, "it goes on when the compile has ended"
    controls._search.result(120)
    assert controls.failures[0]["can_fix"]


def test_a_search_that_fails_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(model: Any, samples: Any, *, progress: Any) -> Any:
        raise CaptureError("no")

    monkeypatch.setattr("prepbench.bench.captures.fix", failing)
    controls = BenchControls(_gated())
    controls.look_for_fixes()
    assert controls._search is not None
    with pytest.raises(CaptureError):
        controls._search.result(60)
    assert controls.fixes_known
    assert not controls.failures[0]["can_fix"]
