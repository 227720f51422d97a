"""A size that gives a wrong result is refused, and nothing that a sample has or that was right."""

from __future__ import annotations

import random

import pytest

from prepbench.capture.aten.trial_calls import _beyond


@pytest.mark.parametrize("seed", range(30))
def test_a_refused_size_takes_no_sample_with_it(seed: int) -> None:
    draw = random.Random(seed)
    seen = sorted(draw.sample(range(2, 40), draw.randint(1, 3)))
    tried = sorted(draw.sample([size for size in range(48) if size not in seen], 5))
    for size in tried:
        condition = _beyond((0, 0), "x.shape[0]", size, seen, tried)
        assert condition.holds([size]) is False
        assert all(condition.holds([one]) for one in seen), (condition.text, seen)
        towards = [one for one in tried if size < one < seen[0] or seen[-1] < one < size]
        assert all(condition.holds([one]) for one in towards), (condition.text, tried)
