"""Buffers that a first call builds are in the graph as eager calls leave them; the model itself stays without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.running.first_calls import fill_caches_
from prepbench.running.given_samples import normalize_samples
from tests.fingerprint import left_as_it_was


class Positions(nn.Module):
    """A table that is kept for later calls, and made anew for a longer input; ``made_for`` says how long it is."""

    def __init__(self, first: torch.Tensor | None) -> None:
        super().__init__()
        self.register_buffer("table", first, persistent=False)
        self.register_buffer("calls", torch.zeros(()))
        self.made_for = 0 if first is None else len(first)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if x.shape[1] > self.made_for:
            self.made_for = x.shape[1]
            self.table = torch.arange(self.made_for).float()
        assert isinstance(self.table, torch.Tensor)
        return x + self.table[: x.shape[1]]


class Registers(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(4).float(), persistent=False)
        return x[:, :4] + self.table


MODELS: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: Positions(None),
    "empty": lambda: Positions(torch.zeros(0)),
    "short": lambda: Positions(torch.arange(4.0)),
    "registered": Registers,
    "inside": lambda: nn.Sequential(nn.Linear(6, 6), Positions(None)),
}
SAMPLES = [torch.randn(2, 6), torch.randn(3, 6)]
LENGTHS = [torch.randn(2, 4), torch.randn(3, 6), torch.randn(2, 5)]


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_holds_what_calls_leave(name: str) -> None:
    model = MODELS[name]()
    with left_as_it_was(model):
        captured = pb.capture(model, SAMPLES)
        assert captured.verify().passed
        findings = [finding.message for finding in captured.findings]
    assert any("is built by the first call" in message for message in findings)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 6)
        torch.testing.assert_close(captured.program.module()(x), MODELS[name]()(x) if name != "inside" else model(x))


@pytest.mark.parametrize("name", ["none", "empty", "short"])
def test_lengths_up_to_the_longest_sample_hold(name: str) -> None:
    captured = pb.capture(MODELS[name](), LENGTHS)
    report = captured.verify()
    assert report.problems == ()
    assert {axis.path: axis.wrong for axis in report.axes} == {"x": ()}
    for length in (2, 3, 6):
        x = torch.randn(2, length)
        assert torch.equal(captured.program.module()(x), MODELS[name]()(x))
    with pytest.raises((RuntimeError, AssertionError)):
        captured.program.module()(torch.randn(2, 9))


@pytest.mark.parametrize("name", MODELS)
def test_prepared_and_compiled_models_compute_the_same(name: str) -> None:
    model = MODELS[name]()
    expected = [MODELS[name]()(x) if name != "inside" else None for x in SAMPLES]
    with left_as_it_was(model):
        prepared = pb.prepare_model(model, inputs=SAMPLES)
        compiled = pb.compile_model(model, tracing_inputs=SAMPLES)
    for x, wanted in zip(SAMPLES, expected, strict=True):
        torch.testing.assert_close(compiled(x), prepared(x))
        if wanted is not None:
            torch.testing.assert_close(compiled(x), wanted)


def test_only_the_modules_with_caches_are_changed_by_filling_them() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), Positions(None)).train()
    samples = normalize_samples(model, SAMPLES)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert fill_caches_(model, samples) == ["1.table"]
    assert model[1].made_for == 6
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    assert fill_caches_(model, samples) == []


class Anew(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", None)

    def forward(self, x: torch.Tensor) -> Any:
        self.mask = torch.ones(x.shape[1])
        return x * self.mask


def test_what_each_call_builds_anew_is_left_alone() -> None:
    model = Anew()
    assert fill_caches_(model, normalize_samples(model, LENGTHS)) == []
    assert model.mask is None
