"""Each layer of a recurrent module is a layer by itself, over any number of steps; cells; weights of convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from prepbench.settings.rules import layers_to_quantize, tensors_of_layer

ONNX_RUNTIME = pb.OnnxRuntimeDeployment()


def compiled_with(model: nn.Module, samples: Any, settings: Any = None, **others: Any) -> Any:
    return pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=others.pop("target", ONNX_RUNTIME),
        quantization_settings=settings,
        **others,
    )


def operators_in(compiled: Any, folder: Path) -> list[str]:
    import onnx

    compiled.save(folder / "model")
    return [node.op_type for node in onnx.load(str(next((folder / "model").rglob("*.onnx")))).graph.node]


class Encoder(nn.Module):
    """The last state of a recurrent module, through a linear layer."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(recurrent.hidden_size, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, state = self.recurrent(x)
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


FIXED = {
    "lstm": nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True),
    "lstm, time first, no bias": nn.LSTM(8, 16, bias=False),
    "gru": nn.GRU(8, 16, 2, batch_first=True),
    "rnn": nn.RNN(8, 16, 2, nonlinearity="relu", batch_first=True),
}


@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_number_of_steps_is_one_operator_per_layer(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Encoder(FIXED[name]).eval()
    x = torch.randn(1, 5, 8)  # a batch of one, or one step in a batch of five
    compiled = compiled_with(model, [x])
    torch.testing.assert_close(compiled(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    operators = operators_in(compiled, tmp_path)
    kind = {"l": "LSTM", "g": "GRU", "r": "RNN"}[name[0]]
    assert operators.count(kind) == model.recurrent.num_layers
    assert "Sigmoid" not in operators  # no step is written out


def test_a_given_state_over_a_fixed_number_of_steps(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(4, 6, 2, proj_size=3).eval()
    sample = torch.randn(5, 2, 4), (torch.randn(2, 2, 3), torch.randn(2, 2, 6))
    compiled = compiled_with(model, [sample])
    expected, found = model(*sample), compiled(*sample)
    torch.testing.assert_close(found[0], expected[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], tuple(part.detach() for part in expected[1]), rtol=1e-4, atol=1e-5)


def test_layers_have_names_settings_and_tensors_of_their_own() -> None:
    model = nn.ModuleDict({"lstm": nn.LSTM(4, 6, 2, bidirectional=True), "one": nn.GRU(4, 6)})
    assert layers_to_quantize(model) == ["lstm.weight_ih_l0", "lstm.weight_ih_l1", "one"]
    lstm = model["lstm"]
    second = [value for name, value in lstm.named_parameters() if "_l1" in name]
    assert list(map(id, tensors_of_layer(model, "lstm.weight_ih_l1"))) == list(map(id, second))
    rules = {
        "LSTM": pb.LayerQuantizationSettings(weights_num_bits=4),
        "lstm.weight_ih_l1": pb.LayerQuantizationSettings(skip_quantization=True),
    }
    rows = {row.fqn: row for row in pb.explain_settings(model, pb.QuantizationSettings(), rules)}
    assert [(row.type, row.rule) for row in rows.values()] == [
        ("LSTM", "LSTM"),
        ("LSTM", "lstm.weight_ih_l1"),
        ("GRU", "global"),
    ]
    assert rows["lstm.weight_ih_l1"].settings is None


def test_only_the_layer_that_integers_ruin_multiplies_in_float(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Encoder(nn.LSTM(24, 48, 3, batch_first=True)).eval()
    scale = torch.ones(24)
    scale[0] = 1000.0  # of an input that the first layer does not need, but that decides the range of all
    with torch.no_grad():
        model.recurrent.weight_ih_l0[:, 0] = 0.0
    samples = [torch.randn(2, 12, 24) * scale for _ in range(4)]
    compiled = compiled_with(model, samples, pb.QuantizationSettings())
    rows = {row.fqn: row for row in compiled.report.layers}
    assert rows["recurrent.weight_ih_l0"].summary == "int8 weights"
    assert rows["recurrent.weight_ih_l0"].reason.startswith("weights only: with activations in integers")
    assert rows["recurrent.weight_ih_l1"].summary == rows["recurrent.weight_ih_l2"].summary == "int8"
    operators = operators_in(compiled, tmp_path)
    assert (operators.count("LSTM"), operators.count("DynamicQuantizeLSTM")) == (1, 2)
    for sample in samples:
        assert sqnr(model(sample).detach(), compiled(sample)) > 20
    matrices = sum(value.numel() for name, value in model.recurrent.named_parameters() if "weight" in name)
    size = sum(path.stat().st_size for path in (tmp_path / "model").rglob("*.onnx*"))
    assert size < 1.5 * matrices + 20_000  # a byte each, and the graph


class Loop(nn.Module):
    """A cell that runs over some steps."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


CELLS = {
    "lstm": nn.LSTMCell(24, 32),
    "gru": nn.GRUCell(24, 32),
    "gru without biases": nn.GRUCell(24, 32, bias=False),
    "rnn": nn.RNNCell(24, 32),
    "relu": nn.RNNCell(24, 32, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", CELLS)
def test_cells_are_quantized(name: str) -> None:
    torch.manual_seed(0)
    model = Loop(CELLS[name]).eval()
    samples = [torch.randn(4, 3, 24) for _ in range(4)]
    compiled = compiled_with(model, samples, pb.QuantizationSettings())
    assert {row.fqn: row.summary for row in compiled.report.layers} == {"cell": "int8", "head": "int8"}
    assert sqnr(model(samples[0]).detach(), compiled(samples[0])) > 30


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.ConvTranspose1d], ids=["convolution", "transposed"])
def test_weights_of_convolutions_are_dequantized_when_the_file_is_loaded(bits: int, kind: Any, tmp_path: Path) -> None:
    import onnxruntime

    torch.manual_seed(0)
    model = nn.Sequential(kind(64, 64, 3, padding=1, groups=2), nn.ReLU(), kind(64, 64, 3)).eval()
    x = torch.randn(2, 64, 9)
    settings = pb.QuantizationSettings(weights_num_bits=bits, prefer_weights_only_quantization=True)
    compiled = compiled_with(model, [x], settings)
    assert sqnr(model(x).detach(), compiled(x)) > (12 if bits == 4 else 35)
    assert "DequantizeLinear" not in operators_in(compiled, tmp_path)
    (file,) = (tmp_path / "model").rglob("*.onnx")
    count = sum(weight.numel() for weight in model.parameters() if weight.ndim > 1)
    assert file.stat().st_size < count * bits / 8 + 16_000
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    import onnx

    loaded = [node.op_type for node in onnx.load(str(tmp_path / "loaded.onnx")).graph.node]
    assert not {"Cast", "Mul", "DequantizeLinear"} & set(loaded)
