"""Random numbers go on as before a block, and what others do with the generators meanwhile stays."""

from __future__ import annotations

import random

import numpy as np
import torch

from prepbench.running.random_numbers import numbers_kept


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
