"""Passes one by one: each does its one thing, keeps values, and reports what it renamed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.errors import PreparationError
from prepbench.prepare import (
    PreparedModel,
    decompose_activations_,
    equalize_,
    fold_batch_norm_,
    prepare_model,
    remove_identity_,
    run_passes,
)
from tests.compile.prepare.models import x


class Net(nn.Module):
    """Convolutions with batch norm, one with a second user, a depthwise and a transposed one, and linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.depthwise, self.bn2 = nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)
        self.conv3, self.bn3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.up, self.bn4 = nn.ConvTranspose2d(8, 4, 2), nn.BatchNorm2d(4)
        self.relu, self.act, self.gate = nn.ReLU(), nn.SiLU(), nn.Hardswish()
        self.drop, self.same = nn.Dropout(0.5), nn.Sequential(nn.Identity(), nn.ReLU())
        self.fc1, self.bn5, self.fc2 = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.depthwise(x)))
        y = self.conv3(x)
        x = self.act(self.bn3(y)) + y  # conv3 has two users: its batch norm cannot be folded
        x = self.gate(self.bn4(self.up(x)))
        x = self.same(self.drop(x)).mean((2, 3))
        return self.fc2(torch.relu(self.bn5(self.fc1(x))))


@pytest.fixture
def model() -> Net:
    torch.manual_seed(0)
    net = Net()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    nn.init.uniform_(net.conv1.weight[0], 5, 9)
    return net.eval()


INPUTS = [x(2, 3, 9, 9)]


def applied(model: Net, *passes: Any) -> PreparedModel:
    """The passes on the prepared model; the original keeps its weights."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    prepared = run_passes(prepare_model(model, inputs=INPUTS), passes, inputs=INPUTS)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    torch.testing.assert_close(prepared(*INPUTS), model(*INPUTS), rtol=1e-4, atol=1e-5)
    assert prepared.preparation_report.largest_difference < 1e-5
    return prepared


def test_fold_batch_norm(model: Net) -> None:
    prepared = applied(model, fold_batch_norm_)
    kinds = [type(module).__name__ for module in prepared.modules()]
    assert kinds.count("BatchNorm2d") == 1  # bn3, whose input another operation uses as well
    assert kinds.count("BatchNorm1d") == 0
    assert prepared.preparation_report.renames.items() >= {
        ("conv1", "bn1"), ("depthwise", "bn2"), ("up", "bn4"), ("fc1", "bn5")
    }  # fmt: skip
    assert "bn1.weight" not in prepared.state_dict()
    assert prepared.conv1.bias is not None
    assert all(parameter.requires_grad for parameter in prepared.parameters())


def test_folding_needs_evaluation(model: Net) -> None:
    with pytest.raises(PreparationError, match="evaluation mode"):
        run_passes(prepare_model(model.train(), inputs=INPUTS), [fold_batch_norm_])


def test_a_layer_with_shared_weights_is_not_folded() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn, self.other = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)
            self.other.weight = self.conv.weight
            nn.init.uniform_(self.bn.weight, 2, 3)

        def forward(self, x):
            return self.bn(self.conv(x)) + self.other(x)

    model = Tied().eval()
    prepared = run_passes(prepare_model(model, inputs=[x(1, 3, 4, 4)]), [fold_batch_norm_], inputs=[x(1, 3, 4, 4)])
    assert isinstance(prepared.bn, nn.BatchNorm2d)
    torch.testing.assert_close(prepared(x(1, 3, 4, 4)), model(x(1, 3, 4, 4)))


def test_equalize(model: Net) -> None:
    prepared = applied(model, fold_batch_norm_, equalize_)
    pairs = {change.module for change in prepared.preparation_report.changes if change.kind == "weights equalised"}
    assert {"conv1", "depthwise", "fc1"} <= pairs
    one = prepared.conv1.weight.detach().abs().flatten(1).amax(1)
    two = prepared.depthwise.weight.detach().abs().flatten(1).amax(1)
    torch.testing.assert_close(one, two, rtol=0.02, atol=0)
    # the spread over channels is what ruins per-tensor quantization
    before = model.conv1.weight.detach().abs().flatten(1).amax(1)
    assert one.max() / one.min() < before.max() / before.min()


def test_remove_identity_and_dropout(model: Net) -> None:
    prepared = applied(model, remove_identity_)
    called = {type(prepared.get_submodule(n.target)) for n in prepared.graph.nodes if n.op == "call_module"}
    assert not called & {nn.Identity, nn.Dropout}
    assert [c.was for c in prepared.preparation_report.changes if c.kind == "module removed"] == ["drop", "same.0"]
    assert len(prepared.same) == 2  # the others keep their names


def test_decompose_activations(model: Net) -> None:
    prepared = applied(model, decompose_activations_)
    kinds = {type(module) for module in prepared.modules()}
    assert not kinds & {nn.SiLU, nn.Hardswish}
    assert {nn.Sigmoid, nn.Hardsigmoid} <= kinds
    assert {"act", "gate"} <= set(prepared.preparation_report.renames.values())


def test_silu_stays_silu_unless_asked() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.SiLU()).eval()
    prepared = prepare_model(model, inputs=[x(2, 4)])
    assert type(prepared.get_submodule("1")) is nn.SiLU
    asked = prepare_model(model, inputs=[x(2, 4)], extra_passes=[decompose_activations_])
    assert isinstance(asked.get_submodule("module_sigmoid"), nn.Sigmoid)


def test_all_passes_together_and_a_pass_that_lies(model: Net) -> None:
    prepared = applied(model, fold_batch_norm_, remove_identity_, decompose_activations_, equalize_)
    prepared.graph.lint()

    def broken_(prepared: PreparedModel) -> list[Any]:
        prepared.fc2 = nn.Linear(6, 2)
        return []

    with pytest.raises(PreparationError, match="first node that differs is fc2"):
        run_passes(prepared, [broken_], inputs=INPUTS)
