"""Prove a change: the model gives the same results with and without it, on samples that take every side of
conditions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.fixes.facts import Facts, Place
from prepbench.fixes.trials import (
    OPERATIONS_OF_DERIVED,
    SECONDS_OF_DERIVED,
    Answer,
    Caller,
    TimeLimitReached,
    Trial,
    further_trials,
    gradients,
    trials,
)
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.objects.compare import GRADIENTS, REWRITTEN, difference
from prepbench.running.unchanged import run, without_output

ASSUMED = "which pb.fix assumed to be enough"
"""Message of the assertion that a change adds for its assumption."""


@dataclass
class Observed:
    """A trial with the original's answer, and the sides that its conditions took."""

    trial: Trial
    expected: Answer
    original: torch.nn.Module
    taken: frozenset[tuple[Place, bool]] = frozenset()

    @functools.cached_property
    def gradients(self) -> list[torch.Tensor | None]:
        """Return the gradients of the original; empty where it has none."""
        return gradients(self.original, self.trial) if self.expected.error is None else []


@dataclass
class Proof:
    """The outcome of a proof.

    Attributes:
        problem: why not; "" where it is.
        calls: on how many calls it was equal.
        sides: how many sides of conditions these took.
        errors: how many of the calls raise.
        instead: the errors of the original where the change gives NaN or infinity.
        strides: how results lie in memory otherwise than those of the original. This refuses no change: their values
            are the same, and within the model the calls have shown that nothing depends on it.
    """

    problem: str = ""
    calls: int = 0
    sides: int = 0
    errors: int = 0
    taken: set[tuple[Place, bool]] = field(default_factory=set)
    instead: str = ""
    strides: str = ""

    @property
    def text(self) -> str:
        """Describe how it was proven."""
        parts = [f"equal on {self.calls} calls: values, dtypes, shapes, buffers and gradients"]
        if self.sides:
            parts.append(f"both sides of {self.sides} condition{'s' * (self.sides != 1)}")
        if self.errors:
            parts.append(f"{self.errors} of them raise as the original does")
        if self.instead:
            parts.append(f"where the original raises {self.instead}, the tensors have a value, such as nan or inf")
        if self.strides:
            parts.append(f"results may lie in memory in another order: {self.strides}")
        return ", ".join(parts)


def observe(original: torch.nn.Module, samples: Sequence[Sample]) -> list[Observed]:
    """Run the original on the samples and on derived calls; calls that it does not accept are left out."""
    caller = Caller(original)
    has_state = any(True for _ in (*original.parameters(), *original.buffers()))
    found = [_observed(original, caller, trial) for trial in trials(samples, has_state=has_state)]
    return [one for one in found if one is not None]


def _observed(original: torch.nn.Module, caller: Caller, trial: Trial) -> Observed | None:
    try:
        if trial.is_given:
            expected = caller.answer(trial, operations=math.inf)
        else:
            most = max(OPERATIONS_OF_DERIVED, 2 * caller.operations)
            expected = caller.answer(trial, seconds=SECONDS_OF_DERIVED, operations=most)
    except TimeLimitReached:
        return None
    return Observed(trial, expected, original) if expected.is_told else None


def prove(
    changed: torch.nn.Module,
    observed: Sequence[Observed],
    conditions: Sequence[Place] = (),
    line_of: Callable[[Place], int] = lambda place: place[0],
    *,
    is_compiling: bool = False,
) -> Proof:
    """Compare a changed model with the recorded answers of the original.

    Args:
        conditions: the conditions of the change; both sides of each must have been taken.
        line_of: the line of the user's file that a condition stands at.
        is_compiling: also compare the code that runs during tracing.
    """
    proof, caller = Proof(), Caller(changed)
    with_gradients = _chosen_for_gradients(observed)
    for one in observed:
        problem = _compared(caller, one, is_compiling=False, proof=proof)
        if problem in (_REFUSED, _VALUE):
            proof.instead = proof.instead or (_error_text(one.expected.error) if problem == _VALUE else "")
            continue
        if not problem and id(one) in with_gradients:
            problem = _gradient_problem(one, changed)
        if not problem and is_compiling:
            problem = _compared(caller, one, is_compiling=True)
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


_MOST_GRADIENTS = 3


def _chosen_for_gradients(observed: Sequence[Observed]) -> set[int]:
    """Return the given samples, and some calls for each path through the conditions; gradients are slow."""
    chosen: set[int] = set()
    ways: dict[frozenset[Any], int] = {}
    for one in observed:
        if one.trial.is_given or ways.get(one.taken, 0) < _MOST_GRADIENTS:
            ways[one.taken] = ways.get(one.taken, 0) + (not one.trial.is_given)
            chosen.add(id(one))
    return chosen


