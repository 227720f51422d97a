"""With ``fullgraph=False`` PyTorch runs the operators that a target turns out to fail at, at whatever stage."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import CaptureError, TargetError
from prepbench.targets import Lowering, Runtime
from prepbench.targets.onnxruntime import OnnxRuntimeTarget

SAMPLES = [torch.randn(3, 4), torch.randn(5, 4)]
ONNX_RUNTIME, OPENVINO = pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()


class Waves(nn.Module):
    """Three layers with one operator between them that the target fails at, at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = self.layers
        return three(torch.sin(two(torch.sin(one(x))))).relu()


class Applies(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x))


def compiled(model: nn.Module, target: pb.DeploymentSettings, **options: Any) -> Any:
    return pb.compile_model(model.eval(), tracing_inputs=SAMPLES, deployment_settings=target, **options)


class Broken(Runtime):
    """Has no kernel."""

    def run(self, leaves: Sequence[Any]) -> Sequence[Any]:
        raise RuntimeError("no kernel")

    def save(self, folder: Path) -> None:
        raise NotImplementedError


SIN, COS = torch.ops.aten.sin.default, torch.ops.aten.cos.default


@pytest.fixture(params=["cannot lower it", "cannot run it", "computes something else"])
def fails_at_sin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """ONNX Runtime that fails at each program with a sine."""
    lower = OnnxRuntimeTarget.lower

    def failing(self: OnnxRuntimeTarget, lowering: Lowering, settings: pb.DeploymentSettings) -> Runtime:
        if not any(node.target is SIN for node in lowering.program.graph.nodes):
            return lower(self, lowering, settings)
        if request.param == "cannot lower it":
            raise TargetError("ONNX Runtime cannot read the file.")
        if request.param == "cannot run it":
            return Broken()
        other = copy.deepcopy(lowering.program)
        for node in other.graph.find_nodes(op="call_function", target=SIN):
            node.target = COS
        return lower(self, replace(lowering, program=other, programs=None), settings)

    monkeypatch.setattr(OnnxRuntimeTarget, "lower", failing)
    return str(request.param)


@pytest.mark.usefixtures("fails_at_sin")
def test_what_the_target_fails_at_runs_in_pytorch() -> None:
    model = Waves()
    made = compiled(model, ONNX_RUNTIME, fullgraph=False)
    operators = " ".join(made.report.fallbacks)
    assert "aten.sin" in operators
    assert "relu" not in operators
    for x in (*SAMPLES, torch.randn(7, 4)):
        torch.testing.assert_close(made(x), model(x))


@pytest.mark.usefixtures("fails_at_sin")
def test_a_compile_of_the_whole_graph_names_that_remedy() -> None:
    with pytest.raises(TargetError, match=r"With fullgraph=False .* runs in PyTorch"):
        compiled(Waves(), ONNX_RUNTIME)


@pytest.mark.usefixtures("fails_at_sin")
def test_where_the_graph_cannot_be_cut_the_failure_of_the_target_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: Any) -> Runtime:
        raise CaptureError("Dynamic sizes became static.")

    monkeypatch.setattr("prepbench.compile.lowering.lower_partitioned", cut)
    with pytest.raises(TargetError, match=r"^ONNX Runtime") as caught:
        compiled(Waves(), ONNX_RUNTIME, fullgraph=False)
    assert isinstance(caught.value.__cause__, CaptureError)


REAL: dict[str, tuple[pb.DeploymentSettings, Callable[[torch.Tensor], torch.Tensor], str]] = {
    "what a decomposition leads to": (
        ONNX_RUNTIME,
        lambda y: torch.isin(y.round(), torch.tensor([0.0, 1.0])),
        "isin",
    ),
    "a kernel that is wrong for large values": (ONNX_RUNTIME, lambda y: y.logcumsumexp(1), "logcumsumexp"),
    "what the reader of files lacks": (OPENVINO, lambda y: torch.linalg.det(y.T @ y), "det"),
    "integers that differ": (OPENVINO, lambda y: (y * 100).to(torch.uint8), "to"),
}


@pytest.mark.parametrize("name", REAL)
def test_operators_that_real_targets_fail_at(name: str) -> None:
    target, function, operator = REAL[name]
    model = Applies(function)
    made = compiled(model, target, fullgraph=False)
    if made.report.fallbacks:  # a later version of the target may have it
        assert operator in " ".join(made.report.fallbacks)
        assert "linear" not in " ".join(made.report.fallbacks)
    for x in (*SAMPLES, torch.randn(7, 4)):
        torch.testing.assert_close(made(x), model(x), rtol=1e-3, atol=1e-3)


def test_a_model_that_keeps_state_has_no_such_remedy() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps.add_(1)
            return x + self.steps

    with pytest.raises(TargetError) as caught:
        compiled(Counts(), ONNX_RUNTIME)
    assert "fullgraph" not in str(caught.value)
