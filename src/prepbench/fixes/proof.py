"""Prove a change: the model gives the same results without it, on samples that take every side of conditions."""

from __future__ import annotations

import contextlib
import dis
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import version_of
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import linked_axes, resized, sizes_in, with_sizes
from prepbench.errors import InputError
from prepbench.fixes.facts import Facts, Place
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.objects.compare import GRADIENTS, REWRITTEN, Outcome, difference
from prepbench.objects.digest import tensor_digest
from prepbench.objects.parts import is_user_code
from prepbench.patching import patched_here
from prepbench.running.unchanged import NotedState, outcome, own_copy, run, unchanged, without_output

NO_SAMPLE = "no sample takes the side"
"""How a proof begins that one more sample can complete."""
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
        assumption: what must hold beyond the samples, because it differs on calls with sizes that none of them has.
    """

    problem: str = ""
    calls: int = 0
    sides: int = 0
    errors: int = 0
    taken: set[tuple[Place, bool]] = field(default_factory=set)
    instead: str = ""
    strides: str = ""
    assumption: str = ""

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
            f"{NO_SAMPLE} where the condition on line {line_of(place)} is {str(side).lower()}, nor does "
            "any that was made from the samples; give one that does"
        )
    proof.sides = len(set(conditions))
    if conditions and not proof.problem:
        proof.assumption = _assumed_of_sizes(caller, observed)
    return proof


def _assumed_of_sizes(caller: Caller, observed: Sequence[Observed]) -> str:
    """Return what is assumed about sizes, because a call with sizes of no sample differs without an error; "" if none.

    The sides of a condition may have one shape on every sample and others elsewhere, where ``torch.where`` broadcasts.
    """
    model = observed[0].original
    original = Caller(model)
    shapes = [sizes_in(model, one.trial.sample) for one in observed if one.trial.is_given]
    varying = {place for each in shapes for place, size in each.items() if shapes[0].get(place) != size}
    ways = {one.taken: one.trial.sample for one in reversed(observed) if one.expected.error is None and _is_plain(one)}
    for sample in list(ways.values())[:_MOST_WAYS]:
        for sizes, trial in _of_any_sizes(model, sample, varying):
            one = _observed(model, original, trial)
            if one is None or one.expected.outcome is None:
                continue
            try:
                got = caller.answer(trial)
            except TimeLimitReached:
                continue
            if got.error is not None:  # refused in words
                continue
            found = difference(one.expected.outcome, got.outcome, REWRITTEN)
            if not found.equal:
                return (
                    "both sides of a condition have one shape for all sizes of a call, as for those of the samples; "
                    f"with {sizes} they have not, and the result differs without an error: {found.text}"
                )
    return ""


def _is_plain(one: Observed) -> bool:
    """Return whether a call has sizes of the samples and the model's own parameters."""
    return one.trial.state is None and not one.trial.is_resized


def _of_any_sizes(model: torch.nn.Module, sample: Sample, varying: set[tuple[str, int]]) -> Iterator[tuple[str, Trial]]:
    """Yield the sample with other sizes along each dim that does not vary, of one tensor and of all with this size.

    Size 1 broadcasts, so it is tried of first dims, which count the parts of a batch. Dims that vary have trials of
    their own, in which those that vary together stay together.
    """
    sizes = {place: size for place, size in sizes_in(model, sample).items() if place not in varying}
    sizes = dict(list(sizes.items())[:_MOST_PLACES])
    together: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for (path, dim), size in sizes.items():
        together.setdefault((dim, size), []).append((path, dim))
    for group in (*([place] for place in sizes), *(group for group in together.values() if len(group) > 1)):
        size, is_first = sizes[group[0]], group[0][1] == 0
        for other in {size + 1, 1} - {size} if is_first else {size + 1}:
            text = " and ".join(f"size {other} of dim {dim} of argument {path}" for path, dim in group)
            with contextlib.suppress(InputError, RuntimeError, IndexError):  # sizes that cannot be made
                made = with_sizes(model, sample, dict.fromkeys(group, other), [sample])
                yield text, Trial(replace(made, index=-1), False, is_resized=True)


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


