"""Random numbers go on as before a block, and what others do with the generators meanwhile stays."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch

import prepbench as pb
from prepbench.measure import scores
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import numbers_kept


def draw() -> list[float]:
    return [torch.rand(1).item(), float(np.random.rand()), random.random()]


def test_numbers_go_on_as_before() -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = draw()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    with numbers_kept():
        draw()
    assert draw() == expected


def test_blocks_of_one_seed_draw_the_same() -> None:
    torch.manual_seed(1)
    expected, found = torch.rand(1), []
    torch.manual_seed(1)
    for _ in range(2):
        with numbers_kept(seed=5):
            found.append(torch.rand(3).tolist())
    assert found[0] == found[1]
    assert torch.equal(torch.rand(1), expected)


def test_a_generator_that_was_seeded_meanwhile_keeps_its_seed() -> None:
    with numbers_kept():
        torch.manual_seed(12)
        expected = torch.rand(2, generator=torch.Generator().manual_seed(12))
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("drawn", [0, 1, 5000])
def test_the_seed_that_it_had_already_is_kept_too(drawn: int) -> None:
    """As of another thread that seeds with 0 before each of its draws."""
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = draw()
    torch.rand(drawn), np.random.rand(drawn), [random.random() for _ in range(drawn)]
    with numbers_kept():
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
    assert draw() == expected


@pytest.mark.parametrize("drawn", [1, 5000])
def test_many_numbers_are_put_back(drawn: int) -> None:
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    torch.rand(700), np.random.rand(700), [random.random() for _ in range(700)]
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    with numbers_kept():
        torch.rand(drawn), np.random.rand(drawn), [random.random() for _ in range(drawn)]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


def test_a_frame_that_dynamo_traces_leaves_a_seed_alone() -> None:
    torch.rand(1)
    seeds = [torch.initial_seed()]

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        torch.manual_seed(seeds[0])  # as another thread might
        return graph

    expected = torch.rand(3, generator=torch.Generator().manual_seed(seeds[0]))
    with tracing():
        torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.ones(3))
    assert torch.equal(torch.rand(3), expected)


def test_candidates_that_draw_nothing_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noisy(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.rand_like(x)

    seeds: list[int | None] = []
    data, model = [torch.ones(2, 3)] * 3, torch.nn.Linear(3, 2)

    def noted(*, seed: int | None) -> AbstractContextManager[None]:
        seeds.append(seed)
        return numbers_kept(seed=seed)

    monkeypatch.setattr(scores, "numbers_kept", noted)
    pb.compare({"one": model, "other": model}, data, rounds=0)
    assert set(seeds) == {None}
    found = pb.compare({"one": Noisy(), "other": Noisy()}, data, rounds=0)
    assert found.rows[1].metric == float("inf"), "both drew the same numbers"
    assert {0, 1, 2} <= set(seeds)