def _compared(caller: Caller, one: Observed, is_compiling: bool, proof: Proof | None = None) -> str:
    expected = one.expected
    try:
        got = caller.answer(one.trial, is_compiling=is_compiling)
    except TimeLimitReached:
        return "it does not terminate"
    if got.error is not None and ASSUMED in str(got.error) and not one.trial.is_given:
        return _REFUSED
    if expected.is_of_numbers:
        return _VALUE if got.error is None else ""
    if expected.error is not None:
        return _error_problem(expected, got, is_compiling)
    if got.error is not None:
        return f"it raises {type(got.error).__name__}: {str(got.error).splitlines()[0] if str(got.error) else ''}"
    found = difference(expected.outcome, got.outcome, REWRITTEN)
    if found.equal and not is_compiling:
        found = difference(expected.written, got.written, REWRITTEN, "after the call, parameter ")
    if found.equal and proof is not None and expected.outcome is not None and got.outcome is not None:
        proof.strides = proof.strides or other_strides(expected.outcome.output, got.outcome.output)
    return found.text


_REFUSED = "refused"
"""Label of a call that breaks an assumption."""
_VALUE = "a value"
"""Label of a call that gives NaN or infinity where Python's numbers raise."""


def _error_text(error: Exception | None) -> str:
    return f"{type(error).__name__} ({str(error).splitlines()[0] if str(error) else ''})"


def _error_problem(answered: Answer, got: Answer, is_compiling: bool) -> str:
    expected = answered.error
    if got.error is None:
        return f"the original raises {type(expected).__name__}, and it does not"
    same = type(got.error) is type(expected) and str(got.error) == str(expected)
    # while a graph is made an assertion stands for every error, and each container has its own words for what it lacks
    return (
        ""
        if same or is_compiling or answered.is_lookup
        else f"it raises {type(got.error).__name__} in place of {type(expected).__name__}"
    )


def _gradient_problem(one: Observed, changed: torch.nn.Module) -> str:
    expected = one.gradients
    if not expected:
        return ""
    try:
        got = gradients(changed, one.trial)
    except TimeLimitReached:
        return "its gradient does not terminate"
    if not got:
        return "it has no gradients"
    for left, right in zip(expected, got, strict=True):
        if left is None:
            # of what the original does not compute, a derivative may be undefined, but not another one
            if (
                right is not None
                and not difference(torch.zeros_like(right), right.where(right.isfinite(), 0), GRADIENTS).equal
            ):
                return "it has a gradient where the original has none"
            continue
        other = torch.zeros_like(left) if right is None else right
        found = difference(left, other, GRADIENTS, "gradient")
        if not found.equal:
            return found.text
    return ""


def program_problem(program: torch.nn.Module, observed: Sequence[Observed]) -> str:
    """Return how a captured program differs from the original's answers; "" if it does not."""
    for one in (each for each in observed if each.trial.state is None):
        try:
            with without_output():
                got = run(program, one.trial.sample, program)
        except Exception as error:
            raise_if_internal(error)
            if one.expected.error is None and (ASSUMED not in str(error) or one.trial.is_given):
                return f"its graph raises {type(error).__name__}"
            continue
        if one.expected.is_of_numbers:
            continue
        if one.expected.error is not None:
            return f"the original raises {type(one.expected.error).__name__}, and its graph does not"
        assert one.expected.outcome is not None
        found = difference(one.expected.outcome.output, got, REWRITTEN)
        if not found.equal:
            return f"its graph differs: {found.text}"
    return ""


def with_sides(
    instrumented: torch.nn.Module,
    facts: Facts,
    observed: Sequence[Observed],
    tests: Callable[[], Collection[Place]] = tuple,
) -> list[Observed]:
    """Return the calls with the sides that the conditions of an instrumented model take in them.

    While one of ``tests``, the conditions on data, has taken one side only, more calls are made, and those that take
    the other side are kept.
    """
    caller = Caller(instrumented)
    found = [replaced for one in observed if (replaced := _with_sides(caller, facts, one)) is not None]
    given = [one.trial.sample for one in observed if one.trial.is_given]
    missing = _missing(tests(), found)
    original = observed[0].original if missing else instrumented
    originals = Caller(original) if missing else caller
    for trial in further_trials(given) if missing else ():
        one = _observed(original, originals, trial)
        seen = _with_sides(caller, facts, one) if one is not None else None
        if seen is not None and seen.taken & missing:
            found.append(seen)
            missing -= seen.taken
            if not missing:
                break
    return found


def _with_sides(caller: Caller, facts: Facts, one: Observed) -> Observed | None:
    facts.taken.clear()
    facts.is_given = one.trial.is_given
    try:
        caller.answer(one.trial)
    except TimeLimitReached:
        return None
    finally:
        facts.ended()
    return replace(one, taken=frozenset(facts.taken))


def _missing(tests: Collection[Place], observed: Sequence[Observed]) -> set[tuple[Place, bool]]:
    """Return the sides of conditions on data that no call takes."""
    taken = {side for one in observed for side in one.taken}
    return {(place, side) for place in tests for side in (True, False) if (place, side) not in taken}


# The memory layout of results: two calls with equal values may still differ in it.


def other_strides(expected: Any, got: Any) -> str:
    """Return the first result whose memory layout differs from before; "" if there is none."""
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(got), strict=False)
    for one, other in ((a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        if _visible_strides(one) != _visible_strides(other):
            return f"strides {tuple(other.stride())} in place of {tuple(one.stride())} for {tuple(one.shape)}"
    return ""


def _visible_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of dims with several entries; those of others are meaningless."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return ()
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)
