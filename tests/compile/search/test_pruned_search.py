"""Pruning among the candidates of a search: residual layers lose the same channels, and what is found is really so."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.measure.latency import Latency
from prepbench.search import measuring
from prepbench.search.candidates import LayerChoice
from prepbench.search.mixtures import FLOAT, compile_arguments
from prepbench.search.target_job import TargetJob, empty_tables
from tests.compile.search.test_search import clocked, noted

INT8, HALF = pb.QuantizationSettings(), pb.PruningSettings(mask_type="channels", amount=0.5)
QUARTER = pb.PruningSettings(mask_type="channels", amount=0.25)
CANDIDATES = {
    "int8": INT8,
    "half": pb.PruningSettings(mask_type="channels"),
    "int8 half": (INT8, HALF),
    "int8 quarter": (INT8, QUARTER),
}
CHOICES = {
    "int8": LayerChoice(INT8),
    "half": LayerChoice(pruning=HALF),
    "int8 half": LayerChoice(INT8, HALF),
    "int8 quarter": LayerChoice(INT8, QUARTER),
}


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.short = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.short(x) + self.second(torch.relu(self.norm(self.first(x)))))


class Residual(nn.Module):
    """The channels of ``stem`` and ``one.second`` meet in an addition, and so do those of ``two.second`` and
    ``two.short``. Every other channel says little, but in ``two``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = Block(8, 8), Block(8, 16)
        self.head = nn.Linear(16, 5)
        with torch.no_grad():
            for each in (self.stem, self.one.first, self.one.second):
                for parameter in each.parameters():
                    parameter[::2] *= 0.02

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.two(self.one(torch.relu(self.stem(x)))).mean((2, 3)))


@functools.cache
def net() -> nn.Module:
    torch.manual_seed(0)
    return Residual().eval()


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(count, 3, 8, 8, generator=generator) for count in (2, 3, 2)]


def clock(candidates: Mapping[str, Any], *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
    """Times that follow from what is left of each layer and from its bits."""
    return {name: Latency((ms_of(compiled),) * rounds, "own process") for name, compiled in candidates.items()}


def ms_of(compiled: pb.CompiledModel) -> float:
    counts = {fqn: sum(p.numel() for p in net().get_submodule(fqn).parameters(recurse=False)) for fqn in LAYERS}
    left = {row.fqn: row.left for row in compiled.report.pruned} or counts
    quantized = {row.fqn for row in compiled.report.layers if row.quantized}
    return sum((0.5 if fqn in quantized else 1.0) * left[fqn] / 1000 for fqn in LAYERS)


LAYERS = ("stem", "one.first", "one.second", "two.first", "two.second", "two.short", "head")


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return noted(monkeypatch, clock)


def find(budget: pb.Budget, **more: Any) -> pb.SearchResult:
    arguments = {"targets": [pb.OnnxRuntimeDeployment()], "rounds": 2, "candidates": CANDIDATES, **more}
    return pb.search(net(), inputs(), budget=budget, **arguments)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("search") / "journal")


@pytest.fixture(scope="module")
def found(journal: str) -> pb.SearchResult:
    with pytest.MonkeyPatch.context() as patch:
        clocked(patch, clock)
        return find(pb.Budget(min_metric=20), results=journal)


def pruned_channels(layers: Mapping[str, str]) -> dict[str, pb.PruningSettings | None]:
    return {fqn: CHOICES[name].pruning if name != FLOAT else None for fqn, name in layers.items()}


def test_the_best_is_pruned_where_that_costs_little_and_quantized(found: pb.SearchResult) -> None:
    assert found.reached
    assert found.proven
    best = found.best
    assert best.metric is not None
    assert best.metric >= 20
    assert best.layers["stem"] == best.layers["one.second"] == "int8 half"
    assert best.layers["one.first"] == "int8 half"
    assert pruned_channels(best.layers)["two.second"] is None
    assert best.layers["head"] in ("int8", FLOAT), "its channels are the result"
    assert best.ms is not None
    assert found["int8"].ms is not None
    assert best.ms < 0.8 * found["int8"].ms
    assert best.predicted_ms == pytest.approx(best.ms, rel=0.1)


