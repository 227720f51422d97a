"""Integers with channels equalised are among the candidates where that helps, without being asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench.layer_summaries import settings_label
from prepbench.bench.searching import search_candidates
from prepbench.compile.simulation import Simulation
from prepbench.search.candidates import LayerChoice, name_of_settings
from prepbench.search.noise import EqualizableCandidates, with_equalised
from tests.compile.search.test_search import clocked

INT8 = pb.QuantizationSettings()
SCALED = pb.QuantizationSettings(cross_layer_equalization=True)


def uneven(between: nn.Module) -> nn.Module:
    """Channels between two convolutions differ by a factor of a thousand, and count alike."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(16, 32, 1), between, nn.Conv1d(32, 4, 1))
    factors = torch.logspace(-3, 0, 32)
    with torch.no_grad():
        model[0].weight *= factors.reshape(-1, 1, 1)  # type: ignore[operator]
        model[0].bias *= factors  # type: ignore[operator]
        model[2].weight /= factors.reshape(-1, 1)  # type: ignore[operator]
    return model.eval()


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 16, 3, generator=generator) for _ in range(6)]


def find(model: nn.Module, **more: Any) -> pb.SearchResult:
    given = {"budget": pb.Budget(min_metric=20), "targets": [pb.EagerDeployment()], "rounds": 2, **more}
    return pb.search(model, inputs(), **given)


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch, clock)


def clock(candidates: Any, *_: Any, rounds: int, **__: Any) -> dict[str, Any]:
    from prepbench.measure.latency import Latency

    taken = {name: sum(row.quantized for row in one.report.layers) for name, one in candidates.items()}
    return {name: Latency((2.0 - 0.5 * count,) * rounds, "own process") for name, count in taken.items()}


def test_uneven_channels_are_equalised_without_being_asked_for() -> None:
    result = find(uneven(nn.ReLU()))
    assert result.best.name == "int8 equalised"
    assert result.reached
    assert result.proven
    plain, scaled = result["int8"], result["int8 equalised"]
    assert plain.metric is not None
    assert scaled.metric is not None
    assert scaled.metric > plain.metric + 6
    assert "cross_layer_equalization=True" in result.code()
    assert {result.compiled, result.evaluations} == {3}, "no mixture of the two: they run the same kernels"


@pytest.mark.parametrize("between", [nn.Sigmoid(), nn.ELU()])
def test_nothing_is_tried_where_no_channels_can_be_scaled(between: nn.Module) -> None:
    result = find(uneven(between))
    assert "int8 equalised" not in [each.name for each in result.candidates]
    assert result.notes == ()


def test_what_gains_little_is_said_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.search.noise._QUIETER", 1e9)
    result = find(uneven(nn.ReLU()))
    assert "int8 equalised" not in [each.name for each in result.candidates]
    assert "'int8' is not tried with channels equalised, which gains less than 1 dB" in str(result.notes)


def test_what_was_asked_for_is_tried_as_it_is() -> None:
    names = [each.name for each in find(uneven(nn.ReLU()), candidates={"plain": INT8}).candidates if each.measured]
    assert "plain" in names
    assert not any("equalised" in name for name in names)


def test_only_integers_are_tried_with_equalised_channels_and_each_once() -> None:
    simulation = Simulation.of(uneven(nn.ReLU()), inputs(), deployment_settings=pb.OnnxRuntimeDeployment())
    given = {
        "mine": INT8,
        "int8, observer=mse": pb.QuantizationSettings(observer="mse"),
        "weights": pb.QuantizationSettings(prefer_weights_only_quantization=True),
    }
    offered = with_equalised(simulation, {name: LayerChoice(settings) for name, settings in given.items()})
    assert list(offered.choices) == [*given, "mine equalised", "int8 equalised, observer=mse"]
    both = {"int8": LayerChoice(INT8), "scaled": LayerChoice(SCALED)}
    assert with_equalised(simulation, both).choices == both
    assert name_of_settings(SCALED) == "int8 equalised"


def test_the_bench_searches_with_equalised_channels() -> None:
    bench = pb.Bench(uneven(nn.ReLU()), tracing_inputs=inputs(), calibration_inputs=inputs())
    bench.set_target("PyTorch eager")
    best = bench.search(pb.Budget(min_metric=20)).best
    assert best.name == "int8 equalised"
    assert "int8 equalised" in [each.name for each in bench.summary().search.found]
    bench.use_candidate(best)
    assert [settings_label(layer.settings) for layer in bench.explained] == ["int8, channels equalised"] * 2
    assert "cross_layer_equalization=True" in bench.code({"model": bench.model, "bench": bench})
    assert isinstance(search_candidates(bench.state, bench.explained), EqualizableCandidates)
