"""``pb.sensitivity`` of models whose results are no numbers, or not only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError
from tests.system.search.test_sensitivity import CANDIDATES, INT8


class Undefined(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * torch.where(x.flatten()[0] == 3, torch.nan, 1.0)


def test_results_that_are_no_numbers_are_left_out_of_estimates(model: nn.Module, samples: list[torch.Tensor]) -> None:
    undefined = samples[0].clone()
    undefined.view(-1)[0] = 3
    net, wanted = Undefined(model).eval(), {"candidates": CANDIDATES, "exact": True}
    assert net(undefined).isnan().all()
    found = pb.sensitivity(net, [undefined, *samples], **wanted)
    for row in found.rows:
        assert row.estimated is not None
        assert row.estimated == pytest.approx(row.exact, abs=6)


class Chooses(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).argmax(-1)


def test_integers_alone_have_no_noise(model: nn.Module, samples: list[torch.Tensor]) -> None:
    net = Chooses(model).eval()
    with pytest.raises(InputError, match=r"returns no floating-point tensor.*metric="):
        pb.sensitivity(net, samples, candidates=[INT8])

    def same(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output == target).float().mean()

    data = [(x, net(x)) for x in samples]
    found = pb.sensitivity(net, samples, candidates=[INT8], data=data, metric=same, exact=1)
    assert found.in_float == 1.0
