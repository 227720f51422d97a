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
from prepbench.capture.modules.collection import recursive_trace

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


class Counts(nn.Module):
    def forward(self, x):
        return torch.histogram(x.flatten(), bins=4, range=(-4.0, 4.0)).hist


class ReturnsIterator(nn.Module):
    def forward(self, x):
        return (x * factor for factor in (1, 2))


class ReturnsTuple(nn.Module):
    def forward(self, x):
        return tuple(x * factor for factor in (1, 2))


class Solves(nn.Module):
    def forward(self, x):
        square = x.t()[:2, :2]
        return torch.linalg.lstsq(square + 9 * torch.eye(2), square).solution


class SolvesByInverse(nn.Module):
    def forward(self, x):
        square = x.t()[:2, :2]
        return torch.linalg.pinv(square + 9 * torch.eye(2)) @ square


class AsksForSize(nn.Module):
    def forward(self, x):
        if x.shape[0] > 2:
            return x * 2
        return x.flip(1)


class ChoosesBySize(nn.Module):
    def forward(self, x):
        return torch.where(torch.full((), x.shape[0]) > 2, x * 2, x.flip(1))


class LoopsOverMask(nn.Module):
    def forward(self, x):
        total = x.sum() * 0
        for value in x[x > 0]:
            total = total + value * value
        return total


class SumsWithMask(nn.Module):
    def forward(self, x):
        return torch.where(x > 0, x * x, 0).sum()


class StopsEarly(nn.Module):
    def forward(self, x):
        for _ in range(4):
            if x.abs().max() < 1:
                break
            x = x / 2
        return x


class StopsWithMask(nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = torch.where(x.abs().max() < 1, x, x / 2)
        return x


CASES = [
    (StopsEarly, StopsWithMask, "data-dependent branch", "fixed number of times"),
    (LoopsOverMask, SumsWithMask, "data-dependent branch", "whole tensor"),
    (ReturnsIterator, ReturnsTuple, "unsupported output type", "Return tensors, numbers, None, or tuples"),
    (Solves, SolvesByInverse, "data-dependent shape", "torch.linalg.pinv in place of lstsq"),
    (AsksForSize, ChoosesBySize, "shape specialisation", "choose with torch.where"),
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
        expected, got = failing()(sample), captured.program.module()(sample)
        expected = expected if isinstance(expected, torch.Tensor) else tuple(expected)
        torch.testing.assert_close(got, expected)  # dtypes, too


@pytest.mark.parametrize("failing", [Raises, Asserts, Halves])
def test_nobody_is_told_to_choose_between_results_where_there_is_one(failing: Any) -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(failing(), SAMPLES)
    assert "Compute both sides" not in caught.value.failures[0].remedy


def test_a_leaf_is_not_told_to_become_one() -> None:
    (leaf,) = pb.capture(Chooses(), SAMPLES, fullgraph=False).leaves
    assert "torch.where" in leaf.remedy
    assert "leaf" not in leaf.remedy


def test_an_operator_gets_the_fake_kernel_that_it_lacks() -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(Counts(), SAMPLES)
    (failure,) = caught.value.failures
    assert failure.kind == "missing fake kernel"
    assert "torch.library.register_fake" in failure.remedy
    with torch.library._scoped_library("aten", "FRAGMENT") as library:

        def fake(x: Any, bins: int, **_: Any) -> Any:
            return x.new_empty(bins), x.new_empty(bins + 1)

        torch.library.register_fake("aten::histogram.bin_ct", fake, lib=library)
        captured = pb.capture(Counts(), SAMPLES)
    assert captured.leaves == ()
    for sample in SAMPLES:
        assert torch.equal(captured.program.module()(sample), Counts()(sample))


def test_sizes_that_decide_are_captured_once_for_each_way() -> None:
    for samples in ([torch.randn(size, 4) for size in (3, 4)], SAMPLES[:1]):
        program = pb.capture(AsksForSize(), samples).program.module()
        assert all(torch.equal(program(sample), AsksForSize()(sample)) for sample in samples)


class WritesIntoIt(nn.Module):
    def __init__(self):
        super().__init__()
        self.choose = Chooses()  # returns its argument or not, which is for Python to decide

    def forward(self, x):
        y = self.choose(x * 1)
        y[:, 0] = 1
        return y


class MakesNewValue(WritesIntoIt):
    def forward(self, x):
        y = self.choose(x * 1)
        return torch.where(torch.arange(x.shape[1]) == 0, 1.0, y)


def test_a_new_value_in_place_of_a_write_keeps_the_leaf_small() -> None:
    (leaf,) = pb.capture(WritesIntoIt(), SAMPLES, fullgraph=False).leaves
    assert (leaf.fqn, leaf.kind) == ("", "mutation")
    assert leaf.remedy.startswith("Return a new value instead of assigning in place")
    assert [leaf.fqn for leaf in pb.capture(MakesNewValue(), SAMPLES, fullgraph=False).leaves] == ["choose"]
    for sample in SAMPLES:
        assert torch.equal(MakesNewValue()(sample), WritesIntoIt()(sample))


class AnyArguments(nn.Module):
    def forward(self, *args, **kwargs):
        return args[0] * kwargs["factor"]


class Repeats(nn.Module):
    def forward(self, x, n):
        for _ in range(int(n)):
            x = x * 2
        return x


class RepeatsWithMask(nn.Module):
    def forward(self, x, n):
        for step in range(8):
            x = torch.where(step < n, x * 2, x)
        return x


class Holder:
    def __init__(self, value):
        self.value = value


class ReturnsHolder(nn.Module):
    def forward(self, x):
        return Holder(x * 2)


@pytest.mark.parametrize("failing", [AnyArguments, ReturnsHolder])
def test_inputs_help_where_they_are_advised(failing: Any) -> None:
    (failure,) = recursive_trace(failing()).failures
    assert failure.remedy.startswith("Pass inputs=[...]")
    x = SAMPLES[0]
    inputs = [(x, {"factor": torch.tensor(3.0)})] if failing is AnyArguments else [x]
    assert not recursive_trace(failing(), inputs=inputs).failures


def test_a_number_that_decides_is_a_mask_or_one_graph_for_each_value() -> None:
    samples = [(SAMPLES[0], torch.tensor(2)), (SAMPLES[1], torch.tensor(3))]
    (failure,) = recursive_trace(Repeats(), inputs=samples).failures
    assert failure.kind == "item() / Python number from a tensor"
    assert "Trace once for each value" in failure.remedy
    assert "a mask" in failure.remedy
    for sample in samples:
        assert not recursive_trace(Repeats(), inputs=[sample]).failures
    traced = recursive_trace(RepeatsWithMask(), inputs=samples)
    assert not traced.failures
    for sample in samples:
        assert torch.equal(RepeatsWithMask()(*sample), Repeats()(*sample))


class TakesType(nn.Module):
    def forward(self, x, kind=torch.float32):
        return x.to(kind) * 2


def test_an_argument_that_no_graph_takes_is_given_by_a_function() -> None:
    with pytest.raises(FullGraphError) as caught:
        pb.capture(TakesType(), [(x, torch.float64) for x in SAMPLES])
    (failure,) = caught.value.failures
    assert failure.kind == "unsupported signature"
    assert "forward_fn=" in failure.remedy
    compiled = pb.compile_model(
        TakesType(),
        tracing_inputs=SAMPLES,
        deployment_settings=pb.EagerDeployment(),
        forward_fn=lambda model, args, kwargs: model(*args, kind=torch.float64, **kwargs),
    )
    torch.testing.assert_close(compiled(SAMPLES[0]), SAMPLES[0].double() * 2)
