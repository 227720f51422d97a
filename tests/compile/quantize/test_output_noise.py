"""What each layer does to the outputs: estimated from gradients, and simulated one layer at a time."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.quantize import Observed, Placement, Statistics, WeightScheme, calibrate, insert_observers
from prepbench.quantize.decide import FloorSearch
from prepbench.quantize.floors import Floors
from prepbench.quantize.input_hessians import fitting_schemes
from prepbench.quantize.layer_noise import measure_layers
from prepbench.quantize.observed import set_mode
from prepbench.quantize.output_noise import OutputNoise, estimate_output_noise
from prepbench.running.given_samples import normalize_samples
from prepbench.settings import QuantizationSettings, explain_settings
from tests.compile.quantize.conftest import export

ROWS = 40


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.faint, self.head = nn.Conv2d(8, 8, 1), nn.Linear(8, 5)
        self.faint.weight.data *= 1e-3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = (x + self.two(self.one(x).relu())).relu()
        return self.head((x + self.faint(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(ROWS, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, ROWS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.table(ids)))


def mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for width in (32, 8, 32, 8, 32):
        layers += [nn.LazyLinear(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.LazyLinear(4))


def observed(model: nn.Module, x: torch.Tensor, **settings: Any) -> tuple[Observed, Any]:
    model.eval()(x)
    samples = normalize_samples(model, [x])
    placement = Placement(conv_outputs=True, additions=True)
    explained = explain_settings(model, QuantizationSettings(**settings), None)
    found = calibrate(insert_observers(export(model, x), model, explained, placement), samples)
    set_mode(found.graph, "pass")
    return found, samples


def estimated(found: Observed, samples: Any, measured: Any, **options: Any) -> OutputNoise:
    schemes = {fqn: fitting_schemes(found.plan, fqn)[0] for fqn in found.plan.nodes}
    return estimate_output_noise(found.graph, found.plan, schemes, samples, measured.outputs, **options)


def both(model: nn.Module, x: torch.Tensor, **settings: Any) -> tuple[OutputNoise, dict[str, float], dict[str, float]]:
    """The estimate, and the noise of each layer alone: estimated and simulated."""
    found, samples = observed(model, x, **settings)
    schemes = {fqn: fitting_schemes(found.plan, fqn)[0] for fqn in found.plan.nodes}
    measured = measure_layers(found.graph, found.plan, schemes, samples, lambda _: None)
    noise = estimated(found, samples, measured)
    search = FloorSearch(
        copy.deepcopy(found.graph), found.plan, found.options, Floors(found.options), measured, samples
    )
    alone = [{fqn: each[0]} for fqn, each in schemes.items()]
    names = list(schemes)
    return (
        noise,
        dict(zip(names, map(noise.total, alone), strict=True)),
        {fqn: 10 ** (-search.score(one).sqnr / 10) for fqn, one in zip(names, alone, strict=True)},
    )


def rank_correlation(one: dict[str, float], other: dict[str, float]) -> float:
    ranks = [torch.tensor([each[fqn] for fqn in one]).argsort().argsort().double() for each in (one, other)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (mlp, torch.randn(64, 16, generator=torch.Generator().manual_seed(1))),
        (Residual, torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))),
        (Attention, torch.arange(80).view(16, 5) % ROWS),
    ],
    ids=["mlp", "residual", "attention"],
)
def test_the_estimate_is_what_simulating_one_layer_gives(model: Any, x: torch.Tensor) -> None:
    torch.manual_seed(0)
    _, estimate, exact = both(model(), x)
    assert len(estimate) > 4
    assert rank_correlation(estimate, exact) >= 0.8
    for fqn in estimate:
        assert estimate[fqn] == pytest.approx(exact[fqn], rel=1.5), fqn
        assert exact[fqn] < 4 * estimate[fqn]


def test_the_divergence_of_predictions_is_estimated_in_nats() -> None:
    torch.manual_seed(0)
    x = torch.arange(80).view(16, 5) % ROWS
    found, samples = observed(Attention(), x, weights_num_bits=4, weights_algorithm="nearest")
    schemes = {fqn: fitting_schemes(found.plan, fqn)[0] for fqn in found.plan.nodes}
    measured = measure_layers(found.graph, found.plan, schemes, samples, lambda _: None)
    noise = estimated(found, samples, measured, logits=(0,))
    assert noise.in_nats
    every = {fqn: each[0] for fqn, each in schemes.items()}
    search = FloorSearch(found.graph, found.plan, found.options, Floors(found.options), measured, samples)
    divergence = search.score(every).divergence
    assert divergence is not None
    assert divergence / 3 < noise.total(every) < divergence * 3


def test_where_no_gradient_leads_the_own_noise_of_a_layer_is_taken() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Linear(16, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.behind(x_cut(self.before(x)))

    noise, _, _ = both(Cut(), torch.randn(8, 16))
    assert all(math.isfinite(value) and value > 0 for each in noise.weights.values() for value in each.values())


@torch.library.custom_op("prepbench::cut_of_a_test", mutates_args=())
def x_cut(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


x_cut.register_fake(torch.empty_like)


def test_recurrent_layers_let_gradients_through() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.lstm, self.head = nn.Linear(6, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.before(x))[0])

    noise, _, _ = both(Tagger(), torch.randn(8, 5, 6))
    assert noise.weights.keys() >= {"before", "head"}


def test_what_was_estimated_is_kept_and_the_same_again() -> None:
    torch.manual_seed(0)
    found, samples = observed(Residual(), torch.randn(8, 3, 8, 8))
    schemes: dict[str, list[WeightScheme]] = {fqn: fitting_schemes(found.plan, fqn)[0] for fqn in found.plan.nodes}
    measured = measure_layers(found.graph, found.plan, schemes, samples, lambda _: None)
    statistics = Statistics()
    first = estimated(found, samples, measured, statistics=statistics)
    assert estimated(found, samples, measured) == first
    assert statistics.effects
    assert estimated(found, [], measured, statistics=statistics) == first  # runs no sample
    assert first.total({}) == 0
