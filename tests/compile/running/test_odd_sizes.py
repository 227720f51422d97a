"""Errors that name the sizes of a sample that do not fit each other."""

from __future__ import annotations

import pytest
import torch

import prepbench as pb
from prepbench.errors import CaptureError


class Cache:
    def __init__(self, batch: int, past: int) -> None:
        self.keys = torch.ones(batch, past, 4)


class Attend(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        keys = torch.cat([cache.keys, x], 1)
        return (x @ keys.transpose(1, 2)) * mask[:, None]


def sample(batch: int, past: int, new: int, *, cached: int = 0, masked: int = 0) -> tuple[object, ...]:
    mask = torch.ones(batch, masked or past + new)
    return torch.ones(batch, new, 4), mask, Cache(cached or batch, past)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (sample(4, 5, 3, cached=2), r"cache\.keys\.shape\[0\] is 2 and x\.shape\[0\] is 4; in all other samples"),
        (sample(4, 5, 3, masked=7), r"mask\.shape\[1\] is 7, .* in all other samples the first is the sum"),
    ],
)
def test_a_sample_that_does_not_fit_itself_is_told_by_its_paths(wrong: object, expected: str) -> None:
    with pytest.raises(CaptureError, match=rf"itself raises on inputs\[1\].* There .*{expected}"):
        pb.capture(Attend(), [sample(2, 6, 2), wrong, sample(3, 4, 1)])


def test_one_other_sample_may_agree_by_chance() -> None:
    with pytest.raises(CaptureError) as raised:
        pb.capture(Attend(), [sample(2, 4, 2, masked=6), sample(3, 5, 3, masked=7)])
    assert "There" not in str(raised.value)


class Tables(torch.nn.Module):
    """Takes sizes that do not fit, as models do that cut or repeat their masks, and asks about them."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cache: Cache) -> torch.Tensor:
        keys = torch.cat([cache.keys, x], 1)
        if mask.shape[1] < keys.shape[1]:
            mask = torch.nn.functional.pad(mask, (0, keys.shape[1] - mask.shape[1]))
        return (x @ keys.transpose(1, 2)) * mask[:, None]


def test_where_sizes_decide_the_sample_that_is_unlike_the_others_is_told() -> None:
    with pytest.raises(pb.errors.CaptureError) as raised:
        pb.capture(Tables(), [sample(2, 6, 2), sample(4, 5, 3, masked=7), sample(3, 4, 1)])
    assert "In inputs[1], mask.shape[1] is 7, " in str(raised.value)


def test_a_call_that_fails_is_told_by_its_sizes() -> None:
    given = [sample(2, 6, 2), sample(4, 5, 3), sample(3, 4, 1)]
    compiled = pb.compile_model(Attend(), tracing_inputs=given, deployment_settings=pb.OnnxRuntimeDeployment())
    with pytest.raises(pb.errors.InputError, match=r"fails on this call: mask\.shape\[1\] is 7, .* the sum of"):
        compiled(*sample(4, 5, 3, masked=7))
    with pytest.raises(pb.errors.InputError, match=r"the batch size of cache\.keys .* must equal the batch size of x "):
        compiled(*sample(4, 5, 3, cached=3))