def test_layers_that_meet_take_the_same_channels_in_all_that_is_found(found: pb.SearchResult) -> None:
    assert len(found.candidates) > len(CANDIDATES) + 3
    for each in found.candidates:
        channels = pruned_channels(each.layers)
        assert channels["stem"] == channels["one.second"], each.name
        assert channels["two.second"] == channels["two.short"], each.name
        assert channels["head"] is None, each.name


def test_what_is_only_pruned_is_in_float(found: pb.SearchResult) -> None:
    assert found["half"].float_layers == tuple(found["half"].layers)
    assert found["int8 half"].float_layers == ()
    assert "7 of 7" in repr(found)


def test_settings_and_code_prune_and_quantize_the_best(found: pb.SearchResult) -> None:
    compiled = pb.compile_model(net(), calibration_inputs=inputs(), **found.settings)
    names: dict[str, Any] = {"model": net(), "calibration_inputs": inputs()}
    exec(found.code(), names)
    for one in (compiled, names["compiled"]):
        channels = {row.fqn: row.removed_channels / row.channels for row in one.report.pruned}
        wanted = pruned_channels(found.best.layers)
        assert channels == {fqn: 0.0 if (one_of := wanted[fqn]) is None else one_of.share for fqn in LAYERS}
        quantized = {row.fqn for row in one.report.layers if row.quantized}
        assert quantized == {fqn for fqn, name in found.best.layers.items() if name.startswith("int8")}
    assert ms_of(compiled) == pytest.approx(found.best.ms)
    x = inputs()[0]
    assert torch.allclose(compiled(x), names["compiled"](x))


def test_another_budget_and_the_front_hold_pruned_mixtures(found: pb.SearchResult, timed: list[str]) -> None:
    small = found.with_budget(pb.Budget(min_metric=20, minimize="size"))
    assert small.reached
    assert HALF in pruned_channels(small.best.layers).values()
    quiet = found.with_budget(pb.Budget(min_metric=100))
    assert set(pruned_channels(quiet.best.layers).values()) == {None}
    assert timed == []
    losses = [each.value("drop") for each in found.front]
    assert losses == sorted(losses)
    assert any(HALF in pruned_channels(each.layers).values() for each in found.front)


@pytest.mark.stress
def test_a_journal_gives_back_what_was_pruned(journal: str, found: pb.SearchResult, timed: list[str]) -> None:
    again = find(pb.Budget(min_metric=20), results=journal)
    assert set(timed) <= {"float", "mixture 2", "mixture 3"}, "what was measured is not measured again"
    assert again.best.ms is not None
    assert found.best.ms is not None
    assert again.best.ms <= found.best.ms
    measured = {tuple(each.layers.values()) for each in found.candidates if each.measured}
    assert measured <= {tuple(each.layers.values()) for each in again.candidates if each.measured}


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_of_each_layer_is_known_before_it_is_pruned(seed: int) -> None:
    job = TargetJob(pb.OnnxRuntimeDeployment(), "", simulation(), CHOICES)
    known, draw = empty_tables(job), random.Random(seed)
    taken = {fqn: draw.choice(["int8", "half", "int8 half", "int8 quarter"]) for fqn in LAYERS}
    taken |= {"one.second": taken["stem"], "two.short": taken["two.second"], "head": "int8"}
    counts = known.shrinking.counts(taken)
    predicted = {fqn: counts.get(fqn, 1.0) * known.shrinking.left.get((fqn, taken[fqn]), 1.0) for fqn in LAYERS}
    arguments = compile_arguments(net(), taken, CHOICES, pb.OnnxRuntimeDeployment(), pb.CompileOptions())
    if "pruning_settings" not in arguments:
        assert counts == {}
        return
    pruned = pb.prune(net(), inputs(), arguments["pruning_settings"], arguments["layer_pruning_settings"]).model
    for fqn in LAYERS:
        before, after = (each.get_submodule(fqn).weight.numel() for each in (net(), pruned))
        assert predicted[fqn] == pytest.approx(after / before), (fqn, taken)


