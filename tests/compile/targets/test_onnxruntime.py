"""ONNX Runtime: what it runs in int8 after its own fusions, and how near the result is to the converted graph."""

from __future__ import annotations

import collections
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import MissingPackageError, TargetError
from prepbench.targets.eager import EagerTarget
from prepbench.targets.onnxruntime import OnnxRuntimeTarget


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.bn = nn.Conv2d(3, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.right = nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.right(torch.relu(self.bn(self.left(x)))) + x)


CONV_STACK = (nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)), (3, 8, 8))
DEPTHWISE = (
    nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU6(), nn.Conv2d(8, 4, 1)),
    (3, 8, 8),
)
RESIDUAL = (nn.Sequential(Residual(), Residual()), (3, 8, 8))
MLP = (nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)), (16,))
TOKENS = (nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), (5, 16))
POOLED = (
    nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)),
    (3, 8, 8),
)
CONV1D = (nn.Sequential(nn.Conv1d(3, 8, 3, padding="same"), nn.Hardswish(), nn.Conv1d(8, 3, 1)), (3, 9))


def compiled(net: nn.Module, shape: tuple[int, ...], target: Any = None, **settings: Any) -> pb.CompiledModel:
    return pb.compile_model(
        net.eval(),
        tracing_inputs=[noise(2, *shape), noise(3, *shape)],
        calibration_inputs=[noise(16, *shape), noise(8, *shape)],
        deployment_settings=target or pb.OnnxRuntimeDeployment(),
        quantization_settings=pb.QuantizationSettings(**settings),
    )


