"""What the page asks Python to write, and what an output keeps for when there is no kernel."""

from __future__ import annotations

import functools
import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.document.bench import BENCH_MIME_TYPE
from prepbench.measure.run import compare
from prepbench.views.display import LIMIT
from prepbench.widgets.bench import BenchControls, bench_bundle


@pytest.fixture
def controls() -> BenchControls:
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    return BenchControls(pb.Bench(nn.Sequential(nn.Linear(4, 8), nn.ReLU()).eval(), calibration_inputs=samples))


@pytest.fixture
def sent(controls: BenchControls, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    messages: list[Any] = []
    monkeypatch.setattr(controls, "send", lambda content, buffers=None: messages.append((content, buffers)))
    return messages


def click(controls: BenchControls, **content: Any) -> None:
    controls._handle_custom_msg(content, [])


def test_save_and_report_write_files_and_say_where(controls: BenchControls, sent: list[Any], tmp_path: Path) -> None:
    files = {"save": tmp_path / "net.bench.json", "report": tmp_path / "net.html"}
    for action, file in files.items():
        click(controls, action=action, path=str(file))
        assert file.exists()
    assert [content["action"] for content, _ in sent] == ["written"] * 2
    assert [content["card"]["text"] for content, _ in sent] == [f"Written to {file}." for file in files.values()]
    click(controls, action="save", path=str(files["save"]))
    assert sent[-1][0]["card"]["text"] == f"Written to {files['save']}, in the place of an older one."
    back = pb.Bench.load(
        files["save"], model=controls.bench.model, calibration_inputs=controls.bench.calibration_inputs
    )
    assert back.state == controls.bench.state


def test_what_cannot_be_written_is_said_where_it_was_asked(
    controls: BenchControls, sent: list[Any], tmp_path: Path
) -> None:
    click(controls, action="save", path=str(tmp_path / "net.json"))
    click(controls, action="report", path=str(tmp_path / "none" / "net.html"))
    assert [content["action"] for content, _ in sent] == ["written"] * 2, "the view that asked does not wait"
    cards = [content["card"] for content, _ in sent]
    assert ".bench.json" in cards[0]["text"]
    assert "cannot be written" in cards[1]["text"]
    assert [card["kind"] for card in cards] == ["error", "error"]
    (button,) = cards[1]["buttons"]
    assert (button["label"], button["action"], button["value"]) == ("Download it", "download", "report")
    assert controls.message["text"] == "", "said once"


def test_what_cannot_be_exported_is_offered_in_another_form(
    sent: list[Any], controls: BenchControls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: object) -> None:
        raise pb.errors.TargetError("A model with leaves cannot be written as ONNX.")

    monkeypatch.setattr(controls.bench.run_history, "export_onnx", refused)
    click(controls, action="export_onnx", path=str(tmp_path / "net.onnx"))
    (button,) = sent[-1][0]["card"]["buttons"]
    assert (button["action"], button["value"]) == ("save_model", str(tmp_path / "net"))
    click(controls, action="download", what="onnx")
    assert [button["value"] for button in sent[-1][0]["card"]["buttons"]] == ["model"]

    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "mine.txt").write_text("mine")
    monkeypatch.setattr("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0))
    controls.bench.compile()
    click(controls, action="save_model", path=str(tmp_path / "net"))
    (button,) = sent[-1][0]["card"]["buttons"]
    assert button["value"] == str(tmp_path / "net-2")
    click(controls, action=button["action"], path=button["value"])
    assert sent[-1][0]["card"]["text"] == f"Written to {tmp_path / 'net-2'}."
    assert (tmp_path / "net" / "mine.txt").read_text() == "mine"


def test_a_report_can_be_downloaded(controls: BenchControls, sent: list[Any]) -> None:
    click(controls, action="download", what="report")
    ((content, buffers),) = sent
    assert content == {"action": "download", "name": "Sequential.html", "part": 1, "parts": 1}
    assert b"<!doctype html>" in buffers[0]


def test_a_compiled_model_is_saved_exported_and_downloaded(
    controls: BenchControls, sent: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0))
    monkeypatch.setattr("prepbench.widgets.bench_actions._PIECE", 1000)
    bench = controls.bench
    bench.compile()
    name = bench.runs[-1].name
    click(controls, action="save_model", path=str(tmp_path / "net"))
    click(controls, action="export_onnx", path=str(tmp_path / "net.onnx"))
    ends = [content["card"]["text"] for content, _ in sent]
    assert ends == [f"Written to {tmp_path / name}." for name in ("net", "net.onnx")]
    sample = bench.calibration_inputs[0].args[0]
    expected = bench.results[name](sample)
    assert torch.equal(pb.load_compiled(tmp_path / "net")(sample), expected)
    for what in ("model", "onnx"):
        sent.clear()
        click(controls, action="download", what=what)
        assert len(sent) > 1, "a large file comes in pieces"
        assert [content["part"] for content, _ in sent] == [*range(1, len(sent) + 1)]
        assert {content["parts"] for content, _ in sent} == {len(sent)}
        data = b"".join(buffers[0] for _, buffers in sent)
        if what == "onnx":
            onnx.load_from_string(data)
            continue
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(tmp_path / "unpacked")
        assert torch.equal(pb.load_compiled(tmp_path / "unpacked" / "Sequential")(sample), expected)


def test_an_output_keeps_the_bench_for_when_there_is_no_kernel(controls: BenchControls) -> None:
    bundle = bench_bundle(controls.bench)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    shown = bundle[BENCH_MIME_TYPE]["shown"]
    assert [table["title"] for table in shown["tables"]] == ["Inputs", "Rules", "Layers", "Runs"]
    assert shown["environment"] == []
    assert "pb.compile_model" in bundle["text/html"]


def test_a_page_gets_the_bench_as_it_stands(controls: BenchControls, sent: list[Any]) -> None:
    bundle = bench_bundle(controls.bench)
    click(controls, action="still")
    click(controls, action="set_precision", pattern=["0"], precision="float32")
    click(controls, action="still")
    click(controls, action="select", fqn="0")
    click(controls, action="still")
    assert [content for content, _ in sent] == [{"action": "still"}] * 3
    first, second, third = [json.loads(gzip.decompress(buffers[0])) for _, buffers in sent]
    assert first == {kind: data for kind, data in bundle.items() if "widget-view" not in kind}
    assert first[BENCH_MIME_TYPE]["shown"]["sentence"] != second[BENCH_MIME_TYPE]["shown"]["sentence"]
    assert "in float32" in second["text/plain"]
    assert third == second


def test_the_output_of_a_large_model_is_bounded() -> None:
    deep = nn.Sequential(*(nn.Linear(4, 4) for _ in range(400))).eval()
    bundle = bench_bundle(pb.Bench(deep, calibration_inputs=[torch.randn(2, 4), torch.randn(3, 4)]))
    assert sum(len(str(value).encode()) for value in bundle.values()) < LIMIT * 1.2
    assert "and 340 more" in bundle["text/html"]
