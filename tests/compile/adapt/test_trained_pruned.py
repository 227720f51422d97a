"""Pruning before training: masks that training keeps, channels that are gone, and what cannot be trained without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import batches, loss, samples, trained
from tests.compile.adapt.test_trainable import INT8, TARGETS, prepared_of
from tests.turns import in_turns

HALF = pb.PruningSettings(mask_type="channels")


class Encoder(nn.Module):
    """Torch's own attention, whose code counts heads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1))


@pytest.mark.parametrize("symmetric", [True, False])
def test_masked_weights_stay_zero_in_training_and_in_integers(symmetric: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(16, 32), [torch.randn(4, 16), torch.randn(6, 16)]
    settings = pb.QuantizationSettings(
        weights_num_bits=4, prefer_weights_only_quantization=True, weights_symmetric=symmetric
    )
    prepared = pb.trainable(
        layer,
        calibration_inputs=x,
        deployment_settings=pb.EagerDeployment(),
        quantization_settings=settings,
        pruning_settings=pb.PruningSettings(mask_type="2:4"),
    )
    before = prepared.weight.detach().clone()
    gone = before == 0
    assert ((~gone).reshape(32, 4, 4).sum(-1) == 2).all()
    assert "47% of the numbers" in repr(prepared)
    optimizer = torch.optim.SGD(prepared.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        prepared.train()(x[0]).square().sum().backward()
        optimizer.step()
    assert not bool(prepared.weight[gone].any())
    assert not bool((prepared.weight[~gone] == before[~gone]).any())
    made = pb.compile_model(prepared.eval())
    stands_for = (made(torch.eye(16)) - made(torch.zeros(1, 16))).t()
    assert stands_for[gone].abs().max() < 1e-6
    assert torch.allclose(made(x[0]), prepared(x[0]), atol=1e-5)
    assert made.report.pruned[0].zeros == 256
    prepared.load_state_dict(layer.state_dict())
    assert torch.equal(prepared.weight, layer.weight.masked_fill(gone, 0))


def test_masks_and_adapters_and_copies() -> None:
    model = trained("conv")
    prepared = prepared_of(model, pruning_settings=pb.PruningSettings(), lora_settings=pb.LoraSettings(rank=2))
    weight = prepared.state_dict()["branch.weight"]
    assert float((weight == 0).float().mean()) == 0.5
    x = samples(model)[0]
    with torch.no_grad():
        expected = prepared(x)
        prepared.branch.base_layer.weight.add_(1)  # what a loop writes there itself is not computed with
        prepared.branch.base_layer.weight[weight != 0] -= 1
        assert sqnr(expected, prepared(x)) > 40
        assert sqnr(expected, pb.compile_model(prepared)(x)) > 40


@pytest.mark.parametrize("kind", in_turns(["conv", "transformer"], 0))
def test_removed_channels_are_trained_back_and_compiled(kind: str) -> None:
    model = trained(kind)
    prepared = prepared_of(model, pruning_settings=HALF)
    assert prepared.notes == ()
    assert sum(row.removed_channels for row in prepared.pruned) >= 12
    count, dense = (sum(p.numel() for p in each.parameters()) for each in (prepared, model))
    assert count < 0.8 * dense
    found = pb.recover(prepared, batches(model), loss, teacher=model, steps=30)
    assert found.after < found.before
    compiled = pb.compile_model(prepared)
    x = samples(model)[0][:7]
    with torch.no_grad():
        assert sqnr(prepared(x), compiled(x)) >= 40
    assert compiled.report.pruned == prepared.pruned
    assert compiled.report.float_bytes >= 4 * dense
    assert type(prepared.float_model()) is type(model)


def test_what_prune_gives_is_trained() -> None:
    model = trained("conv")
    smaller = pb.prune(model, samples(model), HALF).model
    prepared = prepared_of(smaller)
    x, y = batches(model)[0]
    loss(prepared.train()(x), y).backward()
    assert all(p.grad is not None for p in prepared.parameters())
    assert prepared.stem.weight.shape == (6, 1, 3, 3)


@pytest.mark.stress
def test_where_code_counts_channels_the_graph_is_trained() -> None:
    torch.manual_seed(0)
    model, x = Encoder().eval(), [torch.randn(4, 8, 8), torch.randn(3, 8, 8)]
    given = {
        "calibration_inputs": x,
        "deployment_settings": TARGETS["onnxruntime"],
        "quantization_settings": INT8,
    }
    graph = pb.prune(model, x, HALF)
    assert graph.why_graph
    prepared = pb.trainable(model, pruning_settings=HALF, **given)
    assert "code counts" in prepared.notes[0]
    assert sum(p.numel() for p in prepared.parameters()) == sum(p.numel() for p in graph.model.parameters())
    with torch.no_grad():
        assert sqnr(graph.model(x[0]), prepared(x[0])) > 15
    before = pb.recover(prepared, x, steps=20, learning_rate=3e-3)
    assert before.scores[before.best_step] < before.scores[0]
    with torch.no_grad():
        assert sqnr(prepared(x[1]), pb.compile_model(prepared)(x[1])) >= 40
    with pytest.raises(pb.PrepbenchError, match=r"no model of the original's class.*compile_model"):
        prepared.float_model()
    with pytest.raises(pb.PrepbenchError, match=r"code counts.*encoder.self_attn.*skip_pruning"):
        pb.trainable(model, pruning_settings=HALF, lora_settings=pb.LoraSettings(), **given)


@pytest.mark.parametrize("score", in_turns(["magnitude", "activations"], 1))
def test_a_graph_that_was_pruned_and_trained_by_hand_is_prepared(score: str) -> None:
    torch.manual_seed(0)
    model, x = Encoder().eval(), [torch.randn(4, 8, 8), torch.randn(3, 8, 8)]
    scored = pb.PruningSettings(mask_type="channels", score=score)
    graph = pb.prune(model, x, scored, calibration_inputs=x).model
    assert all(weight.requires_grad for weight in graph.parameters())
    with torch.no_grad():
        model.head.weight.zero_()  # what happens to the model meanwhile plays no part
        for weight in graph.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    given = {
        "calibration_inputs": [torch.randn(5, 8, 8), torch.randn(2, 8, 8)],  # others than those that were scored
        "deployment_settings": TARGETS["onnxruntime"],
        "quantization_settings": pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4),
    }
    prepared = pb.trainable(graph, **given)
    assert sum(p.numel() for p in prepared.parameters()) == sum(p.numel() for p in graph.parameters())
    assert all(p.requires_grad for p in prepared.parameters())
    assert len(prepared.pruned) > 0
    with torch.no_grad():
        assert sqnr(graph.train()(x[0]), prepared(x[0])) > 5
    found = pb.recover(prepared, x, steps=30)
    assert found.after < found.before
    with torch.no_grad():
        assert sqnr(prepared(x[1]), pb.compile_model(prepared)(x[1])) >= 40
    with pytest.raises(pb.PrepbenchError, match=r"pruned already.*Leave pruning_settings out"):
        pb.trainable(graph, pruning_settings=HALF, **given)
    with pytest.raises(pb.PrepbenchError, match=r"Leave lora_settings out"):
        pb.trainable(graph, lora_settings=pb.LoraSettings(), **given)


def test_channels_that_code_counts_may_be_left_out() -> None:
    model, x = Encoder(), [torch.randn(4, 8, 8), torch.randn(3, 8, 8)]
    given = {
        "calibration_inputs": x,
        "deployment_settings": TARGETS["onnxruntime"],
        "quantization_settings": INT8,
    }
    rules = {"encoder.self_attn*": pb.LayerPruningSettings(skip_pruning=True)}
    prepared = pb.trainable(model, pruning_settings=HALF, layer_pruning_settings=rules, **given)
    assert prepared.encoder.linear1.weight.shape == (8, 8)
    with pytest.raises(pb.PrepbenchError, match="calibration_inputs"):
        pb.trainable(model, tracing_inputs=x, pruning_settings=pb.PruningSettings(score="activations"))
    with pytest.raises(pb.PrepbenchError, match="without pruning_settings"):
        pb.trainable(model, layer_pruning_settings=rules, **given)


class Positions(nn.Module):
    """Adds a table where it has as many rows as the input, so the number of rows decides the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 16), nn.Linear(16, 6)
        self.register_buffer("table", torch.linspace(0, 1, 30).reshape(5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == self.table.shape[0]:
            x = x + self.table
        return self.outer(self.inner(x).relu())


def test_static_axes_are_static_where_the_model_is_pruned() -> None:
    torch.manual_seed(0)
    model, given = Positions(), [torch.randn(batch, rows, 6) for batch, rows in ((2, 5), (3, 5), (2, 7))]
    prepared = pb.trainable(
        model,
        tracing_inputs=given,
        dynamic_axes=pb.DynamicAxes.infer(given, model).set("x", 1, dynamic=False),
        pruning_settings=HALF,
    )
    assert prepared.inner.out_features == 8
    assert prepared(torch.randn(7, 5, 6)).shape == (7, 5, 6)
