"""Inputs that are alike are one row on the bench, and one line in its code."""

from __future__ import annotations

from typing import Any

import torch

import prepbench as pb


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, cache: list[list[torch.Tensor]]) -> Any:
        x = self.fc(x)
        return x + sum(keys.mean((1, 2)) + values.mean((1, 2)) for keys, values in cache)


def test_a_cache_is_one_row_and_one_line() -> None:
    def sample(batch: int) -> tuple[torch.Tensor, list[list[torch.Tensor]]]:
        return torch.ones(batch, 4), [[torch.ones(batch, 2, 5, 4), torch.ones(batch, 2, 5, 4)] for _ in range(3)]

    bench = pb.Bench(Cached().eval(), tracing_inputs=[sample(2), sample(3)])
    rows = [(axis.path, axis.dim, axis.dynamic, axis.places) for axis in bench.summary().axes]
    assert rows == [
        ("x", 0, True, 1),
        ("x", 1, False, 1),
        *(("cache[*][*]", dim, dim == 0, 6) for dim in range(4)),
    ]
    bench.set_axis("cache[*][*]", 2, True)
    assert [axis.dynamic for axis in bench.axes.axes if axis.dim == 2] == [True] * 6
    assert "axes = axes.set('cache[*][*]', 2, True)\n" in bench.code({})
    assert bench.code({}).count("axes.set(") == 1
    bench.set_axis("cache[1][0]", 2, False)
    assert len({axis.path for axis in bench.summary().axes}) == 7
    assert bench.code({}).count("axes.set(") == 5
