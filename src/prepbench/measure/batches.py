"""The data of a comparison, read once, one batch at a time. Errors name the index of the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.errors import InputError
from prepbench.inputs import Sample, batch_size, forward_of
from prepbench.running.given_samples import Reader, is_value
from prepbench.running.transforms import check_batched, with_transform


@dataclass(frozen=True)
class Batch:
    """One element of the data: the call, its target (None without a metric) and the number of samples in it."""

    sample: Sample
    target: Any
    size: int


def read_batches(
    candidates: Iterable[Callable[..., Any]],
    data: Any,
    *,
    with_targets: bool,
    transform: Callable[[Any], Any] | None = None,
) -> Iterator[Batch]:
    """Yield the batches of ``data``, one at a time, in any form that :class:`Reader` reads.

    Raises:
        InputError: ``data`` is not an iterable, is empty, or an element is not an input (with targets: not a pair of an
            input and a target).
    """
    data = with_transform(data, transform, "data")
    check_batched("data", data)
    if is_value(data) or isinstance(data, Mapping | str) or not isinstance(data, Iterable):
        form, one = ("(input, target) pairs", "[(inputs, targets)]") if with_targets else ("inputs", "[inputs]")
        raise InputError(
            f"data must be an iterable of {form} (a list, generator or DataLoader), got {type(data).__name__}. Give "
            f"one batch as data={one}."
        )
    caller = _most_specific(list(candidates))
    reader = Reader(
        caller,
        "data",
        source=data,
        with_targets=with_targets,
    )
    index = -1
    for index, element in reader.elements():
        sample, target = _read(reader, element, index)
        if index == 0:
            reader.tell(None)
        size = batch_size(sample, target)
        if not index and not size:
            raise InputError("data[0] has no rows: all its tensors have a size of 0. Leave empty batches out.")
        yield Batch(sample, target, size)
    if index < 0:
        raise InputError(
            "data is empty: give at least one batch. A generator can be read only once; make a new one or a list."
        )


def _read(reader: Reader, element: Any, index: int) -> tuple[Sample, Any]:
    caller = reader.function
    try:
        return reader.read(element, index)
    except InputError as error:
        if not isinstance(error.__cause__, TypeError):
            raise
        owner = type(caller).__name__ if isinstance(caller, torch.nn.Module) else "the candidate"
        advice = (
            "An input is a tensor, a tuple of positional arguments (a dict of keyword arguments may end it), or a dict."
            if reader.with_targets
            else "Without a metric, data holds inputs alone: pass metric=... for (input, target) pairs, or drop the "
            "targets with data=(x for x, _ in loader)."
        )
        raise InputError(
            f"data[{index}]: the input does not fit {owner}.forward{_signature(caller)}: {error.__cause__}. {advice}"
        ) from error


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
