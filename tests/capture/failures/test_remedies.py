"""What the report advises is true for the case: reason, module, the advice applied, captured."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError

SAMPLES = [torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]


class Raises(nn.Module):
    def forward(self, x):
        if x.abs().max() > 100:
            raise ValueError("too large")
        return x * 2


class RaisesInPython(nn.Module):
    def forward(self, x):
        if not torch.compiler.is_compiling() and x.abs().max() > 100:
            raise ValueError("too large")
        return x * 2


class Asserts(nn.Module):
    def forward(self, x):
        assert x.abs().max() < 100
        return x * 2


class AssertsInGraph(nn.Module):
    def forward(self, x):
        torch._assert_async(x.abs().max() < 100)
        return x * 2


class Halves(nn.Module):
    def forward(self, x):
        while x.abs().max() > 1:
            x = x / 2
        return x


class HalvesWithMask(nn.Module):
    def forward(self, x):
        for _ in range(8):
            x = torch.where(x.abs().max() > 1, x / 2, x)
        return x


class Chooses(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class ChoosesInGraph(nn.Module):
    def forward(self, x):
        return torch.where(x.sum() > 0, x, -x)


class Root(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.abs().sum())


class RootOfTensor(nn.Module):
    def forward(self, x):
        return x / x.abs().sum().sqrt()


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = {"s0": 1.0, "s1": 2.0}

    def forward(self, x):
        return x * self.scales["s" + str(int(x.sum() > 0))]


class PicksTensor(nn.Module):
    def forward(self, x):
        return x * torch.tensor([1.0, 2.0])[(x.sum() > 0).long()]


class AssignsData(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        self.fc.weight.data = self.fc.weight.data.clamp(-0.1, 0.1)
        return self.fc(x)


class CallsWithData(AssignsData):
    def forward(self, x):
        return torch.func.functional_call(self.fc, {"weight": self.fc.weight.detach().clamp(-0.1, 0.1)}, (x,))


CASES = [
    (Raises, RaisesInPython, "data-dependent branch", "is_compiling"),
    (Asserts, AssertsInGraph, "data-dependent branch", "_assert_async"),
    (Halves, HalvesWithMask, "data-dependent branch", "fixed number of times"),
    (Chooses, ChoosesInGraph, "data-dependent branch", "torch.where"),
    (Root, RootOfTensor, "item() / Python number from a tensor", "Keep the value as a tensor"),
    (Picks, PicksTensor, "item() / Python number from a tensor", "Keep the value as a tensor"),
    (AssignsData, CallsWithData, "unsupported operator", "torch.func.functional_call"),
]


@pytest.mark.parametrize(("failing", "advised", "kind", "advice"), CASES)
def test_the_advice_is_true_for_the_case(failing: Any, advised: Any, kind: str, advice: str) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(failing(), SAMPLES)
    (failure,) = caught.value.failures
    assert failure.kind == kind
    assert advice in failure.remedy
    assert "check that" not in failure.remedy
    assert pb.capture(advised(), SAMPLES).leaves == ()


@pytest.mark.parametrize("failing", [Raises, Asserts, Halves])
def test_nobody_is_told_to_choose_between_results_where_there_is_one(failing: Any) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(failing(), SAMPLES)
    assert "Compute both sides" not in caught.value.failures[0].remedy
