"""Parameters that a forward writes to stay the user's: in every public function, whatever is written and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.copy import Twin
from prepbench.objects.digest import state_digest
from prepbench.objects.restore import is_written
from prepbench.running.check_inputs import twin_with_own_writes
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import unchanged

IDS = [torch.arange(6).view(2, 3), torch.arange(8).view(2, 4)]


class Renormalised(nn.Module):
    """Writes in the ways that there are: by an operator of torch, in place, through ``.data``, and by assigning it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4, max_norm=1.0)
        self.table.weight.data.mul_(3)
        self.layer = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.layer.weight.mul_(0.9)
        self.scale.data.add_(1)
        self.layer.bias.data = self.layer.bias.data * 0.5
        return self.layer(self.table(ids)) * self.scale


FUNCTIONS: dict[str, Callable[[nn.Module], Any]] = {
    "recursive_trace": lambda model: pb.recursive_trace(model, inputs=IDS),
    "check_traceability": lambda model: pb.check_traceability(model, IDS),
    "prepare_model": lambda model: pb.prepare_model(model, inputs=IDS),
    "capture": lambda model: pb.capture(model, IDS, fullgraph=False),
    "fix": lambda model: pb.fix(model, IDS),
    "compare": lambda model: pb.compare({"float": model}, IDS, rounds=0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parameters_are_as_they_were(name: str) -> None:
    model = Renormalised().eval()
    before = state_digest(model)
    FUNCTIONS[name](model)
    assert state_digest(model) == before


def test_only_what_is_written_is_copied() -> None:
    model = Renormalised().eval()
    model.other = nn.Linear(2, 2)
    twin_with_own_writes(model, normalize_samples(model, IDS)[0])
    written = {name for name, parameter in model.named_parameters() if is_written(parameter)}
    assert written == {"table.weight", "layer.weight", "layer.bias", "scale"}
    twin = Twin(model).model
    for name, parameter in model.named_parameters():
        assert (twin.get_parameter(name) is parameter) == (name not in written), name


def test_runs_of_a_twin_start_with_the_same_values() -> None:
    model = Renormalised().eval()
    twin_with_own_writes(model, normalize_samples(model, IDS)[0])
    twin, expected = Twin(model).model, Renormalised().eval()
    expected.load_state_dict(model.state_dict())
    outputs = []
    for _ in range(2):
        with unchanged(twin):
            outputs.append(twin(IDS[0]).detach().clone())
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], expected(IDS[0]))


def test_tied_parameters_stay_tied_in_the_twin() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
            self.other.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.one.weight.data.mul_(0.5)
            return self.other(self.one(x))

    model = Tied()
    twin_with_own_writes(model, normalize_samples(model, [torch.ones(2, 3)])[0])
    twin = Twin(model).model
    assert twin.one.weight is twin.other.weight
    assert twin.one.weight is not model.one.weight


def test_a_written_embedding_is_captured_and_equal() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Linear(4, 2)).eval()
    model[0].weight.data.mul_(3)
    before = model[0].weight.detach().clone()
    captured = pb.capture(model, IDS, fullgraph=False)
    assert torch.equal(model[0].weight, before)
    wanted = captured.program.module()(IDS[0])
    assert torch.allclose(wanted, model(IDS[0]), atol=1e-6)
