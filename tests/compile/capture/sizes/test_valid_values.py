"""Samples of other sizes: indices, offsets, lengths, masks and sorted values stay valid."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.sizes.resizing import valid_values, with_sizes
from prepbench.running.given_samples import normalize_samples
from prepbench.running.unchanged import repeated_outcome

T = torch.tensor


def made(samples: list[dict[str, Any]], sizes: dict[tuple[str, int], int]) -> dict[str, Any]:
    """The first sample with other sizes."""

    def function(**kwargs: Any) -> None: ...

    rows = normalize_samples(function, samples)
    return dict(with_sizes(function, rows[0], sizes, rows).kwargs)


@pytest.mark.parametrize(
    ("seen", "size", "expected"),
    [
        ([[4, 4, 4]], 5, [4, 4, 4, 4, 4]),
        ([[2, 3, 4], [5, 6]], 5, [2, 3, 4, 5, 6]),
        ([[8, 6, 4]], 4, [10, 8, 6, 4]),
        ([[2, 0, 1], [1, 0]], 5, [2, 0, 1, 3, 4]),
        ([[2, 0, 1], [1, 0]], 2, [0, 1]),
        ([[0, 0, 3], [0, 1, 1]], 5, [0, 0, 0, 0, 3]),
        ([[9, 7, 7]], 5, [9, 9, 7, 7, 7]),
        ([[1, 5, 6]], 5, [1, 5, 6, 7, 8]),
        ([[7, 5, 1]], 4, [8, 7, 5, 1]),
        ([[5, 1, 7]], 5, [5, 1, 7, 5, 1]),
        ([[0.0, 0.5, 2.0]], 5, [0.0, 0.25, 0.5, 1.25, 2.0]),
        ([[0.0, 0.5, 1.0], [0.0, 0.5]], 4, [0.0, 0.5, 1.0, 1.5]),
        ([[True, True, False], [True, False, False]], 5, [True, True, True, True, False]),
        ([[1, 1, 0, 0]], 6, [1, 1, 1, 1, 0, 0]),
        ([[3], [0, 2, 5]], 3, [3, 4, 5]),
    ],
)
def test_one_input_keeps_what_holds_in_all_samples(seen: list[list[Any]], size: int, expected: list[Any]) -> None:
    assert made([{"x": T(row)} for row in seen], {("x", 0): size})["x"].tolist() == expected


def test_offsets_stay_sorted_and_within_the_values() -> None:
    samples = [
        {"ids": torch.arange(6) % 4, "offsets": T([0, 2, 5])},
        {"ids": torch.arange(9) % 4, "offsets": T([0, 0, 4, 7])},
    ]
    assert made(samples, {("offsets", 0): 5})["offsets"].tolist() == [0, 0, 2, 2, 5]
    assert made(samples, {("ids", 0): 3})["offsets"].tolist() == [0, 2, 2]
    assert made(samples, {("ids", 0): 8})["offsets"].tolist() == [0, 2, 5]


def test_ends_of_packed_sequences_are_the_number_of_values() -> None:
    samples = [{"x": torch.rand(7, 2), "ends": T([0, 3, 7])}, {"x": torch.rand(9, 2), "ends": T([0, 1, 2, 9])}]
    assert made(samples, {("x", 0): 8})["ends"].tolist() == [0, 3, 8]
    assert made(samples, {("ends", 0): 2})["ends"].tolist() == [0, 7]
    longer = made(samples, {("x", 0): 12, ("ends", 0): 5})["ends"].tolist()
    assert longer[0] == 0
    assert longer[-1] == 12
    assert sorted(set(longer)) == longer
    assert made(samples[:1], {("x", 0): 5})["ends"].tolist() == [0, 3, 5]


def test_lengths_stay_within_the_length_and_add_up() -> None:
    padded = [{"x": torch.rand(3, 6), "lengths": T([6, 4, 2])}, {"x": torch.rand(2, 5), "lengths": T([5, 1])}]
    assert made(padded, {("x", 1): 4})["lengths"].tolist() == [4, 4, 2]
    assert made(padded, {("x", 1): 8})["lengths"].tolist() == [8, 4, 2]
    assert made(padded, {("x", 0): 4, ("lengths", 0): 4})["lengths"].tolist() == [6, 4, 3, 2]
    joined = [{"x": torch.rand(7), "parts": T([2, 4, 1])}, {"x": torch.rand(5), "parts": T([3, 2])}]
    for size, count in ((9, 3), (5, 3), (7, 2), (8, 5)):
        parts = made(joined, {("x", 0): size, ("parts", 0): count})["parts"].tolist()
        assert (sum(parts), len(parts), min(parts) >= 0) == (size, count, True)


def test_indices_stay_below_the_rows_that_they_name() -> None:
    graphs = [
        {"nodes": torch.rand(5, 3), "edges": T([[0, 4, 2, 1], [3, 1, 0, 4]])},
        {"nodes": torch.rand(4, 3), "edges": T([[3, 2, 0], [1, 1, 3]])},
    ]
    fewer = made(graphs, {("nodes", 0): 3})["edges"]
    assert 0 <= int(fewer.min()) <= int(fewer.max()) < 3
    more = made(graphs, {("nodes", 0): 3, ("edges", 1): 6})["edges"]
    assert more.shape == (2, 6)
    assert int(more.max()) < 3


@pytest.mark.parametrize("lower", [True, False])
def test_a_triangle_is_one_of_the_new_size(lower: bool) -> None:
    def mask(size: int) -> torch.Tensor:
        ones = torch.ones(1, 1, size, size, dtype=torch.bool)
        half = ones.tril() if lower else ones.triu()
        return torch.zeros(1, 1, size, size).masked_fill(~half, float("-inf"))

    found = made([{"mask": mask(4)}, {"mask": mask(6)}], {("mask", 2): 5, ("mask", 3): 5})["mask"]
    assert torch.equal(found, mask(5))


def test_the_order_of_dims_in_memory_stays() -> None:
    positions = torch.arange(6).expand(2, 6).t().contiguous().t()
    found = made([{"x": positions}], {("x", 1): 8})["x"]
    assert found.tolist() == [[*range(8)]] * 2
    assert found.stride(0) < found.stride(1)


def test_what_is_not_a_plain_tensor_is_left_alone() -> None:
    values = [T([1.0, 2.0]).to_sparse(), "text", torch.ones(2, device="meta"), 3]
    assert valid_values(values, values, [values]) == values


class Bags(nn.Module):
    """Sums the rows of each bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(10, 4, mode="sum")

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.bags(ids, offsets)


def test_bags_of_values_are_judged_at_other_sizes() -> None:
    samples = [(torch.arange(7), T([0, 2, 5])), (torch.arange(9), T([0, 3, 4, 8]))]
    report = pb.capture(Bags(), samples).verify()
    assert report.passed, report
    assert {axis.status for axis in report.axes} == {"holds"}


class ReadsTheClock(nn.Module):
    """Returns something else in each call, as one that reads unwritten memory, where there are neither 4 nor 6 rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] in (4, 6) else x + time.perf_counter_ns() % 1_000_003


def test_what_the_model_does_not_repeat_is_no_judge() -> None:
    model = ReadsTheClock()
    judged = [normalize_samples(model, [torch.rand(rows, 3)])[0] for rows in (4, 5)]
    assert repeated_outcome(model, judged[0], model) is not None
    assert repeated_outcome(model, judged[1], model) is None
