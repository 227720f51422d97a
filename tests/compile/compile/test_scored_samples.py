"""What mixtures are scored on: samples from all over the data."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation, scored_on, spread_samples
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.objects.compare import Powers, powers


def test_scores_are_those_on_other_samples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    simulation = Simulation.of(model, [torch.randn(4, 8), torch.randn(3, 8)])
    others = [10 * torch.randn(4, 8) for _ in range(3)]  # beyond the ranges that calibration learned
    elsewhere = scored_on(simulation, [Sample((x,)) for x in others])
    mixture = dict.fromkeys(simulation.layers, pb.QuantizationSettings())
    total = Powers()
    for right, got in zip(map(model, others), simulation.outputs(mixture, others), strict=True):
        total += powers([right], [got])
    assert elsewhere.score(mixture).sqnr == pytest.approx(total.decibels, abs=1e-3)
    assert elsewhere.score(mixture).sqnr < simulation.score(mixture).sqnr - 3
    with pytest.raises(InputError, match="float32"):
        scored_on(simulation, [Sample((torch.ones(4, 8, dtype=torch.int64),))])


@pytest.mark.parametrize("count", [1, 5, 8, 9, 40])
def test_samples_are_taken_from_all_over(count: int) -> None:
    found = spread_samples((Sample((torch.full((2, 1), float(at)),)) for at in range(count)), rows=16)
    places = [int(sample.args[0][0, 0]) for sample in found]
    assert len(places) == min(count, 8)
    assert places == sorted(set(places))
    gaps = [after - before for before, after in itertools.pairwise([*places, count])]
    assert max(gaps) <= 2 * min(gaps[:-1], default=1) + 1
