"""Who is wrong about a value is found by running the parts."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnxscript import opset21
from torch import nn

import prepbench as pb
from prepbench.compile import wrong_operator
from prepbench.errors import TargetError
from prepbench.targets import Lowering
from prepbench.targets.onnx import export, translations
from prepbench.targets.registry import target_for


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.gate = nn.Linear(6, 6), nn.LogSigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.gate(self.project(x)) * 2).sum(1)


@pytest.fixture
def wrong_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[[], Any] = translations.translations
    wrong = {torch.ops.aten.log_sigmoid.default: lambda x: opset21.Softplus(x)}
    monkeypatch.setattr(export, "translations", lambda: {**right(), **wrong})


def test_an_operator_that_fails_when_it_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(x: Any) -> Any:
        return opset21.Add(x, opset21.Gather(x, opset21.Constant(value_ints=[99]), axis=1))  # there are 6 columns

    right: Callable[[], Any] = translations.translations
    monkeypatch.setattr(export, "translations", lambda: {**right(), torch.ops.aten.log_sigmoid.default: fails})
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(TargetError, match=r"on tracing_inputs\[\d\]. It fails at aten.log_sigmoid in gate \(.*:\d+\)"):
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())


def test_an_operator_that_a_runtime_refuses_to_load_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[[], Any] = translations.translations
    bits = {torch.ops.aten.log_sigmoid.default: lambda x: opset21.BitShift(x, x, direction="LEFT")}
    monkeypatch.setattr(export, "translations", lambda: {**right(), **bits})
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(TargetError, match=r"cannot run the graph: .*It fails at aten.log_sigmoid in gate \(.*:\d+\)"):
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("wrong_translation")
def test_the_newest_files_that_errors_name_stay(temporary: Path) -> None:
    for age in range(9):
        old = temporary / f"prepbench-wrong-{age}"
        old.mkdir()
        os.utime(old, (1e9 - age, 1e9 - age))
    (temporary / "prepbench-wrong-note").write_text("no folder")
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(TargetError, match=r"right: (\S+) has only this operator") as caught:
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    left = {path.name for path in temporary.glob("prepbench-wrong-*") if path.is_dir()}
    assert {"prepbench-wrong-0", "prepbench-wrong-1", "prepbench-wrong-2"} < left
    assert len(left) == 4
    file = Path(str(caught.value).split("right: ")[1].split(" has only")[0])
    assert file.parent.name in left
    assert len(onnx.load(file).graph.node) >= 1


@pytest.mark.usefixtures("wrong_translation")
def test_no_folder_is_left_where_no_file_could_be_written(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(wrong_operator, "write_onnx", full)
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(TargetError, match="Which part is wrong was not found"):
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    assert not list(temporary.glob("prepbench-wrong-*"))


@pytest.mark.usefixtures("wrong_translation")
def test_a_wrong_translation_is_no_bug_of_the_target() -> None:
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(TargetError) as caught:
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    text = str(caught.value)
    assert "The first value that differs is that of aten.log_sigmoid in gate (" in text
    assert "Its translation to ONNX is wrong" in text
    assert "bug of the target" not in text


class Doubled:
    """A runtime that gives twice what it should for one operator."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime

    def run(self, leaves: Any) -> list[Any]:
        return [value * 2 for value in self.runtime.run(leaves)]


def test_a_runtime_that_differs_from_the_reference_of_onnx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from prepbench.targets.onnxruntime import OnnxRuntimeTarget

    lower = OnnxRuntimeTarget.lower
    monkeypatch.setattr(OnnxRuntimeTarget, "lower", lambda *given: Doubled(lower(*given)))
    samples = [torch.randn(2, 6), torch.randn(3, 6)]
    with pytest.raises(
        TargetError, match=r"This is a bug of the target: .*model\.onnx has only this operator"
    ) as caught:
        pb.compile_model(Gated(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())
    file = str(caught.value).split("bug of the target: ")[1].split(" has only")[0]
    assert len(onnx.load(file).graph.node) >= 1


def test_an_operator_that_makes_wrong_whole_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.argmax(1)

    right: Callable[[], Any] = translations.translations
    wrong = {torch.ops.aten.argmax.default: lambda x, dim, keepdim=False: opset21.ArgMin(x, axis=1, keepdims=0)}
    monkeypatch.setattr(export, "translations", lambda: {**right(), **wrong})
    samples = [torch.arange(6.0).expand(rows, 6) for rows in (2, 3)]
    with pytest.raises(TargetError, match=r"differs is that of aten.argmax \(.*Its translation to ONNX is wrong"):
        pb.compile_model(Whole(), tracing_inputs=samples, deployment_settings=pb.OnnxRuntimeDeployment())


@pytest.mark.parametrize("is_quantized", [False, True])
def test_where_nothing_is_quantized_no_layer_is_kept_in_float(
    is_quantized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no graph in parts")

    monkeypatch.setattr(wrong_operator, "_Values", fails)
    program = torch.export.export(Gated(), (torch.randn(2, 6),))
    settings = pb.OnnxRuntimeDeployment()
    blame = wrong_operator.Blame(
        target_for(settings), settings, Lowering(program, ("x",), ("y",), {}), is_quantized=is_quantized
    )
    said = blame(pb.Sample((torch.randn(2, 6),), {}), lambda *_: False)
    assert "Which part is wrong was not found" in said
    assert ("layer_quantization_settings" in said) is is_quantized
    assert ("leaf_modules=" in said) is not is_quantized


@pytest.mark.parametrize("kind", [Gated, nn.Sigmoid])
def test_one_operator_is_not_several(kind: Callable[[], nn.Module]) -> None:
    program = torch.export.export(kind(), (torch.randn(2, 6),))
    settings = pb.OnnxRuntimeDeployment()
    blame = wrong_operator.Blame(target_for(settings), settings, Lowering(program, ("x",), ("y",), {}))
    said = blame(pb.Sample((torch.randn(2, 6),), {}), lambda *_: True)
    assert ("what ONNX Runtime makes of several" in said) is (kind is Gated)


def test_beginnings_of_a_graph_are_lowered_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered: list[object] = []

    def lower(given: Lowering) -> Any:
        lowered.append(given)
        raise RuntimeError("not this")

    program = torch.export.export(Gated(), (torch.randn(2, 6),))
    settings = pb.OnnxRuntimeDeployment()
    blame = wrong_operator.Blame(target_for(settings), settings, Lowering(program, ("x",), ("y",), {}), lower)
    assert "It fails at" in blame.of_lowering()
    assert lowered
    lowered.clear()
    monkeypatch.setattr(wrong_operator, "_SECONDS", -1.0)
    assert blame.of_lowering() == ""
    assert not lowered
