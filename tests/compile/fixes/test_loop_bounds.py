"""The most iterations of a loop: proven by the code, given by the user, or taken for granted and so a draft."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.fixes import Draft, assumptions_of
from prepbench.objects.compare import GRADIENTS, difference


def small(*sizes: int) -> list[torch.Tensor]:
    """Samples of which most need no iteration or one."""
    torch.manual_seed(4)
    return [torch.randn(size, 4) * 0.5 for size in sizes or (2, 3)]


class ShrinksFewTimes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tries = 0
        while x.norm() > 1.0 and tries < 5:
            x = x / 2
            tries += 1
        return x


class CountsDown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.least = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = 8
        while self.least <= left and x.abs().max() > 0.5:
            x = x * 0.9
            left = left - 2
        return x


class LeavesBySteps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        step = 0
        while True:
            x = x * 0.75
            step += 1
            if step >= 4:
                break
            if x.norm() < 0.5:
                break
        return x


class Relaxes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done, rounds = False, 0
        while not done:
            x = x * 0.75
            rounds = rounds + 1
            done = bool(x.abs().max() < 0.5) or rounds > 3
        return x


class AtMost(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        for i in range(min(int(n), 6)):
            x = x + i
        return x


class Clamped(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        count = n.clamp(0, 6)
        for i in range(int(count)):
            x = x * 0.5 + i
        return x


COUNTS = [(small()[0], torch.tensor(1)), (small()[1], torch.tensor(2))]


@pytest.mark.parametrize(
    ("model", "samples", "far"),
    [
        (ShrinksFewTimes(), small(), [(torch.full((2, 4), value),) for value in (3.0, 9.0, 400.0)]),
        (CountsDown(), small(), [(torch.full((2, 4), value),) for value in (0.6, 9.0)]),
        (LeavesBySteps(), small(), [(torch.full((2, 4), value),) for value in (0.1, 9.0)]),
        (Relaxes(), small(), [(torch.full((2, 4), value),) for value in (0.1, 9.0)]),
        (AtMost(), COUNTS, [(torch.ones(2, 4), torch.tensor(n)) for n in (0, 5, 6, 50)]),
        (Clamped(), COUNTS, [(torch.ones(2, 4), torch.tensor(n)) for n in (-3, 5, 6, 50)]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_a_bound_that_the_code_proves_is_taken(model: nn.Module, samples: Any, far: list[Any]) -> None:
    fixed = pb.fix(model, samples)
    assert fixed.passed
    assert [fix.assumption for fix in fixed.applied] == [""] * len(fixed.applied)
    assert "_assert_async" not in fixed.diff
    program = pb.capture(fixed.model, samples).program.module()
    for args in far:
        torch.testing.assert_close(fixed.model(*args), model(*args))
        torch.testing.assert_close(program(*args), model(*args))


class ShrinksUntilSmall(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.norm() > 1.0:
            x = x / 2
        return x


class CountsSometimes(nn.Module):
    """The count is no bound, because not every iteration counts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tries = 0
        while x.norm() > 1.0 and tries < 3:
            x = x / 2
            if x.sum() > 0:
                tries += 1
        return x


class SetsItsLimit(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tries, limit = 0, 1
        while x.norm() > 1.0 and tries < limit:
            x = x / 2
            tries += 1
            limit += 1
        return x


@pytest.mark.parametrize("model", [ShrinksUntilSmall(), CountsSometimes(), SetsItsLimit()])
def test_a_bound_of_the_samples_alone_makes_a_draft(model: nn.Module) -> None:
    fixed = pb.fix(model, small())
    draft = fixed.remaining[0]
    assert not fixed.passed
    assert draft.reason.startswith("it takes for granted that the loop on line") or draft.fix is None


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = ShrinksFewTimes(), ShrinksUntilSmall()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + 1)


