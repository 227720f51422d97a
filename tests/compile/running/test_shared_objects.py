"""A cache that several samples share is told: each call fills it for all of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.failures.findings import SHARED
from prepbench.objects.flatten import register_nodes
from prepbench.running.first_calls import filled_for_all
from prepbench.running.unchanged import own_copy

SENTENCE = (
    "inputs[0] and inputs[1] share one Held as past, and each call writes into it: both hold what the last call has "
    "left there."
)


class Held:
    """What was seen so far."""

    def __init__(self, seen: torch.Tensor) -> None:
        self.seen = seen


class Reads(nn.Module):
    """Adds what it sees to what was seen; ``grows`` says whether that is kept for later calls."""

    def __init__(self, grows: bool = True) -> None:
        super().__init__()
        self.layer, self.grows = nn.Linear(4, 4), grows

    def forward(self, x: torch.Tensor, past: Held) -> torch.Tensor:
        seen = torch.cat([past.seen, self.layer(x)], 1)
        if self.grows:
            past.seen = seen
        return seen.sum(1)


class Writes(Reads):
    """Adds the first of what it sees to what was seen, in place."""

    def forward(self, x: torch.Tensor, past: Held) -> torch.Tensor:
        past.seen += self.layer(x)[:, :1]
        return past.seen.sum(1) + x.sum(1)


class Chooses(Reads):
    """Takes another way where more was seen than is new."""

    def forward(self, x: torch.Tensor, past: Held) -> torch.Tensor:
        total = super().forward(x, past)
        return total if past.seen.shape[1] > 2 * x.shape[1] else -total


def pair(past: Held, other: Held | None = None) -> list[dict[str, Any]]:
    return [{"x": torch.randn(2, n, 4), "past": held} for n, held in ((5, past), (1, other or past))]


def shared(model: nn.Module, samples: list[dict[str, Any]]) -> list[pb.Finding]:
    return [finding for finding in pb.capture(model, samples).findings if finding.kind == SHARED]


@pytest.mark.parametrize("kind", [Reads, Writes])
def test_a_cache_of_two_samples_is_found(kind: type[nn.Module]) -> None:
    samples = pair(Held(torch.zeros(2, 1, 4)))
    (finding,) = shared(kind(), samples)
    assert finding.message == SENTENCE
    assert "copy.deepcopy" in finding.remedy
    assert samples[0]["past"].seen.shape[1] == 1, "the samples are as they were"


def test_the_remedy_makes_the_length_dynamic() -> None:
    past = Held(torch.zeros(2, 1, 4))
    samples = pair(past)
    Reads()(**copy.deepcopy(samples[0]))
    longer = copy.deepcopy(past)
    Reads()(torch.randn(2, 3, 4), longer)
    mended = pair(past, longer)
    assert not shared(Reads(), mended)
    assert pb.capture(Reads(), mended).verify().passed


def test_what_no_call_changes_may_be_shared() -> None:
    assert not shared(Reads(grows=False), pair(Held(torch.zeros(2, 3, 4))))


def test_a_capture_that_fails_tells_it() -> None:
    with pytest.raises(FullGraphError, match="share one Held as past"):
        pb.capture(Chooses(), pair(Held(torch.zeros(2, 4, 4))))


def test_the_model_runs_once_for_an_object_that_many_share(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[pb.Sample] = []

    def copied(sample: pb.Sample) -> pb.Sample:
        runs.append(sample)
        return own_copy(sample)

    monkeypatch.setattr("prepbench.running.first_calls.own_copy", copied)
    past = Held(torch.zeros(2, 3, 4))
    samples = [pb.Sample((), {"x": torch.randn(2, 1, 4), "past": past}, index) for index in range(8)]
    register_nodes([(sample.args, sample.kwargs) for sample in samples])
    assert filled_for_all(Reads(grows=False), samples) == ""
    assert len(runs) == 1
