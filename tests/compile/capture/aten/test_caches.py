"""Caches of keys and values, empty in one sample and filled in another, with a mask over all of their entries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured

Cache = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Causal attention over a cache and new tokens; the mask says which entries are no padding.

    Args:
        window: how many entries a token sees and the cache keeps; None for all.
    """

    def __init__(self, window: int | None = None) -> None:
        super().__init__()
        self.window = window
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, past: Cache, mask: torch.Tensor) -> tuple[torch.Tensor, Cache]:
        new, length = x.shape[1], past[0].shape[2]
        query, key, value = (
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        entry, place = torch.arange(length + new), length + torch.arange(new).unsqueeze(1)
        seen = entry <= place
        if self.window is not None:
            seen = seen & (entry > place - self.window)
        seen = seen & mask[:, None, None, :].bool()
        result = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        kept = slice(None) if self.window is None else slice(-self.window, None)
        return result.transpose(1, 2).flatten(2), (key[:, :, kept], value[:, :, kept])


class Layers(nn.Module):
    """Two layers with a cache each, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, x: torch.Tensor, pasts: list[Cache], mask: torch.Tensor) -> tuple[torch.Tensor, list[Cache]]:
        new = []
        for layer, past in zip(self.layers, pasts, strict=True):
            y, cache = layer(x, past, mask)
            x = x + y
            new.append(cache)
        return x, new


def sample(batch: int, new: int, length: int) -> tuple[Any, ...]:
    past = (torch.randn(batch, 2, length, 4), torch.randn(batch, 2, length, 4))
    return torch.randn(batch, new, 8), past, torch.ones(batch, length + new, dtype=torch.long)


def check(captured: Captured, model: nn.Module, arguments: tuple[Any, ...]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(captured.program.module()(*arguments), model(*arguments))


SAMPLES = {
    "prefill first": [sample(2, 5, 0), sample(2, 1, 5)],
    "decode first": [sample(1, 1, 5), sample(1, 5, 0)],
    "three": [sample(1, 5, 0), sample(2, 1, 5), sample(2, 1, 8)],
}


@pytest.mark.parametrize("name", SAMPLES)
def test_an_empty_and_a_filled_cache_are_one_graph(name: str) -> None:
    model = Attention().eval()
    captured = capture(model, SAMPLES[name])
    assert captured.leaves == ()
    batch = SAMPLES[name][0][0].shape[0]
    for new, length in ((1, 0), (3, 0), (1, 1), (1, 11), (4, 2)):
        check(captured, model, sample(batch, new, length))


def test_axes_whose_sum_is_a_third_one_hold() -> None:
    report = capture(Attention().eval(), SAMPLES["prefill first"]).verify()
    assert report.passed, report
    assert {axis.status for axis in report.axes} == {"holds"}, report


def test_a_cache_in_a_list_of_pairs() -> None:
    model = Layers().eval()
    samples = [(x, [past, past], mask) for x, past, mask in SAMPLES["prefill first"]]
    captured = capture(model, samples)
    for x, past, mask in (sample(2, 3, 0), sample(2, 1, 9)):
        check(captured, model, (x, [past, past], mask))


def test_a_cache_that_keeps_a_window() -> None:
    model = Attention(window=4).eval()
    captured = capture(model, [sample(2, 5, 0), sample(2, 1, 4), sample(2, 2, 2)])
    for new, length in ((6, 0), (1, 2), (3, 4)):
        check(captured, model, sample(2, new, length))


def test_a_length_that_the_model_asks_for_stays_a_condition() -> None:
    class AtLeastSix(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.shape[1] >= 6)
            return x + 1

    captured = capture(AtLeastSix(), [torch.randn(2, 7), torch.randn(2, 9)])
    with pytest.raises(AssertionError, match="6"):
        captured.program.module()(torch.randn(2, 4))
