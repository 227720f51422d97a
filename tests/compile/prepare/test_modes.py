"""What follows ``self.training`` goes on to follow it, and what cannot is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prepbench.errors import PreparationError
from prepbench.prepare import prepare_model
from tests.compile.prepare.models import assert_prepared, x


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))
        self.p = 0.25

    def forward(self, x):
        x = F.batch_norm(x, self.mean, self.var, training=self.training)
        x = F.dropout(x, 0.5, self.training) + F.dropout(self.drop(x), 0.5)
        q = x.unsqueeze(0)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=self.p if self.training else 0.0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("with_inputs", [True, False])
def test_the_training_flag_keeps_acting(training: bool, with_inputs: bool) -> None:
    model = Modes().train(training)
    prepared = prepare_model(model, inputs=[x(6, 4)] if with_inputs else None)
    assert type(prepared.module_dropout) is nn.Dropout
    assert type(prepared.module_dropout_1) is not nn.Dropout  # without an argument it is always on
    for mode in (True, False, True):
        model, prepared = copy.deepcopy(model).train(mode), copy.deepcopy(prepared).train(mode)
        torch.manual_seed(1)
        expected = model(x(6, 4))
        torch.manual_seed(1)
        torch.testing.assert_close(prepared(x(6, 4)), expected)
        torch.testing.assert_close(prepared.mean, model.mean)


class DropPath(nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        return x * torch.rand(x.shape[0], 1).round()


class Stochastic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop_path = nn.Linear(4, 4), DropPath()

    def forward(self, x):
        return x + self.drop_path(F.relu(self.linear(x)))


def test_a_small_module_that_branches_on_training_stays_whole() -> None:
    model = Stochastic().eval()
    prepared = assert_prepared(model, x(3, 4))
    (kept,) = [kept for kept in prepared.preparation_report.kept if kept.fqn]
    assert kept.fqn == "drop_path"
    assert "in training" in kept.why
    torch.manual_seed(0)
    expected = model.train()(x(3, 4))
    torch.manual_seed(0)
    torch.testing.assert_close(prepared.train()(x(3, 4)), expected)


class OtherInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        y = F.relu(self.main(x))
        return (y, self.auxiliary(y)) if self.training else y


def test_a_model_that_differs_in_training_refuses_the_other_mode() -> None:
    prepared = assert_prepared(OtherInTraining().eval(), x(3, 4))
    assert any("evaluation only" in note for note in prepared.preparation_report.notes)
    with pytest.raises(PreparationError, match=r"prepared in eval\(\) mode and is in train\(\) mode"):
        prepared.train()(x(3, 4))


class Averaged(nn.Module):
    """The same operations on other tensors in evaluation, which are equal to begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(x(3, 4))
        self.register_buffer("average", self.weight.detach().clone())

    def forward(self, x):
        return F.linear(x, self.weight if self.training else self.average)


@pytest.mark.parametrize("with_inputs", [True, False])
def test_other_tensors_in_training_are_not_taken_for_the_same(with_inputs: bool) -> None:
    prepared = prepare_model(Averaged().eval(), inputs=[x(2, 4)] if with_inputs else None)
    with pytest.raises(PreparationError, match="mode"):
        prepared.train()(x(2, 4))


def test_both_modes_are_compared() -> None:
    report = prepare_model(Modes().eval(), inputs=[x(6, 4)]).preparation_report
    assert [c.largest for c in report.compared if c.inputs.endswith("in training")] == [0.0]
