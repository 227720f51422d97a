"""The data of a comparison, read once, one batch at a time. Errors name the index of the batch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.errors import InputError
from prepbench.inputs import Sample, forward_of, normalize_samples


@dataclass(frozen=True)
class Batch:
    """One element of the data: the call, its target (None without a metric) and the number of samples in it."""

    sample: Sample
    target: Any
    size: int


def read_batches(candidates: Iterable[Callable[..., Any]], data: Any, *, with_targets: bool) -> Iterator[Batch]:
    """Yield the batches of ``data``, one at a time.

    Raises:
        InputError: ``data`` is not an iterable, is empty, or an element is not an input (with targets: not a pair of an
            input and a target).
    """
    if isinstance(data, torch.Tensor | Mapping) or not isinstance(data, Iterable):
        form = "(input, target) pairs" if with_targets else "inputs"
        raise InputError(
            f"data must be an iterable of {form} (a list, generator or DataLoader), got {type(data).__name__}."
        )
    caller = _most_specific(list(candidates))
    index = -1
    for index, element in enumerate(data):
        given, target = _split(element, index) if with_targets else (element, None)
        sample = _as_sample(caller, given, index, with_targets)
        yield Batch(sample, target, batch_size(sample))
    if index < 0:
        raise InputError(
            "data is empty: give at least one batch. A generator can be read only once; make a new one or a list."
        )


def batch_size(sample: Sample) -> int:
    """Return the size of the first dimension of the first tensor that has one; 1 if none has."""
    for leaf in pytree.tree_leaves((sample.args, sample.kwargs)):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            return int(leaf.shape[0])
    return 1


def _split(element: Any, index: int) -> tuple[Any, Any]:
    if isinstance(element, tuple | list) and len(element) == 2 and not hasattr(element, "_fields"):
        return element[0], element[1]
    length = f" of length {len(element)}" if isinstance(element, tuple | list) else ""
    raise InputError(
        f"data[{index}] must be a pair (input, target) because a metric is given, "
        f"got {type(element).__name__}{length}. Convert the batches of a DataLoader with a generator: "
        "data=((b['pixels'], b['label']) for b in loader); "
        "several inputs go into one tuple: ((a, b), target). Without targets, leave metric out."
    )


def _as_sample(caller: Callable[..., Any], given: Any, index: int, with_targets: bool) -> Sample:
    try:
        [sample] = normalize_samples(caller, [given], name="data")
    except InputError as error:
        if error.__cause__ is None:  # it is about a tensor
            raise InputError(str(error).replace("data[0]", f"data[{index}]", 1)) from error
        owner = type(caller).__name__ if isinstance(caller, torch.nn.Module) else "the candidate"
        advice = (
            "An input is a tensor, a tuple of positional arguments (a dict of keyword arguments may end it), or a dict."
            if with_targets
            else "Without a metric, data holds inputs alone: pass metric=... for (input, target) pairs, or drop the "
            "targets with data=(x for x, _ in loader)."
        )
        cause = error.__cause__ or error
        raise InputError(
            f"data[{index}]: the input does not fit {owner}.forward{_signature(caller)}: {cause}. {advice}"
        ) from error
    return dataclasses.replace(sample, index=index)


def _most_specific(candidates: list[Callable[..., Any]]) -> Callable[..., Any]:
    """Return the first candidate whose ``forward`` names its parameters; any input would fit ``*args, **kwargs``."""
    for candidate in candidates:
        signature = _signature(candidate)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        if signature is not None and any(p.kind not in variadic for p in signature.parameters.values()):
            return candidate
    return candidates[0]


def _signature(candidate: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(forward_of(candidate))
    except (TypeError, ValueError):  # builtins without a signature
        return None
