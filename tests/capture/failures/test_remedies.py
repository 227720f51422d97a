"""What the report advises is true for the case: reason, module, the advice applied, captured."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
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


class Interpolates(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.interp(x.detach().numpy(), [-9.0, 9.0], [0.0, 9.0]))


class InterpolatesInTorch(nn.Module):
    def forward(self, x):
        return (x.double() + 9) / 2


class CopiesLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return copy.deepcopy(self.fc)(x)


class CallsLayer(CopiesLayer):
    def forward(self, x):
        return torch.func.functional_call(self.fc, dict(self.fc.named_parameters()), (x,))


class LooksFor(nn.Module):
    def forward(self, x):
        return x if 3 in x.long() else -x


class ComparesWith(nn.Module):
    def forward(self, x):
        return torch.where((x.long() == 3).any(), x, -x)


class GoesOverRows(nn.Module):
    def forward(self, x):
        return torch.stack([row.cumsum(0) * 2 for row in x])


class MapsRows(nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row.cumsum(0) * 2)(x)


CASES = [
    (Interpolates, InterpolatesInTorch, "numpy call", "float64"),
    (CopiesLayer, CallsLayer, "unsupported operator", "torch.func.functional_call"),
    (LooksFor, ComparesWith, "data-dependent branch", "torch.where"),
    (GoesOverRows, MapsRows, "shape specialisation", "torch.vmap"),
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
    torch.manual_seed(0)
    captured = pb.capture(advised(), SAMPLES)
    assert captured.leaves == ()
    for sample in SAMPLES:
        torch.manual_seed(0)
        expected = failing()(sample)
        assert expected.dtype == captured.program.module()(sample).dtype
        torch.testing.assert_close(captured.program.module()(sample), expected)


@pytest.mark.parametrize("failing", [Raises, Asserts, Halves])
def test_nobody_is_told_to_choose_between_results_where_there_is_one(failing: Any) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(failing(), SAMPLES)
    assert "Compute both sides" not in caught.value.failures[0].remedy


def test_a_leaf_is_not_told_to_become_one() -> None:
    (leaf,) = pb.capture(Chooses(), SAMPLES, fullgraph=False).leaves
    assert "torch.where" in leaf.remedy
    assert "leaf" not in leaf.remedy
