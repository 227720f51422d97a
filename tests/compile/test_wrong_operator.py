"""Who is wrong about a value is found by running the parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from onnxscript import opset21
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError
from prepbench.targets.onnx import export, translations


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
