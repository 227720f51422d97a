"""Calls that a change is proven on: the samples, and others derived from them that take the other side."""

from __future__ import annotations

import contextlib
import dis
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.tensors import version_of
from prepbench.fixes.counted_calls import CountedCalls
from prepbench.fixes.other_values import (
    Change,
    changed,
    changes_apart,
    filled,
    further_changes,
    moved,
    scaled,
    tensor_count,
    usual_changes,
)
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.patching import patched_here
from prepbench.running.outcomes import Outcome, outcome, without_output
from prepbench.running.source_lines import is_user_code
from prepbench.running.time_limit import TimeLimit, TimeLimitReached
from prepbench.running.unchanged import NotedState, own_copy, unchanged

SECONDS = 3.0
"""How long one call of a changed model may take."""
SECONDS_OF_DERIVED = 1.0
"""How long one derived call of the original may take; a loop may have no end on made-up values."""
OPERATIONS_OF_DERIVED = 2000
"""How many calls of torch it may make, unless those on the samples make more; most loops without an end are told by
this, which takes less time and does not depend on the machine."""

MOST_SAMPLES = 4
_MOST_APART = 4
_MOST_COMPARED = 100_000
_RAISE = dis.opmap["RAISE_VARARGS"]


@dataclass
class Answer:
    """What one call gave.

    Attributes:
        outcome: output, the caller's tensors and buffers afterwards; None where it raised.
        written: parameters that were assigned anew or written into; all tensors of a model that has others.
        error: what it raised.
        is_wanted: whether the user's own ``raise`` or ``assert`` raised it.
    """

    LOOKUPS: ClassVar = (IndexError, KeyError)
    """What asks for something that is not there: no change may find anything there."""
    NUMBERS: ClassVar = (ZeroDivisionError, OverflowError, ValueError)
    """What Python's numbers refuse, where tensors give NaN or infinity."""

    outcome: Outcome | None = None
    written: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    is_wanted: bool = False

    @property
    def is_told(self) -> bool:
        """Whether the call belongs to what the model does: it gives a result, or an error that means something."""
        return self.error is None or self.is_wanted or self.is_lookup or self.is_of_numbers

    @property
    def is_lookup(self) -> bool:
        """Whether something was asked for that is not there."""
        return isinstance(self.error, self.LOOKUPS) and not self.is_wanted

    @property
    def is_of_numbers(self) -> bool:
        """Whether a Python number raised it that tensors have a value for."""
        texts = ("math domain", "math range", "division by zero", "cannot convert float", "too large")
        is_kind = isinstance(self.error, self.NUMBERS) and not self.is_wanted
        return is_kind and any(text in str(self.error) for text in texts)


@dataclass(frozen=True)
class Trial:
    """One call of one module.

    Attributes:
        sample: its arguments.
        is_given: whether they are the user's; others are derived from them.
        state: what parameters and buffers are changed by, because a condition may ask for them.
    """

    sample: Sample
    is_given: bool
    state: Change | None = None


def trials(samples: Sequence[Sample], *, has_state: bool = True) -> list[Trial]:
    """The samples, and the same with other values; no call stands there twice.

    Args:
        samples: what was given.
        has_state: whether the module has tensors that a call can have other values of.
    """
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
    return [*_distinct([*(Trial(sample, True) for sample in given), *derived, *apart]), *states]


def _distinct(found: Sequence[Trial]) -> list[Trial]:
    """The trials whose arguments have values that no earlier one has; all that were given."""
    seen: set[Any] = set()
    kept = []
    for trial in found:
        values = _values(trial.sample)
        if trial.is_given or values not in seen:
            kept.append(trial)
        seen.add(values)
    return kept


def _values(sample: Sample) -> Any:
    """What tells calls that are derived from the samples apart: their tensors, by digest or, if large, by identity."""
    leaves = [leaf for leaf in pytree.tree_leaves((sample.args, sample.kwargs)) if isinstance(leaf, torch.Tensor)]
    return tuple((tuple(leaf.shape), leaf.dtype, _digest(leaf)) for leaf in leaves)


def _digest(tensor: torch.Tensor) -> Any:
    if tensor.numel() > _MOST_COMPARED or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return id(tensor)
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def further_trials(samples: Sequence[Sample]) -> Iterator[Trial]:
    """More calls, for conditions that have met one side only."""
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
    """Calls one model, again and again; model, samples and random numbers stay as they are.

    Args:
        model: a model of ours, which nobody else changes meanwhile.

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
        """What the model gives in one call.

        Args:
            trial: the call.
            is_compiling: run what the model keeps for the time when it is traced.
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
                return Answer(error=error, is_wanted=_is_wanted(error))
            finally:
                self.operations = max(self.operations, counted.count)


def _cond(condition: Any, if_true: Callable[..., Any], if_false: Callable[..., Any], operands: Any = ()) -> Any:
    return (if_true if condition else if_false)(*operands)


def _called(model: torch.nn.Module, state: Change | None, written: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """The model, or a call of it with other values of its tensors; what it writes to these is noted."""
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
    """What changes when a parameter gets other data, or is written into."""
    return parameter.data_ptr(), version_of(parameter)


def gradients(model: torch.nn.Module, trial: Trial) -> list[torch.Tensor | None]:
    """The gradients of the sum of all results, by input and parameter; empty where there are none.

    What is computed and not chosen may have no derivative at infinity, where nobody asks for one.

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


def _is_wanted(error: BaseException) -> bool:
    """Whether the innermost instruction of an error is the user's own ``raise`` or ``assert``, wherever in its line."""
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
