"""Masks of one row for each new token, read as one entry for each token."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prepbench.errors import InputError
from prepbench.generate.calls import flat_masks
from prepbench.objects.caches.transformers import Window

WINDOW = 4
NEAR = {"near": Window(WINDOW, room=WINDOW)}
BOTH = {**NEAR, "full": Window()}


def rows(past: int, new: int, first: int, entries: int, window: int, hidden: int = 0) -> torch.Tensor:
    """What new tokens see of the entries from a position on, of which the first ``hidden`` ones are padding."""
    queries, keys = past + torch.arange(new)[:, None], first + torch.arange(entries)
    return ((keys <= queries) & (keys > queries - window) & (keys >= hidden))[None, None]


@pytest.mark.parametrize(("past", "new"), [(0, 3), (0, 6), (2, 1), (2, 4), (7, 1), (7, 3)])
def test_a_window_is_read_from_its_first_position(past: int, new: int) -> None:
    first = max(past - WINDOW + 1, 0)
    entries = max(WINDOW, min(past, WINDOW - 1) + new)
    mask = rows(past, new, first, entries, WINDOW, hidden=1)
    expected = torch.ones(1, past + new, dtype=torch.long)
    expected[:, :1] = first > 0  # what no token sees any more counts as seen
    added = torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    for given in (mask, added, {"near": mask}):
        found = flat_masks("mask", given, past, new, NEAR)
        assert found is not None
        assert torch.equal(found, expected)


def test_the_mask_of_all_tokens_is_taken_where_there_are_two() -> None:
    both = {"full": rows(7, 1, 0, 16, 99, hidden=2), "near": rows(7, 1, 4, WINDOW, WINDOW), "none": None}
    found = flat_masks("mask", both, 7, 1, BOTH)
    assert found is not None
    assert found.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1]]
    assert flat_masks("mask", {"full": None}, 0, 1) is None


def test_tokens_that_see_later_ones_are_told() -> None:
    mask = torch.ones(1, 1, 3, WINDOW, dtype=torch.bool)
    with pytest.raises(InputError, match=r"mask\['near'\]: tokens see others than those before them"):
        flat_masks("mask", {"near": mask}, 0, 3, NEAR)


@pytest.mark.parametrize(
    ("mask", "windows"),
    [
        (rows(0, 6, 0, 6, 99), NEAR),  # tokens before the window
        (rows(0, 6, 0, 6, WINDOW).index_fill(3, torch.tensor([2]), 0) | rows(0, 6, 0, 6, 1), NEAR),  # a hole
        (rows(0, 6, 0, 6, 99), BOTH),  # one mask for both kinds of layers
        (rows(0, 6, 0, 6, WINDOW), BOTH),
        ({"full_attention": None, "near": rows(0, 3, 0, 3, WINDOW, hidden=1)}, NEAR),
        ({"full": rows(0, 3, 0, 3, 99), "near": rows(0, 3, 0, 3, WINDOW, hidden=1)}, BOTH),
        (rows(0, 6, 0, 6, WINDOW), {"part": Window(WINDOW, is_chunk=True)}),
        (rows(0, 3, 0, 3, 99) * 2.0, {"": Window()}),  # what is added to scores
        (rows(0, 3, 0, 3, 99)[:, :, -1:], {"": Window()}),  # a row for all
    ],
)
def test_what_one_entry_for_each_token_cannot_say_is_told(mask: Any, windows: dict[str, Window]) -> None:
    with pytest.raises(InputError, match="of one entry for each token, or none"):
        flat_masks("mask", mask, 0, 3 if isinstance(mask, dict) else mask.shape[-1], windows)


@pytest.mark.parametrize("hidden", [0, 1])
def test_chunks_begin_after_padding(hidden: int) -> None:
    places = torch.arange(6) - hidden
    mask = rows(0, 6, 0, 6, 99, hidden) & (places[:, None] // WINDOW == places // WINDOW)
    found = flat_masks("mask", mask, 0, 6, {"part": Window(WINDOW, is_chunk=True)})
    assert found is not None
    assert found.tolist() == [[0] * hidden + [1] * (6 - hidden)]


def test_a_mask_of_one_kind_suits_others_within_their_windows() -> None:
    found = flat_masks("mask", rows(0, 3, 0, 3, 99), 0, 3, BOTH)
    assert found is not None
    assert found.tolist() == [[1, 1, 1]]


def test_earlier_chunks_count_as_seen() -> None:
    mask = rows(6, 1, 3, 4, 3)  # the chunk began at 4
    part = {"part": Window(WINDOW, is_chunk=True, room=WINDOW)}
    found = flat_masks("mask", mask, 6, 1, part)
    assert found is not None
    assert found.tolist() == [[1] * 7]
