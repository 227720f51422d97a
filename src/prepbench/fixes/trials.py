"""Calls that a change is proven on: the samples, and others derived from them that take the other side."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample
from prepbench.patching import patched_here
from prepbench.running.outcomes import Outcome, outcome, without_output
from prepbench.running.source_lines import is_user_code
from prepbench.running.time_limit import TimeLimit, TimeLimitReached
from prepbench.running.unchanged import own_copy, unchanged

SECONDS = 3.0
"""How long one derived call may take; a loop may have no end on made-up values."""

MOST_SAMPLES = 4


@dataclass
class Answer:
    """What one call gave.

    Attributes:
        outcome: output, the caller's tensors and buffers afterwards; None where it raised.
        gradients: of the inputs and parameters, None where there are none; not asked for where it raised.
        error: what it raised.
        is_wanted: whether the user's own ``raise`` or ``assert`` raised it.
    """

    outcome: Outcome | None = None
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    error: Exception | None = None
    is_wanted: bool = False


@dataclass(frozen=True)
class Trial:
    """One call of one module.

    Attributes:
        sample: its arguments.
        is_given: whether they are the user's; others are derived from them.
        scale: what parameters and buffers of floating-point numbers are multiplied with, because a condition may ask
            for them.
    """

    sample: Sample
    is_given: bool
    scale: float = 1.0


def trials(samples: Sequence[Sample]) -> list[Trial]:
    """The samples, and the same with other values."""
    given = list(samples[:MOST_SAMPLES])
    ranges = _ranges(given)
    derived = [
        Trial(_changed(sample, change), False)
        for change in (*_CHANGES, *_integer_changes(ranges))
        for sample in given[:2]
    ]
    scaled = [Trial(replace(given[0], index=-1), False, scale) for scale in (0.0, 0.1, -1.0, 10.0)] if given else []
    return [*(Trial(sample, True) for sample in given), *derived, *scaled]


def _changed(sample: Sample, change: Callable[[torch.Tensor], torch.Tensor]) -> Sample:
    def leaf(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) else value

    return replace(sample.map(leaf), index=-1)


def _floats(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return change(tensor).to(tensor.dtype) if tensor.is_floating_point() else tensor

    return changed


def _with_one(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def changed(tensor: torch.Tensor) -> torch.Tensor:
        other = tensor.clone().contiguous()
        other.view(-1)[: 1 if other.numel() else 0] = value
        return other

    return changed


def _random(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)).to(tensor.device)


_CHANGES = tuple(
    _floats(change)
    for change in (
        lambda t: -t, lambda t: t.abs(), lambda t: -t.abs(), lambda t: t * 100, lambda t: t * 0.01,
        lambda t: t * -100, lambda t: t.abs() * 100, lambda t: t.abs() * -100, lambda t: t * 1e-9, lambda t: t + 1,
        lambda t: t - 1, lambda t: t * 1e5, lambda t: t * 3, lambda t: t * 0.3, lambda t: t.sigmoid(),
        torch.zeros_like, torch.ones_like, _random, _with_one(torch.nan), _with_one(torch.inf),
        _with_one(0.0), lambda t: t.flatten().flip(0).reshape(t.shape),
    )
)  # fmt: skip


def _ranges(samples: Sequence[Sample]) -> dict[int, Any]:
    """The least and the largest value of each integer leaf."""
    found: dict[int, Any] = {}
    for sample in samples:
        for index, leaf in enumerate(pytree.tree_leaves((sample.args, sample.kwargs))):
            if isinstance(leaf, torch.Tensor) and _is_integer(leaf) and leaf.numel():
                low, high = int(leaf.min()), int(leaf.max())
                known = found.get(index, (low, high))
                found[index] = min(low, known[0]), max(high, known[1])
    return found


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _integer_changes(ranges: dict[int, Any]) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Other integers: the ends of what was seen, zero, one more, and a draw; bools the other way round."""
    if not ranges:
        return
    low, high = min(pair[0] for pair in ranges.values()), max(pair[1] for pair in ranges.values())
    for value in dict.fromkeys((low, high, 0, 1, low - 1, high + 1, (low + high) // 2)):
        yield partial(_filled, value=value)
    yield partial(_drawn, low=low, high=high)
    yield lambda t: t.flatten().flip(0).reshape(t.shape) if _is_integer(t) else t


def _filled(tensor: torch.Tensor, value: int) -> torch.Tensor:
    return (
        torch.full_like(tensor, bool(value) if tensor.dtype == torch.bool else value) if _is_integer(tensor) else tensor
    )


def _drawn(tensor: torch.Tensor, low: int, high: int) -> torch.Tensor:
    if not _is_integer(tensor):
        return tensor
    made = torch.randint(low, high + 1, tensor.shape, generator=torch.Generator().manual_seed(2))
    return made.to(tensor.device, tensor.dtype)


def answer(model: torch.nn.Module, trial: Trial, *, is_compiling: bool = False, gradients: bool = True) -> Answer:
    """What a model gives in one call; model, sample and random numbers stay as they are.

    Args:
        trial: the call.
        is_compiling: run what the model keeps for the time when it is traced.
        gradients: also compute gradients.

    Raises:
        TimeLimitReached: it takes too long.
    """
    sample, function = trial.sample, _called(model, trial.scale)
    flags = patched_here(torch.compiler, "is_compiling", lambda: True) if is_compiling else without_output()
    with without_output(), TimeLimit(SECONDS), flags:
        try:
            found = outcome(function, sample, model)
        except Exception as error:
            return Answer(error=error, is_wanted=_is_wanted(error))
        # what is computed and not chosen may have no derivative at infinity, where nobody asks for one
        return Answer(found, _gradients(model, sample) if gradients and trial.scale == 1 and _is_finite(sample) else [])


def _called(model: torch.nn.Module, scale: float) -> Callable[..., Any]:
    """The model, or a call of it with other values of its tensors."""
    if scale == 1:
        return model
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    floats = {name: tensor.detach() * scale for name, tensor in tensors.items() if tensor.is_floating_point()}

    def called(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(model, floats, args, kwargs)

    return called if floats else model


def _is_finite(sample: Sample) -> bool:
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    return all(bool(leaf.isfinite().all()) for leaf in leaves if isinstance(leaf, torch.Tensor))


def _gradients(model: torch.nn.Module, sample: Sample) -> list[torch.Tensor | None]:
    """The gradients of the sum of all results, by input and parameter; empty where there are none."""
    own = own_copy(sample).map(_with_gradient)
    leaves = [leaf for leaf in pytree.tree_leaves((own.args, own.kwargs)) if _has_gradient(leaf)]
    leaves += [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with torch.enable_grad(), unchanged(model):
            results = [leaf for leaf in pytree.tree_leaves(own.call(model)) if _has_gradient(leaf)]
            if not results or not leaves:
                return []
            total = sum((result.sum() for result in results), torch.zeros(()))
            return list(torch.autograd.grad(total, leaves, allow_unused=True))
    except (RuntimeError, NotImplementedError):  # the model runs under no_grad only
        return []


def _with_gradient(leaf: Any) -> Any:
    # a tensor that is computed, because a forward may write into its inputs
    is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.detach().clone().requires_grad_() if is_float else leaf


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()


def _is_wanted(error: BaseException) -> bool:
    """Whether the innermost line of an error is the user's own ``raise`` or ``assert``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not is_user_code(trace.tb_frame.f_code):
        return False
    line = linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return line.strip().startswith(("raise", "assert"))


__all__ = ["MOST_SAMPLES", "Answer", "TimeLimitReached", "Trial", "answer", "trials"]