def program_problem(
    program: torch.nn.Module, observed: Sequence[Observed], changed: torch.nn.Module | None = None
) -> str:
    """Return how a captured program differs from the original's answers; "" if it does not.

    Args:
        program: the captured program.
        observed: the original's answers.
        changed: the changed model, if it refuses some calls; its graph refuses them in other words.
    """
    # a graph has conditions on sizes, which a capture finds and tells
    for one in (each for each in observed if each.trial.state is None and not each.trial.is_resized):
        try:
            with without_output():
                got = run(program, one.trial.sample, program)
        except Exception as error:
            raise_if_internal(error)
            if one.expected.error is None and (one.trial.is_given or not _is_refused(one, error, changed)):
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


def _is_refused(one: Observed, error: Exception, changed: torch.nn.Module | None) -> bool:
    """Return whether a call breaks an assumption."""
    if ASSUMED in str(error) or changed is None:
        return ASSUMED in str(error)
    return ASSUMED in str(Caller(changed).answer(one.trial).error or "")


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


# The calls on which a change is proven: the samples, and derived ones that take the other side of conditions.


SECONDS = 3.0
"""How long one call of a changed model may take."""
SECONDS_OF_DERIVED = 1.0
"""How long one derived call of the original may take; a loop may have no end on made-up values."""
OPERATIONS_OF_DERIVED = 2000
"""How many calls of torch it may make, unless those on the samples make more; most loops without an end are told by
this, which takes less time and does not depend on the machine."""

MOST_SAMPLES = 4
_MOST_APART = 4
_MOST_WAYS = 4  # through the conditions, for sizes of no sample
_MOST_PLACES = 8  # dims of tensors that get such sizes
_MOST_COMPARED = 100_000
_RAISE = dis.opmap["RAISE_VARARGS"]


@dataclass
class Answer:
    """The outcome of one call.

    Attributes:
        outcome: output, the caller's tensors and buffers afterwards; None where it raised.
        written: parameters that were assigned anew or written into; all tensors of a model that has others.
        error: the exception.
        is_wanted: whether the user's own ``raise`` or ``assert`` raised it.
    """

    LOOKUPS: ClassVar = (IndexError, KeyError)
    """Errors of asking for something absent: no change may find anything there."""
    NUMBERS: ClassVar = (ZeroDivisionError, OverflowError, ValueError)
    """Errors of Python's numbers where tensors give NaN or infinity."""

    outcome: Outcome | None = None
    written: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    is_wanted: bool = False

    @property
    def is_told(self) -> bool:
        """Whether the call is within the model's contract: a result, or an error that the model means to raise."""
        return self.error is None or self.is_wanted or self.is_lookup or self.is_of_numbers

    @property
    def is_lookup(self) -> bool:
        """Whether it is a failed lookup."""
        return isinstance(self.error, self.LOOKUPS) and not self.is_wanted

    @property
    def is_of_numbers(self) -> bool:
        """Whether a Python number raised it where a tensor has a value."""
        texts = ("math domain", "math range", "division by zero", "cannot convert float", "too large")
        is_kind = isinstance(self.error, self.NUMBERS) and not self.is_wanted
        return is_kind and any(text in str(self.error) for text in texts)


@dataclass(frozen=True)
class Trial:
    """One call of one module.

    Attributes:
        sample: its arguments.
        is_given: whether they are the user's; others are derived from them.
        state: changes of parameters and buffers, because a condition may depend on them.
        is_resized: whether it has sizes that no sample has.
    """

    sample: Sample
    is_given: bool
    state: Change | None = None
    is_resized: bool = False


def trials(samples: Sequence[Sample], *, has_state: bool = True) -> list[Trial]:
    """Return the samples, and the same with other values and sizes, without duplicates."""
    given = list(samples[:MOST_SAMPLES])
    derived = [Trial(changed(sample, change), False) for change in usual_changes(given) for sample in given[:2]]
    # tensors that change together keep conditions between them as they are
    counts = [tensor_count(sample) for sample in given[:1]]
    apart = [
        Trial(changed(given[0], change, only), False)
        for count in counts
        for only in range(min(count, _MOST_APART) if count > 1 else 0)
        for change in changes_apart(given)
    ]
    states = [_of_state(given[0], scaled(factor)) for factor in (0.0, 0.1, -1.0, 10.0)] if given and has_state else []
    sizes = [Trial(sample, False, is_resized=True) for sample in _of_other_sizes(given)]
    return [*_distinct([*(Trial(sample, True) for sample in given), *derived, *apart, *sizes]), *states]


