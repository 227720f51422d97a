"""Branches on tensor values become torch.where: the diff, and its check on both sides of every condition."""

from __future__ import annotations

import dataclasses
import linecache
import traceback
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.fixes import CannotRewrite
from prepbench.fixes.function_source import PROBE, FunctionSource, Place
from prepbench.fixes.instrumented_runs import run_with
from prepbench.fixes.kinds.branch_to_where import BRANCH_TO_WHERE
from prepbench.inputs import normalize_samples
from prepbench.running.equality import REWRITTEN, difference

_GENERATOR = torch.Generator().manual_seed(0)
SAMPLES = [torch.randn(size, 10, generator=_GENERATOR) for size in (2, 3)]


class Returns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 10)

    def forward(self, x):
        # stays where it is
        if x.sum() > 0:
            return self.linear(x)
        return torch.zeros(10)


class Early(nn.Module):
    def forward(self, x):
        if x.min() > 0:
            a = x + 1
            return a, a.sum()
        b = x.shape[0]
        a = x - b
        return a * 2, a.mean()


class Chain(nn.Module):
    def forward(self, x):
        s = x.mean()
        if s > 0.5 and not (x.max().item() > 9):
            y = x * 2
            x = y + 1
        elif s < -0.5:
            x = -x
        return {"out": x, "mean": s}


class Conditional(nn.Module):
    def forward(self, x, scale=2.0):
        z = x if bool(x.sum() > 0) else x.abs() * scale
        if -1.0 < z.mean() < 5.0:
            z += 1
        if x.shape[0] > 100:  # no tensor: stays
            z = z * 0
        return z


class Nested(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            if x.max() > 3:
                return x / 3
            return x
        return -x


class Numbers(nn.Module):
    def forward(self, x, condition=1.0):
        y = x * condition
        if int(x.mean()) > 0 or int(x.abs().max()):
            y = y + 1
            x = y * 2
        if bool(x.sum()) > 0:
            y = y - 2
        return x, y * condition


class TwoConditions(nn.Module):
    """Inside one side that returns there is another branch, which needs a condition of its own."""

    def forward(self, x):
        if x.sum() > 0:
            z = x + 1
            if x.max() > 3:
                y = x * 2
                z = z * 3
            else:
                y = x * 4
            return y + z
        return -x


class Never(nn.Module):
    """The first part of the condition is true on some inputs, and the whole never is."""

    def forward(self, x):
        if x.sum() > 0 and x.sum() < 0:
            return x + 1
        return x


class Inside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.again = nn.Linear(10, 10), Returns(), Returns()

    def forward(self, x):
        return self.again(self.gate(self.first(x)))


def rewrite_of(model: nn.Module) -> Any:
    (rewrite,) = pb.check_traceability(model, SAMPLES).rewrites
    return rewrite


@pytest.mark.parametrize("make", [Returns, Early, Chain, Conditional, Nested, Numbers, TwoConditions])
def test_both_sides_of_each_condition_are_equal(make: Any) -> None:
    torch.manual_seed(0)
    model = make()
    rewrite = rewrite_of(model)
    assert "torch.where" in rewrite.code
    result = rewrite.verify(model, SAMPLES)
    assert result.passed, f"{result}\n{rewrite.diff}"
    assert all(branch.largest_difference < 1e-5 for branch in result.branches)
    rewrite.apply(model)
    captured = pb.capture(model, SAMPLES)
    assert captured.leaves == ()
    assert captured.verify().passed


def test_the_diff_is_one_of_the_file_and_keeps_what_it_does_not_change() -> None:
    rewrite = rewrite_of(Returns())
    assert "+        return torch.where(x.sum() > 0, self.linear(x), torch.zeros(10))" in rewrite.diff
    assert "-        if x.sum() > 0:" in rewrite.diff
    assert "         # stays where it is" in rewrite.diff
    line = int(rewrite.diff.split("@@ -")[1].split(",")[0])
    assert rewrite.source is not None
    assert abs(line - rewrite.source.line) < 5


def test_another_shape_on_one_side_is_told() -> None:
    result = rewrite_of(Returns()).verify(Returns(), SAMPLES)
    assert {branch.side: branch.outcome for branch in result.branches} == {
        True: "equal",
        False: "equal after broadcasting",
    }


def test_one_rewrite_for_all_modules_of_a_class() -> None:
    torch.manual_seed(0)
    model = Inside()
    rewrite = rewrite_of(model)
    assert rewrite.fqn == "gate"
    assert rewrite.verify(model, SAMPLES).passed
    rewrite.apply(model)
    assert pb.capture(model, SAMPLES).leaves == ()


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x):
        if x.sum() > 0:
            self.seen.append(1)
            return x
        return -x


