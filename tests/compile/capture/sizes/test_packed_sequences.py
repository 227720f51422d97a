"""Packed sequences: the lengths are an input like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import prepbench as pb
from prepbench.capture.sizes.recurrent import has_lengths
from prepbench.errors import TargetError
from tests.turns import in_turns


class Packed(nn.Module):
    """``total`` steps come out: None for those of the longest sequence, "all" for those of the batch, or a number."""

    def __init__(self, kind: Any = nn.LSTM, is_sorted: bool = False, total: int | str | None = None, **settings: Any):
        super().__init__()
        self.layers, self.is_sorted, self.total = kind(4, 6, **settings), is_sorted, total
        self.head = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        first = self.layers.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.is_sorted)
        y, last = self.layers(packed)
        total = x.shape[1 if first else 0] if self.total == "all" else self.total
        y, found = pad_packed_sequence(y, batch_first=first, padding_value=-2.0, total_length=total)
        return self.head(y), last, found


def sample(lengths: list[int], length: int, *, first: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(length, len(lengths), 4)
    return x.transpose(0, 1).contiguous() if first else x, torch.tensor(lengths)


def samples(model: Packed) -> list[Any]:
    """Two to trace with and others, among them one whose lengths all end before the batch does."""
    lengths = [([4, 2], 4), ([3, 7, 1], 7), ([1], 1), ([2, 5, 3, 3], 9)]
    order = sorted if model.is_sorted else list
    given = [([-one for one in order(-one for one in some)], length) for some, length in lengths]
    return [sample(some, length, first=model.layers.batch_first) for some, length in given]


def check(found: Any, model: Packed, *given: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(found(*given), model(*given), rtol=1e-4, atol=1e-5)


MODELS = {
    "lstm": Packed(num_layers=2, bidirectional=True, batch_first=True),
    "lstm with projections": Packed(num_layers=2, bidirectional=True, proj_size=3),
    "gru": Packed(nn.GRU, is_sorted=True, bidirectional=True, bias=False),
    "tanh": Packed(nn.RNN, total="all", batch_first=True),
    "relu": Packed(nn.RNN, nonlinearity="relu"),
    "padded to 12": Packed(nn.GRU, total=12, batch_first=True),
}


@pytest.fixture(autouse=True)
def made() -> None:
    for model in MODELS.values():
        model(*samples(model)[0])
        model.eval()


@pytest.mark.parametrize("name", in_turns(MODELS, 0))
def test_capture(name: str) -> None:
    model = MODELS[name]
    captured = pb.capture(model, samples(model)[:2])
    assert captured.leaves == ()
    assert any(map(has_lengths, captured.program.graph.nodes))
    assert captured.verify().passed
    for given in samples(model):
        check(captured.program.module(), model, *given)


def test_dropout_that_is_active() -> None:
    model = Packed(num_layers=3, dropout=0.5)
    given = samples(model)
    model.train()(*given[0])
    program = pb.capture(model, given[:2]).program.module()
    for one in given:
        torch.manual_seed(3)
        found = program(*one)
        torch.manual_seed(3)
        torch.testing.assert_close(found, model(*one))


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime(name: str) -> None:
    model = MODELS[name]
    compiled = pb.compile_model(
        model, tracing_inputs=samples(model)[:2], deployment_settings=pb.OnnxRuntimeDeployment()
    )
    assert compiled.report.fallbacks == ()
    for given in samples(model):
        check(compiled, model, *given)


@pytest.mark.stress
def test_openvino_leaves_it_to_pytorch_also_after_another_target() -> None:
    model, reuse = MODELS["lstm"], pb.KeptStages()
    given = samples(model)[:2]
    pb.compile_model(model, tracing_inputs=given, deployment_settings=pb.OnnxRuntimeDeployment(), reuse=reuse)
    settings: Any = {"tracing_inputs": given, "deployment_settings": pb.OpenVinoDeployment(), "reuse": reuse}
    with pytest.raises(TargetError, match=r"lstm_layer.* as if all sequences were of one length.*fullgraph=False"):
        pb.compile_model(model, **settings)
    compiled = pb.compile_model(model, **settings, fullgraph=False)
    assert compiled.report.fallbacks == ("layers: prepbench.lstm_layer (2 times)",)
    for one in samples(model):
        check(compiled, model, *one)


def test_a_sequence_longer_than_the_total_fails_as_in_pytorch() -> None:
    model = MODELS["padded to 12"]
    two, too_long = samples(model)[:2], sample([13, 2], 14, first=True)
    with pytest.raises(ValueError, match="total_length"):
        model(*too_long)
    with pytest.raises(RuntimeError, match="<= 12"):
        pb.capture(model, two).program.module()(*too_long)
    with pytest.raises(RuntimeError, match="total_length"):
        pb.prepare_model(model, inputs=two)(*too_long)
    compiled = pb.compile_model(model, tracing_inputs=two, deployment_settings=pb.OnnxRuntimeDeployment())
    with pytest.raises(pb.errors.InputError, match="fails on this call"):
        compiled(*too_long)


@pytest.mark.parametrize("name", in_turns(MODELS, 1))
def test_module_graphs(name: str) -> None:
    model = MODELS[name]
    given = samples(model)
    assert pb.recursive_trace(model, inputs=given[:2]).failures == ()
    prepared = pb.prepare_model(model, inputs=given[:2])
    for one in given:
        check(prepared, model, *one)
