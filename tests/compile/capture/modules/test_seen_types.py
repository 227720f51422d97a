"""What a model's code finds out about types is what it finds where the model runs for real."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from numbers import Integral
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import EXACT, difference

X = torch.arange(8.0).reshape(2, 4)
SAMPLES = [(X, torch.tensor(3)), (torch.ones(3, 4), torch.tensor(5))]


def is_plain(x: torch.Tensor) -> bool:
    return type(x) is torch.Tensor


ASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], bool]] = {
    "a tensor, in a function": lambda x, n: is_plain(x),
    "a size": lambda x, n: isinstance(x.shape[0], int),
    "a size, by its type": lambda x, n: type(x.shape[0]) is int and type(x.shape[0] / 2) is float,
    "a size, of several": lambda x, n: isinstance(x.shape[0], str | Integral) and isinstance(x.shape[0], (int, str)),
    "a size, still symbolic": lambda x, n: isinstance(x.shape[0], torch.SymInt | int),
    "no size": lambda x, n: not isinstance(x.shape[0], float | str) and not isinstance(x, int),
    "a number": lambda x, n: isinstance(n.item(), int),
    "a number, by its type": lambda x, n: type(n.item()) is int,
    "a number, inside": lambda x, n: all(isinstance(part, int) for part in (n.item(), x.shape[0])),
}


class Asks(nn.Module):
    """Its way follows from what a function says about types."""

    def __init__(self, asked: Callable[..., bool]) -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        return x * 2 if self.asked(x, n) else x - 7


@pytest.mark.parametrize("asked", ASKED)
def test_types_are_those_of_the_model_that_runs_for_real(asked: str) -> None:
    model = Asks(ASKED[asked])
    assert torch.equal(model(*SAMPLES[0]), X * 2)
    collection = pb.recursive_trace(model, inputs=SAMPLES)
    assert (collection.failures, collection.findings) == ((), ())
    for sample in SAMPLES:
        assert difference(model(*sample), collection.graph_module()(*sample), EXACT).equal
    assert difference(model(*SAMPLES[1]), pb.prepare_model(model, inputs=SAMPLES)(*SAMPLES[1]), EXACT).equal


def test_the_names_are_pythons_own_again_afterwards() -> None:
    pb.recursive_trace(Asks(ASKED["a size"]), inputs=SAMPLES)
    assert {"isinstance", "type"}.isdisjoint(globals())
    assert isinstance is builtins.isinstance
