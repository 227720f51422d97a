"""Conditions on one size are said as the sizes that meet them, however the model computes them."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

import prepbench as pb
from prepbench.capture.sizes.conditions import condition_in_words
from prepbench.errors import InputError

_S = sympy.Symbol("s", integer=True, positive=True)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (sympy.Eq(FloorDiv(_S + FloorDiv(_S + 3, 4) - 1, FloorDiv(_S + 3, 4)), 4), "is 4, 7, 8 or at least 10"),
        (sympy.Eq(_S - 2 * FloorDiv(_S + 3, 4), 1), "is 3 or 5"),
        (sympy.Ne(FloorDiv(_S - 1, 2) + 1, 1), "is at least 3"),
        (sympy.Ne(FloorDiv(_S, 3), 2), "is at most 5 or at least 9"),
        (sympy.Eq(FloorDiv(_S, 4), 2), "is 8 to 11"),
        (sympy.Ne(FloorDiv(2 * _S, 2), 7), "is not 7"),
        (sympy.Ge(_S, 5), "is at least 5"),
        (sympy.Gt(sympy.Min(9, _S), 1), "is at least 2"),
        (sympy.Eq(sympy.Mod(_S, 4), 0), "must be a multiple of 4"),
    ],
)
def test_one_size(condition: Any, words: str) -> None:
    assert condition_in_words(condition, {_S: "n"}) == f"n {words}"


class Quarters(torch.nn.Module):
    """The quarters of a batch in reverse order; torch makes fewer than four of a small one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat(x.chunk(4)[::-1])


def test_a_refused_call_is_told_the_sizes() -> None:
    model = Quarters()
    compiled = pb.compile_model(
        model, tracing_inputs=[torch.randn(11, 3), torch.randn(14, 3)], deployment_settings=pb.EagerDeployment()
    )
    refused = {}
    for size in range(2, 20):
        x = torch.randn(size, 3)
        found = _answer(compiled, x)
        if isinstance(found, str):
            refused[size] = found
        else:
            torch.testing.assert_close(found, model(x))
    assert refused.keys() >= {2, 3, 5, 6, 9}
    assert not refused.keys() & {7, 8, *range(10, 20)}
    for text in refused.values():
        assert "//" not in text
        assert re.search(r"must be (at least \d|\d, )", text)


def _answer(compiled: pb.CompiledModel, x: torch.Tensor) -> torch.Tensor | str:
    """What the model gives, or why it refuses the call."""
    try:
        return compiled(x)
    except InputError as error:
        return str(error)
