"""The samples of a compile: read once, and converted to calls of the flat program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.calls.call_spec import CallSpec
from prepbench.capture.aten.captured import Captured
from prepbench.capture.aten.holds_where import paths_of, sizes_by_place
from prepbench.capture.aten.trial_calls import breaks
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import linked_axes, resized, sizes_in, with_sums
from prepbench.errors import InputError
from prepbench.inputs import Sample, check_dense, named_leaves
from prepbench.running.check_inputs import alike_samples


def read_samples(
    function: Callable[..., Any],
    tracing: Any,
    calibration: Any,
    transform: Callable[[Any], Any] | None,
    name: str = "tracing_inputs",
) -> tuple[list[Sample], list[Sample]]:
    """Return tracing and calibration samples. An iterable that is given for both is read once.

    Errors call the former ``name``.
    """
    calibrating = (
        []
        if calibration is None
        else alike_samples(function, calibration, name="calibration_inputs", data_transform_fn=transform)
    )
    check_dense(calibrating, function, "calibration_inputs")
    if calibration is not None and (tracing is None or tracing is calibration):
        return calibrating, calibrating
    traced = alike_samples(function, tracing, name=name, data_transform_fn=transform)
    check_dense(traced, function, name)
    return traced, calibrating


def with_static_sizes_of_first(
    samples: Sequence[Sample], axes: DynamicAxes, function: Callable[..., Any]
) -> list[Sample]:
    """Return the samples that have the sizes of the first one in all dims that ``axes`` declares static."""
    dynamic = {(axis.path, axis.dim) for axis in axes.dynamic}

    def static_sizes(sample: Sample) -> dict[tuple[str, int], int]:
        return {
            (path, dim): size
            for path, leaf in named_leaves(function, sample)
            if isinstance(leaf, torch.Tensor)
            for dim, size in enumerate(leaf.shape)
            if (path, dim) not in dynamic
        }

    first = static_sizes(samples[0])
    return [sample for sample in samples if static_sizes(sample) == first]


def of_different_sizes(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first samples of different sizes, at most four and at least two."""
    found: dict[Any, Sample] = {}
    for sample in samples:
        leaves = pytree.tree_flatten((sample.args, sample.kwargs))[0]
        found.setdefault(tuple(tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves), sample)
    return [*found.values()][:4] if len(found) > 1 else list(samples[:2])


def with_other_sizes(captured: Captured) -> list[Sample]:
    """Return the first sample with unseen sizes in all dynamic dims; it may not run.

    The sizes meet the conditions of the graph; nothing is returned if no such sizes are found.
    """
    groups = linked_axes(captured.axes)
    if not groups:
        return []
    first = min(captured.samples, key=lambda sample: sum(sizes_in(captured.model, sample).values()))
    sizes = sizes_in(captured.model, first)
    paths, conditions = paths_of(captured.program, captured.model), captured.conditions
    for further in range(16):
        changes = {}
        for place, (symbol, axes) in enumerate(groups.items()):
            seen = {size - axes[0].sizes[0] for size in axes[0].sizes}
            now = sizes.get((axes[0].path, axes[0].dim), axes[0].sizes[0]) - axes[0].sizes[0]
            changes[symbol] = next(step for step in range(1 + place + further, 99) if now + step not in seen)
        made = resized(captured.model, first, with_sums(changes, groups, sizes), groups)
        found = sizes_by_place(captured.model, paths, made)
        if not any(breaks(found, condition) for condition in conditions):
            return [made]
    return []


def flat_samples(samples: Sequence[Sample], call_spec: CallSpec) -> list[Sample]:
    """Return the calibration samples as calls of the flat program.

    Raises:
        InputError: a sample is nested differently from the tracing inputs.
    """
    result = []
    for sample in samples:
        try:
            leaves = call_spec.flatten(sample.args, sample.kwargs)
            result.append(Sample(tuple(map(_without_class, leaves)), {}, sample.index))
        except InputError as error:
            raise InputError(f"calibration_inputs[{sample.index}]: {error}") from error
    return result


def _without_class(leaf: Any) -> Any:
    """Return a tensor whose class only adds methods as a plain one; what is computed from it would be of its class."""
    if not isinstance(leaf, torch.Tensor) or type(leaf) is torch.Tensor:
        return leaf
    is_wrapper = type(leaf).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return leaf if is_wrapper else leaf.as_subclass(torch.Tensor)


def as_call(sample: Any) -> Sample:
    """Return one sample from any form that ``calibration_inputs`` take."""
    if isinstance(sample, Mapping):
        return Sample((), dict(sample))
    if not isinstance(sample, tuple):
        return Sample((sample,))
    if sample and isinstance(sample[-1], dict):
        return Sample(sample[:-1], sample[-1])
    return Sample(sample)
