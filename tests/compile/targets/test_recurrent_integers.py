"""Recurrent layers with weights in integers."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from prepbench.quantize.dynamic_lstm import dynamic_lstm_layer
from tests.compile.targets.test_recurrent import EMPTY, SAMPLES, UNSEEN, Tagger

ONNX_RUNTIME, OPENVINO = pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()
SKIPPED = pb.LayerQuantizationSettings(skip_quantization=True)


def compiled_layers(model: nn.Module, target: Any, *, weights_only: bool = False) -> Any:
    """Compiled with all but the recurrent layers in float."""
    return pb.compile_model(
        model,
        calibration_inputs=SAMPLES,
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(
            prefer_weights_only_quantization=weights_only, weights_utilize_full_int_range=False
        ),
        layer_quantization_settings=dict.fromkeys(["table", "head"] if weights_only else ["head"], SKIPPED),
    )


def rounded(model: nn.Module) -> nn.Module:
    """The same with the matrices of its recurrent layers rounded to 8 bits, a scale for each row."""
    model = copy.deepcopy(model)
    for name, weight in model.layers.named_parameters():
        if name.startswith("weight"):
            scale = weight.detach().abs().amax(1, keepdim=True) / 127
            weight.data = (weight.detach() / scale).round().clamp(-127, 127) * scale
    return model


def integers_in(folder: Path) -> tuple[list[str], int]:
    """The operators of the ONNX file in a folder, and how many elements in integers of 8 bits it has."""
    import onnx

    graph = onnx.load(str(next(folder.rglob("*.onnx")))).graph
    names = {onnx.TensorProto.INT8: 0}
    for value in graph.initializer:
        names[value.data_type] = names.get(value.data_type, 0) + math.prod(value.dims)
    return [node.op_type for node in graph.node], names[onnx.TensorProto.INT8]


def matrices_of(model: nn.Module) -> int:
    return sum(weight.numel() for name, weight in model.layers.named_parameters() if name.startswith("weight"))


def test_onnx_runtime_multiplies_integers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Tagger().eval()
    compiled = compiled_layers(model, ONNX_RUNTIME)
    row = {row.fqn: row for row in compiled.report.layers}["layers.weight_ih_l0"]
    assert (row.summary, row.note) == ("int8", "ranges of activations are found in each call")
    compiled.save(tmp_path / "model")
    loaded = pb.load_compiled(tmp_path / "model")
    for ids in (*SAMPLES, *UNSEEN):
        assert sqnr(rounded(model)(ids).detach(), compiled(ids)) > 32
        assert torch.equal(compiled(ids), loaded(ids))
    assert compiled(EMPTY).shape == (0, 5, 5)
    operators, integers = integers_in(tmp_path / "model")
    assert operators.count("DynamicQuantizeLSTM") == 2
    assert matrices_of(model) <= integers <= matrices_of(model) + 4 * 2 * 24  # and zero points


def test_weights_only_are_stored_in_integers_without_a_dequantizer(tmp_path: Path) -> None:
    model = Tagger().eval()
    compiled = compiled_layers(model, ONNX_RUNTIME, weights_only=True)
    for ids in (*SAMPLES, *UNSEEN):
        torch.testing.assert_close(compiled(ids), rounded(model)(ids).detach(), rtol=1e-4, atol=1e-5)
    compiled.save(tmp_path / "model")
    operators, integers = integers_in(tmp_path / "model")
    assert operators.count("LSTM") == 2
    assert "DequantizeLinear" not in operators
    assert integers == matrices_of(model)


@pytest.mark.parametrize(
    ("kind", "target"),
    [(nn.LSTM, OPENVINO), (nn.GRU, OPENVINO), (nn.GRU, ONNX_RUNTIME)],
    ids=["LSTM on OpenVINO", "GRU on OpenVINO", "GRU on ONNX Runtime"],
)
def test_without_an_integer_kernel_weights_are_stored_in_integers(kind: Any, target: Any) -> None:
    torch.manual_seed(0)
    model = Tagger(kind).eval()
    compiled = compiled_layers(model, target)
    row = {row.fqn: row for row in compiled.report.layers}["layers.weight_ih_l0"]
    assert row.summary == "int8 weights"
    assert row.reason == "weights only: this target has no integer kernel for this recurrent layer with these bits"
    for ids in (*SAMPLES, *UNSEEN):
        torch.testing.assert_close(compiled(ids), rounded(model)(ids).detach(), rtol=1e-4, atol=1e-5)


def test_four_bits_in_blocks_for_a_layer_with_projections() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(64, 64, proj_size=32, batch_first=True).eval()
    settings = pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=32
    )
    x = torch.randn(2, 9, 64)
    compiled = pb.compile_model(
        model,
        calibration_inputs=[x, torch.randn(3, 5, 64)],
        deployment_settings=ONNX_RUNTIME,
        quantization_settings=settings,
    )
    assert [(row.summary, row.block_size) for row in compiled.report.layers] == [("int4 weights", 32)]
    assert sqnr(model(x)[0].detach(), compiled(x)[0]) > 15


@pytest.mark.parametrize(
    ("model", "target", "reason"),
    [
        (Tagger(), pb.InductorDeployment(), "no integer form of recurrent layers for this target"),
        (Tagger(proj_size=3), OPENVINO, "no integer form of LSTMs with projections for this target"),
    ],
    ids=["Inductor", "projections on OpenVINO"],
)
def test_reports_say_why_weights_stay_in_float(model: nn.Module, target: Any, reason: str) -> None:
    plan = pb.compile_model(
        model.eval(),
        calibration_inputs=SAMPLES,
        deployment_settings=target,
        quantization_settings=pb.QuantizationSettings(),
        is_dry_run=True,
    )
    assert {row.fqn: row.summary for row in plan.layers}["layers.weight_ih_l0"] == f"float: {reason}"


def test_the_operator_in_integers_is_near_the_one_in_float() -> None:
    torch.manual_seed(0)
    x, h, c = torch.randn(6, 3, 8), torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    weights = [torch.randn(shape) / 3 for _ in range(2) for shape in ((20, 8), (20, 5), (20,), (20,))]
    for lengths in (None, torch.tensor([6, 2, 4])):
        expected = torch.ops.prepbench.lstm_layer(x, h, c, weights, lengths)
        got = dynamic_lstm_layer(x, h, c, weights, lengths)
        for one, other in zip(expected, got, strict=True):
            assert one.shape == other.shape
            assert 25 < sqnr(one, other) < 60
    assert dynamic_lstm_layer(x[:, :0], h[:, :0], c[:, :0], weights)[0].shape == (6, 0, 10)