@functools.cache
def simulation() -> Any:
    from prepbench.compile.simulation import Simulation

    return Simulation.of(net(), inputs(), deployment_settings=pb.OnnxRuntimeDeployment())


def test_a_layer_whose_partner_cannot_follow_is_refused_with_the_reason() -> None:
    """The bits of one of two layers that meet are not possible, and no other choice prunes it alike."""
    whole = simulation()
    limited = type(whole)(whole.source)
    refusal = limited.refusal
    limited.refusal = lambda fqn, settings: "no kernel" if fqn == "one.second" else refusal(fqn, settings)
    choices = {"int8": LayerChoice(INT8), "int8 half": LayerChoice(INT8, HALF)}
    refused = TargetJob(pb.OnnxRuntimeDeployment(), "", limited, choices).refused
    assert "one.second, which makes the same channels" in refused["stem", "int8 half"]
    assert "no kernel" in refused["stem", "int8 half"]
    assert ("stem", "int8") not in refused
    assert ("one.first", "int8 half") not in refused
    # with a choice that prunes in float, it follows
    more = {**choices, "half": LayerChoice(pruning=HALF)}
    assert ("stem", "int8 half") not in TargetJob(pb.OnnxRuntimeDeployment(), "", limited, more).refused


def test_candidates_that_no_layer_takes_or_that_are_none() -> None:
    net = nn.Linear(4, 4)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    with pytest.raises(SettingsError, match=r"no layer takes one of 'half': .*output"):
        pb.search(net, samples, budget=pb.Budget(min_metric=1), candidates={"half": HALF})
    with pytest.raises(SettingsError, match="pair of bits and pruning"):
        pb.search(net, samples, budget=pb.Budget(min_metric=1), candidates={"wrong": (HALF, INT8)})  # type: ignore[dict-item]
    with pytest.raises(SettingsError, match="name of layers that are neither"):
        pb.search(net, samples, budget=pb.Budget(min_metric=1), candidates={"float": HALF})


@pytest.mark.stress
def test_masks_are_candidates_too() -> None:
    mask = pb.PruningSettings(mask_type="1:1", amount=0.1)
    result = find(pb.Budget(minimize="drop", max_size_mb=1.0), candidates={"int8": INT8, "mask": mask})
    candidate = result["mask"]
    assert set(candidate.layers.values()) == {"mask"}
    assert candidate.metric is not None
    assert candidate.metric < 60
    assert candidate.settings["pruning_settings"] == mask
    assert any("'mask' sets weights to zero" in note for note in result.notes)


class Shared(nn.Module):
    """Two layers with one weight, whose channels meet nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 24), nn.Linear(8, 24)
        self.second.weight = self.first.weight
        self.back, self.head = nn.Linear(24, 8), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.second(self.back(torch.relu(self.first(x))))))


@pytest.mark.stress
def test_layers_that_share_a_weight_are_pruned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "measure_latency", by_size)
    torch.manual_seed(0)
    model, x = Shared().eval(), [torch.randn(4, 8), torch.randn(3, 8)]
    mask = pb.PruningSettings(mask_type="2:4")
    result = pb.search(
        model,
        x,
        budget=pb.Budget(min_metric=1),
        candidates={"int8": INT8, "int8 half": (INT8, HALF), "int8 mask": (INT8, mask)},
        targets=[pb.EagerDeployment()],
        rounds=2,
    )
    assert not any("could not be compiled" in note or "not compiled" in note for note in result.notes), result.notes
    assert result["int8 half"].layers["first"] == "int8 half"
    for each in result.candidates:
        assert each.layers["first"] == each.layers["second"], each.name


def by_size(candidates: Mapping[str, Any], *_: Any, rounds: int, **__: Any) -> dict[str, Latency]:
    """Times that follow from what is left of all layers."""
    left = {name: sum(row.left for row in each.report.pruned) or 700 for name, each in candidates.items()}
    return {name: Latency((count / 1000,) * rounds, "own process") for name, count in left.items()}