def _of_other_sizes(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the first sample with size 1, and with one more than the largest, along each dim that differs between
    samples: a change must not be right for their sizes alone.
    """
    try:
        axes = DynamicAxes.infer(samples)
    except InputError:  # samples of different forms
        return
    groups = linked_axes(axes)
    for symbol, group in list(groups.items())[:_MOST_APART]:
        for size in (1, max(group[0].sizes) + 1):
            change = size - group[0].sizes[0]
            with contextlib.suppress(InputError, RuntimeError, IndexError):  # sizes that cannot be made
                yield resized(_any_call, samples[0], {symbol: change}, groups, samples)


def _any_call(*args: Any, **kwargs: Any) -> None:
    """Take any arguments, whose names do not matter."""


def _distinct(found: Sequence[Trial]) -> list[Trial]:
    """Return the given trials, and those of the others whose arguments have new values."""
    seen: set[Any] = set()
    kept = []
    for trial in found:
        values = _values(trial.sample)
        if trial.is_given or values not in seen:
            kept.append(trial)
        seen.add(values)
    return kept


def _values(sample: Sample) -> Any:
    """Return the identity of a derived call: its tensors, by digest or, if large, by identity."""
    leaves = [leaf for leaf in pytree.tree_leaves((sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)]
    return tuple((tuple(leaf.shape), leaf.dtype, _digest(leaf)) for leaf in leaves)


def _digest(tensor: torch.Tensor) -> Any:
    return (tensor_digest(tensor) if tensor.numel() <= _MOST_COMPARED else "") or id(tensor)


def further_trials(samples: Sequence[Sample]) -> Iterator[Trial]:
    """Yield more calls, for conditions that have taken one side only."""
    given = list(samples[:1])
    for sample in given:
        yield from (_of_state(sample, moved(number)) for number in (1, -1, 10, 1000))
        yield from (_of_state(sample, change) for change in (scaled(100.0), scaled(0.01), filled()))
        yield from (Trial(changed(sample, change), False) for change in further_changes(samples))
        for only in range(tensor_count(sample)) if tensor_count(sample) > 1 else ():
            for change in (*usual_changes(given), *further_changes(given)):
                yield Trial(changed(sample, change, only), False)


def _of_state(sample: Sample, change: Change) -> Trial:
    return Trial(replace(sample, index=-1), False, change)


class Caller:
    """Calls one model repeatedly; model, samples and random numbers stay unchanged.

    Args:
        model: a twin, which nothing else changes meanwhile.

    Attributes:
        operations: the most calls of torch that one answer took.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.operations = 0
        self._model = model
        self._noted = NotedState(model)

    def answer(
        self, trial: Trial, *, is_compiling: bool = False, seconds: float = SECONDS, operations: float | None = None
    ) -> Answer:
        """Return the outcome of one call of the model.

        Args:
            trial: the call.
            is_compiling: run the code for tracing.
            seconds: how long it may take.
            operations: how many calls of torch it may make; they are counted unless this is None.

        Raises:
            TimeLimitReached: it takes too long.
        """
        written: dict[str, torch.Tensor] = {}
        function, counted = _called(self._model, trial.state, written), CountedCalls(operations)
        if operations is not None:
            function = counted.around(function)
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_output())
            stack.enter_context(TimeLimit(seconds))
            if is_compiling:
                stack.enter_context(patched_here(torch.compiler, "is_compiling", lambda: True))
                # outside of a graph torch compiles it, which would be the graph's proof, not this one
                stack.enter_context(patched_here(torch, "cond", _cond))
            try:
                return Answer(outcome(function, trial.sample, self._model, self._noted), written)
            except Exception as error:
                raise_if_internal(error)
                return Answer(error=error, is_wanted=_is_raised_by_user(error))
            finally:
                self.operations = max(self.operations, counted.count)


def _cond(condition: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any = ()) -> Any:
    return (if_true if condition else if_false)(*operands)


