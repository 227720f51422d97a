"""Recurrent layers over sequences of dynamic length, compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import TargetError
from prepbench.objects.compare import sqnr
from tests.turns import every_second

ONNX_RUNTIME, OPENVINO = pb.OnnxRuntimeDeployment(), pb.OpenVinoDeployment()
SAMPLES = [torch.randint(0, 20, (2, 7)), torch.randint(0, 20, (3, 11))]
UNSEEN = [torch.randint(0, 20, (1, 25)), torch.randint(0, 20, (4, 1))]
EMPTY = torch.randint(0, 20, (0, 5))


class Tagger(nn.Module):
    def __init__(self, kind: Any = nn.LSTM, **settings: Any) -> None:
        super().__init__()
        settings = {"num_layers": 2, "bidirectional": True, "batch_first": True} | settings
        self.table, self.layers = nn.Embedding(20, 8), kind(8, 6, **settings)
        size = settings.get("proj_size") or 6
        self.head = nn.Linear(2 * size if settings["bidirectional"] else size, 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(ids))[0])


def check(compiled: Any, model: nn.Module, *further: torch.Tensor, precision: float = 1e-5) -> None:
    with torch.no_grad():
        for ids in (*SAMPLES, *UNSEEN, *further):
            torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=precision)


BOTH = {"ONNX Runtime": ONNX_RUNTIME, "OpenVINO": OPENVINO}
# of each kind of layer two, which take turns on the two targets
MODELS = [
    Tagger(),
    Tagger(bias=False, num_layers=1, batch_first=False),
    Tagger(nn.GRU),
    Tagger(nn.GRU, bias=False, bidirectional=False),
    Tagger(nn.RNN),
    Tagger(nn.RNN, nonlinearity="relu", num_layers=1),
    Tagger(proj_size=3),
    Tagger(proj_size=3, bias=False, bidirectional=False, batch_first=False),
]


@pytest.mark.parametrize(("model", "target"), every_second({str(model.layers): model for model in MODELS}, BOTH))
def test_the_target_computes_all_of_it(model: nn.Module, target: pb.DeploymentSettings) -> None:
    model.eval()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target)
    assert compiled.report.leaves == compiled.report.fallbacks == ()
    check(compiled, model, EMPTY if model.layers.batch_first else EMPTY.t())


@pytest.mark.parametrize(
    ("dtype", "target"), every_second({"bfloat16": torch.bfloat16, "float16": torch.float16}, BOTH)
)
def test_half_precision(dtype: torch.dtype, target: pb.DeploymentSettings) -> None:
    model = Tagger().to(dtype).eval()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target)
    with torch.no_grad():
        got, expected = compiled(UNSEEN[0]), model(UNSEEN[0])
    assert got.dtype == dtype
    assert sqnr(expected.float(), got.float()) > 40


@pytest.mark.parametrize("target", [ONNX_RUNTIME, OPENVINO], ids=["ONNX Runtime", "OpenVINO"])
def test_projections_with_a_given_state(target: pb.DeploymentSettings) -> None:
    model = nn.LSTM(4, 6, 2, bidirectional=True, proj_size=3).eval()

    def sample(length: int, batch: int) -> tuple[Any, ...]:
        return torch.randn(length, batch, 4), (torch.randn(4, batch, 3), torch.randn(4, batch, 6))

    for other in (sample(5, 3), sample(4, 3)):
        compiled = pb.compile_model(model, tracing_inputs=[sample(4, 2), other], deployment_settings=target)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*other), model(*other), rtol=1e-4, atol=1e-5)


def test_state_in_a_buffer_is_refused_where_the_graph_is_cut() -> None:
    pytest.importorskip("executorch")

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(4, 6)
            self.register_buffer("state", torch.zeros(1, 2, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, state = self.layer(x, self.state)
            self.state.copy_(state)
            return y

    samples, target = [torch.randn(7, 2, 4), torch.randn(4, 2, 4)], pb.ExecuTorchDeployment(max_size_factor=4)
    with pytest.raises(TargetError, match="changes its buffers at each call"):
        pb.compile_model(Stream(), tracing_inputs=samples, deployment_settings=target, fullgraph=False)
    compiled = pb.compile_model(Stream(), tracing_inputs=samples, deployment_settings=pb.EagerDeployment())
    assert not torch.equal(compiled(samples[0]), compiled(samples[0]))


def test_dropout_between_layers_that_is_active() -> None:
    model = Tagger(dropout=0.5).train()
    compiled = pb.compile_model(
        model, tracing_inputs=SAMPLES, deployment_settings=ONNX_RUNTIME, skip_eval_set_mode=True
    )
    assert not torch.equal(compiled(SAMPLES[0]), compiled(SAMPLES[0]))


def test_layers_beside_it_are_quantized() -> None:
    torch.manual_seed(0)
    model = Tagger(nn.GRU).eval()
    compiled = pb.compile_model(
        model,
        calibration_inputs=SAMPLES,
        deployment_settings=ONNX_RUNTIME,
        quantization_settings=pb.QuantizationSettings(),
    )
    rows = {row.fqn: row.summary for row in compiled.report.layers}
    layers = [f"layers.weight_ih_l{number}" for number in range(2)]
    assert rows == {**dict.fromkeys(layers, "int8 weights"), "head": "int8"}
    assert sqnr(model(SAMPLES[1]).detach(), compiled(SAMPLES[1])) > 30


@pytest.mark.stress
def test_inductor_calls_torchs_kernel(tmp_path: Path) -> None:
    model = Tagger().eval()
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=pb.InductorDeployment())
    check(compiled, model)
    compiled.save(tmp_path / "model")
    check(pb.load_compiled(tmp_path / "model", allow_code=True), model)


@pytest.mark.stress
def test_executorch_leaves_it_to_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    model = Tagger().eval()
    target = pb.ExecuTorchDeployment(max_size_factor=4)
    compiled = pb.compile_model(model, tracing_inputs=SAMPLES, deployment_settings=target, fullgraph=False)
    assert compiled.report.fallbacks == ("layers: prepbench.lstm_layer (2 times)",)
    check(compiled, model)
    compiled.save(tmp_path / "model")
    check(pb.load_compiled(tmp_path / "model"), model)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_sequences_and_batches_of_nothing_have_results_of_nothing(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model = Sequences(kind).eval()
    samples = [torch.randn(2, 3, 4), torch.randn(3, 5, 4)]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=ONNX_RUNTIME)
    for batch, length in ((4, 0), (0, 0), (0, 3), (1, 1), (4, 6)):
        x = torch.randn(batch, length, 4)
        found = compiled(x)
        assert found.shape == (batch, length, 5)
        if length:  # PyTorch refuses others
            torch.testing.assert_close(found, model(x))


class Sequences(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(4, 5, num_layers=2, batch_first=True)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)[0]
        return out