class OneSide(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            y = x
        return y if x.sum() > 0 else x


@pytest.mark.parametrize(("make", "reason"), [(Appends, "more than compute a value"), (OneSide, "has a value only")])
def test_what_cannot_be_rewritten_says_why(make: Any, reason: str) -> None:
    rewrite = rewrite_of(make())
    assert not rewrite.diff
    assert reason in rewrite.reason
    with pytest.raises(CannotRewrite, match="Nothing was proposed"):
        rewrite.verify(make(), SAMPLES)


class Wrong(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return torch.log(x.abs())
        return x * 0


def test_a_wrong_rewrite_is_found() -> None:
    model = Wrong()
    rewrite = rewrite_of(model)
    wrong = dataclasses.replace(rewrite, _function=lambda self, x: x)
    result = wrong.verify(model, SAMPLES)
    assert not result.passed
    assert "different" in {branch.outcome for branch in result.branches}


def test_a_side_counts_as_reached_only_if_the_whole_condition_takes_it() -> None:
    result = rewrite_of(Never()).verify(Never(), SAMPLES)
    assert {branch.side: branch.outcome for branch in result.branches} == {True: "not reached", False: "equal"}
    assert not result.passed


class Truncates(nn.Module):
    def forward(self, x):
        if int(x.abs().max()) > 2:
            return x
        return -x


def test_the_proof_compares_with_the_users_own_condition() -> None:
    model = Truncates()
    rewrite = rewrite_of(model)
    wrong = rewrite.code.replace("torch.trunc(x.abs().max())", "x.abs().max()")
    scope: dict[str, Any] = {"torch": torch}
    exec(wrong, scope)
    between = [torch.full((2, 10), 2.5), torch.full((3, 10), 2.5)]
    assert rewrite.verify(model, between).passed
    assert not dataclasses.replace(rewrite, _function=scope["forward"]).verify(model, between).passed


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        self.seen.copy_(x[0])
        return x * 2


def test_buffers_after_the_call_are_compared() -> None:
    def without_state(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    model, (sample,) = Remembers(), normalize_samples(Remembers(), [torch.ones(2, 3)])
    right, wrong = (run_with(model, "", function, sample) for function in (Remembers.forward, without_state))
    assert difference(right, wrong, REWRITTEN).text.startswith("after the call, buffer ['seen']")
    assert not model.seen.any()


def test_every_line_that_is_shown_is_the_users_or_the_rewritten_one() -> None:
    torch.manual_seed(0)
    model = Returns()
    rewrite = pb.check_traceability(model, SAMPLES).rewrites[0]
    rewrite.apply(model)
    pb.check_traceability(model, SAMPLES)
    assert rewrite.verify(Returns(), SAMPLES).passed
    shown = [
        node.source.code
        for graph in pb.recursive_trace(model, inputs=SAMPLES).document().graphs
        for node in graph.nodes
        if node.source is not None
    ]
    assert shown
    assert all(line in rewrite.code for line in shown)
    made = [line for name, entry in linecache.cache.items() if name.startswith("<rewritten") for line in entry[2]]
    assert not any(PROBE in line for line in made)


def test_an_instrumented_function_raises_at_the_users_line() -> None:
    def probe(place: Place, value: Any) -> Any:
        raise ZeroDivisionError

    function = FunctionSource.of(Early.forward).instrumented(BRANCH_TO_WHERE.instrument, probe)
    with pytest.raises(ZeroDivisionError) as caught:
        function(Early(), torch.ones(2, 10))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.line for frame in frames if frame.name == "forward"] == ["if x.min() > 0:"]
    assert all(frame.filename == __file__ for frame in frames)
