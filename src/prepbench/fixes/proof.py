"""Proof of a change: the model gives the same with and without it, on samples that take every side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from prepbench.fixes.facts import Facts, Place
from prepbench.fixes.trials import Answer, TimeLimitReached, Trial, answer, trials
from prepbench.inputs import Sample
from prepbench.running.equality import REWRITTEN, difference
from prepbench.running.outcomes import without_output
from prepbench.running.unchanged import own_copy

ASSUMED = "which pb.fix assumed to be enough"
"""What an assertion says that a change adds for its assumption."""


@dataclass
class Observed:
    """A trial with the original's answer, and the sides that its conditions took."""

    trial: Trial
    expected: Answer
    taken: frozenset[tuple[Place, bool]] = frozenset()


@dataclass
class Proof:
    """Whether a change is proven.

    Attributes:
        problem: why not; "" where it is.
        calls: on how many calls it was equal.
        sides: how many sides of conditions these took.
        errors: how many of the calls raise.
    """

    problem: str = ""
    calls: int = 0
    sides: int = 0
    errors: int = 0
    taken: set[tuple[Place, bool]] = field(default_factory=set)

    @property
    def text(self) -> str:
        """How it was proven, in words."""
        parts = [f"equal on {self.calls} calls: values, dtypes, shapes, buffers and gradients"]
        if self.sides:
            parts.append(f"both sides of {self.sides} condition{'s' * (self.sides != 1)}")
        if self.errors:
            parts.append(f"{self.errors} of them raise as the original does")
        return ", ".join(parts)


def observe(original: torch.nn.Module, samples: Sequence[Sample]) -> list[Observed]:
    """What the original gives on the samples and on what is derived from them; calls that it does not take are left
    out.
    """
    found = []
    for trial in trials(samples):
        try:
            expected = answer(original, trial)
        except TimeLimitReached:
            continue
        if expected.error is None or expected.is_wanted:
            found.append(Observed(trial, expected))
    return found


def prove(
    changed: torch.nn.Module,
    observed: Sequence[Observed],
    conditions: Sequence[Place] = (),
    line_of: Callable[[Place], int] = lambda place: place[0],
    *,
    is_compiling: bool = False,
) -> Proof:
    """Compare a changed model with what was observed of the original.

    Args:
        conditions: what the change is about; both sides of each must have been taken.
        line_of: the line of the user's file that a condition stands at.
        is_compiling: also compare what runs while the model is traced.
    """
    proof = Proof()
    for one in observed:
        problem = _compared(changed, one, is_compiling=False)
        if problem == _REFUSED:
            continue
        if not problem and is_compiling:
            problem = _compared(changed, one, is_compiling=True)
        if problem:
            where = f"sample {one.trial.sample.index}" if one.trial.is_given else "other values"
            proof.problem = f"on {where} it differs: {problem}"
            return proof
        proof.calls += 1
        proof.errors += one.expected.error is not None
        proof.taken |= {(place, side) for place, side in one.taken if place in conditions}
    missing = [(place, side) for place in conditions for side in (True, False) if (place, side) not in proof.taken]
    if missing:
        place, side = missing[0]
        proof.problem = (
            f"no sample takes the side where the condition on line {line_of(place)} is {str(side).lower()}, nor does "
            "any that was made from the samples; give one that does"
        )
    proof.sides = len(set(conditions))
    return proof


def _compared(changed: torch.nn.Module, one: Observed, is_compiling: bool) -> str:
    expected = one.expected
    try:
        got = answer(changed, one.trial, is_compiling=is_compiling, gradients=bool(expected.gradients))
    except TimeLimitReached:
        return "it does not come to an end"
    if got.error is not None and ASSUMED in str(got.error) and not one.trial.is_given:
        return _REFUSED
    if expected.error is not None:
        return _error_problem(expected.error, got, is_compiling)
    if got.error is not None:
        return f"it raises {type(got.error).__name__}: {str(got.error).splitlines()[0] if str(got.error) else ''}"
    found = difference(expected.outcome, got.outcome, REWRITTEN)
    return found.text or _gradient_problem(expected.gradients, got.gradients)


_REFUSED = "refused"
"""What a call is that does not keep to an assumption."""


def _error_problem(expected: Exception, got: Answer, is_compiling: bool) -> str:
    if got.error is None:
        return f"the original raises {type(expected).__name__}, and it does not"
    same = type(got.error) is type(expected) and str(got.error) == str(expected)
    # while a graph is made an assertion stands for every error
    return "" if same or is_compiling else f"it raises {type(got.error).__name__} in place of {type(expected).__name__}"


def _gradient_problem(expected: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]) -> str:
    if not expected:
        return ""
    if not got:
        return "it has no gradients"
    for left, right in zip(expected, got, strict=True):
        if left is None:
            # of what the original does not compute, a derivative may be undefined, but not another one
            if right is not None and bool((right.isfinite() & (right != 0)).any()):
                return "it has a gradient where the original has none"
            continue
        other = torch.zeros_like(left) if right is None else right
        found = difference(left, other, REWRITTEN, "gradient")
        if not found.equal:
            return found.text
    return ""


def program_problem(program: Callable[..., Any], observed: Sequence[Observed]) -> str:
    """Where a captured program differs from what was observed of the original; "" where it does not."""
    for one in (each for each in observed if each.trial.scale == 1):
        try:
            with torch.no_grad(), without_output():
                got = own_copy(one.trial.sample).call(program)
        except Exception as error:
            if one.expected.error is None and (ASSUMED not in str(error) or one.trial.is_given):
                return f"its graph raises {type(error).__name__}"
            continue
        if one.expected.error is not None:
            return f"the original raises {type(one.expected.error).__name__}, and its graph does not"
        assert one.expected.outcome is not None
        found = difference(one.expected.outcome.output, got, REWRITTEN)
        if not found.equal:
            return f"its graph differs: {found.text}"
    return ""


def with_sides(instrumented: torch.nn.Module, facts: Facts, observed: Sequence[Observed]) -> list[Observed]:
    """The same calls with the sides that the conditions of an instrumented model take in them."""
    found = []
    for one in observed:
        facts.taken.clear()
        facts.is_given = one.trial.is_given
        try:
            answer(instrumented, one.trial, gradients=False)
        except TimeLimitReached:
            continue
        finally:
            facts.ended()
        found.append(Observed(one.trial, one.expected, frozenset(facts.taken)))
    return found
