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
    texts = {axis.path: axis.places for axis in bench.summary().axes}
    assert texts == {"x": 1, "cache[*][*]": 5, "cache[1][0]": 1}
    assert bench.code({}).count("axes.set(") == 5  # no pattern means five of six


class Hybrid(torch.nn.Module):
    """Every second layer has another number of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, past: list[dict[str, torch.Tensor]]) -> Any:
        return self.fc(x) + sum(part["key"].mean((1, 2)) + part["value"].mean((1, 2)) for part in past)


def hybrid(heads: tuple[int, ...]) -> pb.Bench:
    def sample(batch: int) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
        return torch.ones(batch, 4), [
            {name: torch.ones(batch, count, 5, 4) for name in ("key", "value")} for count in heads
        ]

    return pb.Bench(Hybrid().eval(), tracing_inputs=[sample(2), sample(3)])


def test_keys_and_values_are_one_line_with_one_switch() -> None:
    bench = hybrid((2, 2, 2))
    rows = [axis for axis in bench.summary().axes if axis.path != "x"]
    assert [(axis.path, axis.dim, axis.places, axis.paths) for axis in rows] == [
        ("past.*", dim, 6, ("past.*",)) for dim in range(4)
    ]
    assert rows[0].linked == ("x dim 0",)
    bench.set_axis(rows[2].paths, 2, True)
    assert sum(axis.dynamic for axis in bench.axes.axes if axis.dim == 2) == 6
    assert "axes = axes.set('past.*', 2, True)\n" in bench.code({})
    bench.limit_axis(rows[2].paths, 2, 1, 64)
    assert "axes = axes.limit('past.*', 2, min=1, max=64)\n" in bench.code({})


def test_layers_of_two_kinds_are_two_lines() -> None:
    bench = hybrid((2, 1, 2, 1, 2))
    rows = [axis for axis in bench.summary().axes if axis.dim == 2]
    assert [(axis.path, axis.places, len(axis.paths)) for axis in rows] == [
        ("past[0].*, past[2].* and 1 more", 6, 3),
        ("past[1].*, past[3].*", 4, 2),
    ]
    bench.set_axis(rows[0].paths, 2, True)
    assert [axis.dynamic for axis in bench.axes.axes if axis.dim == 2] == [*[True, True, False, False] * 2, True, True]
    cell = {"model": bench.model, "samples": bench.inputs.arguments["tracing_inputs"]}
    exec(bench.code(cell).partition("compiled =")[0], cell)
    assert cell["axes"] == bench.axes