def _called(model: torch.nn.Module, state: Change | None, written: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """Return the model, or a call of it with other values of its tensors; writes to these are recorded."""
    parameters = dict(model.named_parameters())
    if state is None:
        before = {name: _mark(parameter) for name, parameter in parameters.items()}

        def own(*args: Any, **kwargs: Any) -> Any:
            output = model(*args, **kwargs)
            assigned = {name: p for name, p in model.named_parameters() if _mark(p) != before.get(name)}
            written.update({name: parameter.detach().clone() for name, parameter in assigned.items()})
            return output

        return own
    with torch.no_grad():
        tensors = {name: state(each.detach()).clone() for name, each in (*parameters.items(), *model.named_buffers())}

    def other(*args: Any, **kwargs: Any) -> Any:
        output = torch.func.functional_call(model, tensors, args, kwargs)
        written.update(tensors)
        return output

    return other


def _mark(parameter: torch.Tensor) -> tuple[int, int]:
    """Return values that change when a parameter gets other data, or is written into."""
    return parameter.data_ptr(), version_of(parameter)


def gradients(model: torch.nn.Module, trial: Trial) -> list[torch.Tensor | None]:
    """Return the gradients of the sum of all results, by input and parameter; empty where there are none.

    Samples with infinite values are skipped: there, the side that is not selected may have no derivative.

    Raises:
        TimeLimitReached: it takes too long.
    """
    if trial.state is not None or not _is_finite(trial.sample):
        return []
    own = own_copy(trial.sample).map(_with_gradient)
    leaves = [leaf for leaf in pytree.tree_leaves((own.args, own.kwargs)) if _has_gradient(leaf)]
    leaves += [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with torch.enable_grad(), unchanged(model), without_output(), TimeLimit(SECONDS):
            results = [leaf for leaf in pytree.tree_leaves(own.call(model)) if _has_gradient(leaf)]
            if not results or not leaves:
                return []
            total = sum((result.sum() for result in results), torch.zeros(()))
            return list(torch.autograd.grad(total, leaves, allow_unused=True))
    # the model has no gradient: it writes in place into what one needs, or an operator of it has no derivative
    except (RuntimeError, NotImplementedError):
        return []


def _is_finite(sample: Sample) -> bool:
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    return all(bool(leaf.isfinite().all()) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _with_gradient(leaf: Any) -> Any:
    # a tensor that is computed, because a forward may write into its inputs
    is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.detach().clone().requires_grad_() if is_float else leaf


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()


def _is_raised_by_user(error: BaseException) -> bool:
    """Return whether the innermost instruction of an error is the user's own ``raise`` or ``assert``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not is_user_code(trace.tb_frame.f_code):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


__all__ = [
    "MOST_SAMPLES", "OPERATIONS_OF_DERIVED", "SECONDS_OF_DERIVED", "Answer", "Caller", "TimeLimitReached", "Trial",
    "further_trials", "gradients", "trials",
]  # fmt: skip


# Counting a model's calls of torch finds an endless loop early, on fast and slow machines alike.


class CountedCalls(TorchFunctionMode):
    """Counts the calls of torch, and ends the block when there are too many."""

    def __init__(self, most: float | None) -> None:
        super().__init__()
        self.count = 0
        self._most = most

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its calls counted, except those that restore its state."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return counted

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self._most is not None and self.count > self._most:
            raise TimeLimitReached
        if getattr(function, "__name__", "").startswith("linalg_"):
            _check_finite(args)
        return function(*args, **(kwargs or {}))


def _check_finite(args: tuple[Any, ...]) -> None:
    """Refuse values with which some routines of LAPACK end the process: ``eigvals`` of NaN does (torch 2.13)."""
    with torch.no_grad():
        for value in args:
            if isinstance(value, torch.Tensor) and not value.is_meta and not bool(value.isfinite().all()):
                raise RuntimeError("the matrix holds NaN or infinite values")


# Other values for the tensors of a call, so that conditions take their other side.


Change = Callable[[torch.Tensor], torch.Tensor]

_MOST_COLUMNS = 8


def usual_changes(samples: Sequence[Sample]) -> list[Change]:
    """Return the changes that are always tried: of floats, and of integers within and beside the seen range."""
    return [*_USUAL, *_integer_changes(*_range(samples))]


def changes_apart(samples: Sequence[Sample]) -> list[Change]:
    """Return the changes that are tried on one tensor of several."""
    low, high = _range(samples)
    return [scaled(-100), scaled(0.01), _floats(_random), partial(_drawn, low=low, high=high)]


def further_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """Yield the changes that are tried while a condition has taken one side only."""
    low, high = _range(samples)
    for value in (0.5, 2.0, -2.0, 10.0, 1e6, -1e6, torch.nan, torch.inf):
        yield _floats(partial(torch.full_like, fill_value=value))
    yield _floats(lambda t: t.flatten().sort().values.reshape(t.shape))
    yield _floats(lambda t: t.flatten().sort(descending=True).values.reshape(t.shape))
    yield lambda t: t[:1].expand_as(t).clone() if t.dim() else t
    yield _floats(lambda t: t + 50)
    yield _floats(lambda t: t - 50)
    for value in (50.0, -50.0):
        yield from (_floats(partial(_with_column, column=column, value=value)) for column in range(_MOST_COLUMNS))
        yield _floats(_with_first(value))
    for number in (high + 100, low - 100, 10 * high + 1000):
        yield partial(_filled, value=number)
    for number in (low, high, 0, low - 1, high + 1, high + 100):
        yield partial(_with_first_integer, value=number)


def changed(sample: Sample, change: Change, only: int | None = None) -> Sample:
    """Return the sample with other values in its tensors, or in one of them."""
    leaves, structure = pytree.tree_flatten((sample.args, sample.kwargs))
    tensors = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    for index in tensors if only is None else tensors[only : only + 1]:
        leaves[index] = change(leaves[index])
    args, kwargs = pytree.tree_unflatten(leaves, structure)
    return replace(sample, args=args, kwargs=kwargs, index=-1)


def tensor_count(sample: Sample) -> int:
    """Return the number of tensors of a call."""
    return sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves((sample.args, sample.kwargs)))


def scaled(factor: float) -> Change:
    """Multiply floating-point numbers by a factor."""
    return _floats(lambda t: t * factor)


def moved(number: int) -> Change:
    """Add a number to integers."""
    return lambda t: t + number if is_integer(t) and t.dtype != torch.bool else t


def filled() -> Change:
    """Replace zeros of floating-point tensors by ones, e.g. counters that are still 0."""
    return _floats(lambda t: torch.where(t == 0, 1.0, t))


def is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _floats(change: Change) -> Change:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return change(tensor).to(tensor.dtype) if tensor.is_floating_point() else tensor

    return changed


def _with_first(value: float) -> Change:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        other = tensor.clone().contiguous()
        other.view(-1)[: 1 if other.numel() else 0] = value
        return other

    return changed


def _with_column(tensor: torch.Tensor, column: int, value: float) -> torch.Tensor:
    other = tensor.clone()
    if other.dim() and column < other.shape[-1]:
        other[..., column] = value
    return other


def _random(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor.device)


# in the order in which they are tried
_USUAL = tuple(
    _floats(change)
    for change in (
        lambda t: -t, lambda t: t.abs(), lambda t: -t.abs(), lambda t: t * 100, lambda t: t * 0.01,
        lambda t: t * -100, lambda t: t.abs() * 100, lambda t: t.abs() * -100, lambda t: t * 1e-9, lambda t: t + 1,
        lambda t: t - 1, lambda t: t * 1e5, lambda t: t * 3, lambda t: t * 0.3, lambda t: t.sigmoid(),
        torch.zeros_like, torch.ones_like, _random, _with_first(torch.nan), _with_first(torch.inf),
        _with_first(0.0), lambda t: t.flatten().flip(0).reshape(t.shape),
    )
)  # fmt: skip


def _range(samples: Sequence[Sample]) -> tuple[int, int]:
    """Return the least and the largest value of all integers; 0 and 0 where there are none."""
    leaves = [leaf for sample in samples for leaf in pytree.tree_leaves((sample.args, sample.kwargs))]
    integers = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and is_integer(leaf) and leaf.numel()]
    lows, highs = [int(leaf.min()) for leaf in integers], [int(leaf.max()) for leaf in integers]
    return min(lows, default=0), max(highs, default=0)


def _integer_changes(low: int, high: int) -> Iterator[Change]:
    """Yield changes of integers: the ends of the seen range, values near and far, a random draw; bools are negated."""
    ends = (low, high, 0, 1, low - 1, high + 1, (low + high) // 2, low - 100, high + 100)
    for value in dict.fromkeys(ends):
        yield partial(_filled, value=value)
    yield partial(_drawn, low=low, high=high)
    yield lambda t: t.flatten().flip(0).reshape(t.shape) if is_integer(t) else t


def _filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    number: Any = bool(value) if tensor.dtype == torch.bool else value
    return torch.full_like(tensor, number) if is_integer(tensor) else tensor


def _with_first_integer(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return _with_first(value)(tensor) if is_integer(tensor) else tensor


def _drawn(tensor: torch.Tensor, low: int, high: int) -> torch.Tensor:
    if not is_integer(tensor):
        return tensor
    made = torch.randint(low, high + 1, tensor.shape, generator=torch.Generator().manual_seed(2))
    return made.to(tensor.device, tensor.dtype)