def test_a_draft_is_applied_where_it_is_named() -> None:
    model, samples, far = Two(), small(), torch.full((2, 4), 90.0)
    fixed = pb.fix(model, samples)
    (draft,) = fixed.remaining
    assert [fix.fqn for fix in fixed.applied] == ["first"]
    assert "_assert_async" not in fixed.diff + fixed.code()
    assert draft.fqn == "second"
    assert draft.fix is not None
    assert draft.fix.limit is not None
    assert not draft.fix.limit.is_given
    assert f"at most {draft.fix.limit.most} iterations" in draft.reason
    assert "needs at most" in draft.fix.assumption
    assert "model_with('second') applies it all the same" in repr(draft)
    assert "model_with" in fixed._repr_mimebundle_()["text/html"]
    torch.testing.assert_close(fixed.model(far), model(far))

    anyway = fixed.model_with("first", "second")
    assert not pb.capture(anyway, samples).leaves
    assert assumptions_of(anyway) == (draft.fix.assumption,)
    assert assumptions_of(fixed.model) == assumptions_of(model) == ()
    with pytest.raises(RuntimeError, match="assumed to be enough"):
        anyway(torch.full((2, 4), 9e9))
    with pytest.raises(UnknownNameError, match=r"Choose from \['first', 'second'\]"):
        fixed.model_with("third")


class BranchesThenShrinks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            x = x + 1
        while x.norm() > 1.0:
            x = x / 2
        return x


@pytest.mark.stress
def test_a_module_with_a_proven_fix_and_a_draft_has_the_draft_alone() -> None:
    bench = pb.Bench(BranchesThenShrinks(), tracing_inputs=small())
    bench.find_fixes()
    (card,) = bench.summary().failures
    assert (card.can_fix, card.has_draft, card.fixed) == (False, True, False)
    with pytest.raises(SettingsError, match="no proven fix"):
        bench.apply_fixes()
    bench.apply_fix("", anyway=True)
    assert bench.summary().failures[0].fixed
    assert not pb.capture(bench.captures.model(("",)), small()).leaves


def test_a_bound_that_the_user_gives_makes_a_fix() -> None:
    far = torch.full((2, 4), 90.0)
    fixed = pb.fix(ShrinksUntilSmall(), small(), bounds=20)
    (fix,) = fixed.applied
    assert fixed.passed
    assert not fix.narrows
    assert "given by bounds=" in fix.assumption
    assert torch.equal(fixed.model(far), ShrinksUntilSmall()(far))
    assert pb.fix(ShrinksFewTimes(), small(), bounds=20).applied[0].assumption == ""


def test_the_report_says_what_a_fix_takes_for_granted() -> None:
    model = pb.fix(ShrinksUntilSmall(), small(), bounds=3).model
    compiled = pb.compile_model(model, tracing_inputs=small(), deployment_settings=pb.EagerDeployment())
    trained = pb.compile_model(pb.trainable(model, tracing_inputs=small()), is_dry_run=True)
    for report in (compiled.report, trained):
        assert any("a fix takes for granted that the loop on line" in remark for remark in report.remarks)


@pytest.mark.stress
def test_the_bench_applies_a_draft_by_itself_only() -> None:
    bench = pb.Bench(Two(), tracing_inputs=small())
    bench.find_fixes()
    cards = {card.fqn: card for card in bench.summary().failures}
    assert (cards["first"].can_fix, cards["first"].assumption) == (True, "")
    assert (cards["second"].can_fix, cards["second"].has_draft) == (False, True)
    assert "needs at most" in cards["second"].assumption
    bench.apply_fixes()
    assert bench.state.fixes == ("first",)
    with pytest.raises(SettingsError, match=r"takes for granted that the loop .* apply it with anyway=True"):
        bench.apply_fix("second")
    assert not any("Fix of" in text for text in bench.summary().assumptions)
    bench.apply_fix("second", anyway=True)
    assert bench.state.fixes == ("first", "second")
    assert any(text.startswith("Fix of second: the loop on line") for text in bench.summary().assumptions)
    assert {card.fqn: card.fixed for card in bench.summary().failures} == {"first": True, "second": True}
    assert isinstance(bench.captures.fixes["second"], Draft)


def test_gradients_that_are_nearly_nothing_are_equal() -> None:
    nothing, rounding = torch.zeros(3), torch.tensor([0.0, 2e-8, -3e-8])
    assert difference(nothing, rounding, GRADIENTS).equal
    assert difference(rounding, nothing, GRADIENTS).equal
    assert not difference(nothing, rounding * 1e3, GRADIENTS).equal
    assert not difference(torch.ones(3), torch.ones(3) + rounding * 1e3, GRADIENTS).equal