def operators(model: pb.CompiledModel, folder: Path) -> Counter[str]:
    """Names of the operators after ONNX Runtime's own optimisation."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(model.export(folder / "model.onnx")), options)
    return collections.Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


@pytest.mark.parametrize(
    "net, shape, expected",
    [
        (*CONV_STACK, {"QLinearConv": 2}),
        (*DEPTHWISE, {"QLinearConv": 3}),
        (*RESIDUAL, {"QLinearConv": 4, "QLinearAdd": 2}),
        (*MLP, {"QGemm": 3}),
        (*TOKENS, {"MatMulIntegerToFloat": 2}),
        (*POOLED, {"QLinearConv": 1, "QGemm": 1}),
        (*CONV1D, {"QLinearConv": 2}),
    ],
    ids=["conv-bn-relu", "depthwise", "residual", "mlp", "tokens", "pooled", "conv1d"],
)
def test_every_layer_runs_in_an_int8_kernel(net: nn.Module, shape: Any, expected: Any, tmp_path: Path) -> None:
    found = operators(compiled(net, shape), tmp_path)
    assert {name: found[name] for name in expected} == expected
    assert not found.keys() & {"Conv", "FusedConv", "Gemm", "FusedGemm", "MatMul", "Relu", "Clip"}


def test_a_depthwise_convolution_whose_integers_nothing_reads_stays_in_float(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.SiLU(), nn.Conv2d(8, 4, 1))
    model = compiled(net, (3, 8, 8))
    rows = {row.fqn: row for row in model.report.layers}
    assert [row.quantized for row in rows.values()] == [True, False, True]
    assert "depthwise convolution is faster in float" in rows["2"].reason
    assert operators(model, tmp_path)["QLinearConv"] == 2


@pytest.mark.parametrize("net, shape", [CONV_STACK, DEPTHWISE, RESIDUAL, MLP, TOKENS, POOLED, CONV1D])
def test_it_computes_what_the_converted_graph_computes(
    net: nn.Module, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EagerTarget, "placement", OnnxRuntimeTarget.placement)
    model, reference = compiled(net, shape), compiled(net, shape, pb.EagerDeployment())
    for batch in (1, 7):
        x = noise(batch, *shape)
        expected = reference(x)
        error = (model(x) - expected).pow(2).sum() / expected.pow(2).sum()
        # a value between two integers may be rounded either way, which the next layer sees as one step
        assert float(error) < 10**-3.5


@pytest.mark.parametrize("kept", ["2", "4", "7"])
def test_a_layer_kept_in_float_between_layers_in_integers_is_in_float(kept: str) -> None:
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 4 * 4, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    with torch.no_grad():  # one scale for all channels would leave nothing of the others
        net.get_submodule(kept).weight[0] *= 1000
        net.get_submodule(kept).bias[0] = -1e4

    def found(settings: pb.DeploymentSettings) -> torch.Tensor:
        model = pb.compile_model(
            net,
            tracing_inputs=[noise(2, 3, 8, 8), noise(3, 3, 8, 8)],
            calibration_inputs=[noise(16, 3, 8, 8), noise(8, 3, 8, 8)],
            deployment_settings=settings,
            quantization_settings=pb.QuantizationSettings(),
            layer_quantization_settings={kept: pb.LayerQuantizationSettings(skip_quantization=True)},
            compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        )
        assert [row.fqn for row in model.report.layers if not row.quantized] == [kept]
        return model(noise(7, 3, 8, 8))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(EagerTarget, "placement", OnnxRuntimeTarget.placement)
        expected = found(pb.EagerDeployment())
    assert pb.metrics.sqnr(found(pb.OnnxRuntimeDeployment()), expected) > 30


def test_weights_only_halves_no_activation(tmp_path: Path) -> None:
    net, shape = MLP
    model = compiled(net, shape, prefer_weights_only_quantization=True)
    found = operators(model, tmp_path)
    assert "QuantizeLinear" not in found
    assert "QGemm" not in found
    expected = net(noise(5, *shape))
    assert float((model(noise(5, *shape)) - expected).pow(2).sum() / expected.pow(2).sum()) < 10**-3.5


def test_threads_are_passed_on() -> None:
    model = pb.compile_model(
        nn.Linear(4, 4), tracing_inputs=[noise(2, 4)], deployment_settings=pb.OnnxRuntimeDeployment(intra_op_threads=1)
    )
    assert model._runtime._session.get_session_options().intra_op_num_threads == 1


class NamedLikeOperators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, linear: torch.Tensor, mul: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.fc(linear) * 2 + mul)


def test_inputs_and_outputs_may_have_the_names_of_operators(tmp_path: Path) -> None:
    import onnx

    x = (noise(2, 4), noise(2, 4))
    net = NamedLikeOperators()
    model = pb.compile_model(net, tracing_inputs=[x])
    torch.testing.assert_close(model(*x), net(*x))
    model.export(tmp_path / "model.onnx", input_names=["add", "fc.weight"], output_names=["linear"])
    graph = onnx.load(tmp_path / "model.onnx").graph
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    assert [value.name for value in (*graph.input, *graph.output)] == ["add", "fc.weight", "linear"]


def test_what_torch_cannot_decompose_is_told_as_the_reason() -> None:
    class Empty(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.adaptive_avg_pool1d(x, 0)  # torch divides by the size of the result

    with pytest.raises(TargetError, match=r"cannot be written as ONNX.*ZeroDivisionError"):
        pb.compile_model(
            Empty().eval(), tracing_inputs=[torch.randn(2, 3, 4)], deployment_settings=pb.OnnxRuntimeDeployment()
        )


def test_an_operator_without_an_onnx_translation_is_named() -> None:
    class Flows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.matrix_exp(x)

    with pytest.raises(TargetError, match=r"cannot be written as ONNX.*linalg_matrix_exp.*InductorDeployment"):
        pb.compile_model(Flows(), tracing_inputs=[noise(4, 4)])


def test_a_number_type_that_it_cannot_run_is_an_error_with_the_remedy() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    with pytest.raises(TargetError, match=r"cannot run the graph.*no MatMul of int16.*torch.int32"):
        pb.compile_model(product, tracing_inputs=[torch.ones(4, 4, dtype=torch.int16)])


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(MissingPackageError, match="pip install onnxruntime"):
        pb.compile_model(nn.Linear(4, 4), tracing_inputs=[noise(2, 4)])


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    compiled(*POOLED)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


class Adds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


class Groups(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return nn.functional.conv1d(x, weight, groups=x.shape[1])


def test_a_refused_operator_is_named_with_what_to_do() -> None:
    booleans = [torch.ones(size, dtype=torch.bool) for size in (2, 3)]
    with pytest.raises(TargetError, match=r"no Add of bool. Convert its operands"):
        pb.compile_model(Adds(), tracing_inputs=booleans)
    convolved = [(torch.randn(2, size, 8), torch.randn(size, 1, 3)) for size in (2, 3)]
    with pytest.raises(TargetError, match=r"written as ONNX: aten\.conv1d"):
        pb.compile_model(Groups(), tracing_inputs=convolved)
