"""Masks of one row for each new token, read as one entry for each token."""

from __future__ import annotations

import pytest
import torch

from prepbench.errors import InputError
from prepbench.generate.calls import flat_mask, flat_masks

WINDOW = 4


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
    assert torch.equal(flat_mask("mask", mask, past, new, WINDOW), expected)
    added = torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    assert torch.equal(flat_mask("mask", added, past, new, WINDOW), expected)


def test_the_mask_of_all_tokens_is_taken_where_there_are_two() -> None:
    both = {"full": rows(7, 1, 0, 16, 99, hidden=2), "near": rows(7, 1, 4, WINDOW, WINDOW), "none": None}
    found = flat_masks("mask", both, 7, 1, {"near": WINDOW, "full": 0})
    assert found is not None
    assert found.tolist() == [[0, 0, 1, 1, 1, 1, 1, 1]]
    assert flat_masks("mask", {"full": None}, 0, 1, {}) is None


def test_tokens_that_see_later_ones_are_told() -> None:
    mask = torch.ones(1, 1, 3, WINDOW, dtype=torch.bool)
    with pytest.raises(InputError, match=r"mask\['near'\]: tokens see others than those before them"):
        flat_masks("mask", {"near": mask}, 0, 3, {"near": WINDOW})
