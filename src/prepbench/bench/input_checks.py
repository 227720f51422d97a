"""What the head of a bench says of its samples, data and metric when it opens, and what mends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from prepbench.bench.cards import StaticAxisError, axis_words
from prepbench.bench.compiling import check_sizes
from prepbench.bench.inputs import Inputs
from prepbench.bench.summary import InputNote
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.errors import CalibrationError, InputError, PrepbenchError, sentence
from prepbench.objects.copy import Twin
from prepbench.quantize.calibration import check_calibration
from prepbench.running.check_inputs import tensor_shapes
from prepbench.running.given_samples import result_on_copy
from prepbench.running.metric_scores import finite_number, takes_targets


def opening_notes(inputs: Inputs) -> tuple[InputNote, ...]:
    """Return what is wrong with samples, data and metric, and what was read otherwise than it stands there.

    The model runs once, on the first batch of the data, where there is a metric.
    """
    notes = [InputNote("", text) for text in inputs.remarks]
    model, tracing, calibration = inputs.model, inputs.tracing_inputs, inputs.calibration_inputs
    try:
        check_calibration(model, calibration)
        if calibration:
            tensor_shapes(model, [tracing[0], *calibration], with_counted=True)
    except CalibrationError as error:
        notes.append(InputNote("bad", str(error)))
    except PrepbenchError as error:
        notes.append(InputNote("bad", f"calibration_inputs do not fit tracing_inputs: {error}"))
    if (wrong := _metric_fails(inputs)) is not None:
        notes.append(InputNote("bad", wrong))
    return tuple(notes)


def axis_notes(
    inputs: Inputs, axes: DynamicAxes, refused: Mapping[tuple[str, int], str] = MappingProxyType({})
) -> Iterator[InputNote]:
    """Yield what a run would refuse for its size, or else a hint where only one size was seen.

    Args:
        inputs: of the bench.
        axes: as chosen.
        refused: why the model cannot run with another size of a dim, by argument and dim.
    """
    wrong = [axis for axis in axes.dynamic if (axis.path, axis.dim) in refused]
    if wrong:
        axis = wrong[0]
        paths = tuple(other.path for other in wrong if other.dim == axis.dim and other.symbol == axis.symbol)
        what = axis_words(axis.path, axis.dim)
        text = f"The model itself takes no other size of {what}: {refused[axis.path, axis.dim]}"
        yield InputNote("bad", text, f"Fix {what} at {axis.sizes[0]}", paths, axis.dim, dynamic=False)
        return
    try:
        check_sizes(axes, inputs)
    except StaticAxisError as error:
        what = axis_words(error.path, error.dim)
        reason = str(error).partition(". Make it dynamic")[0]
        text = f"{reason}: the compiled model would refuse this."
        yield InputNote("bad", text, f"Make {what} dynamic", (error.path,), error.dim)
        return
    except InputError as error:
        yield InputNote("bad", str(error))
        return
    batches = [axis for axis in axes.axes if axis.dim == 0]
    is_static = axes.axes and batches and not any(axis.dynamic for axis in axes.axes)
    if is_static and len(set(batches[0].sizes)) == 1 and (batches[0].path, 0) not in refused:
        sizes = "One sample" if len(inputs.tracing_inputs) == 1 else "All samples have one size"
        text = f"{sizes}, so the compiled model takes batches of {batches[0].sizes[0]} alone."
        yield InputNote("hint", text, "Make the batch dynamic", (batches[0].path,), 0)


def _metric_fails(inputs: Inputs) -> str | None:
    """Return why a metric does not fit the data; None where it does, or where that is not known."""
    metric, data = inputs.metric, inputs.data
    if metric is None or not takes_targets(metric) or not isinstance(data, Sequence) or inputs.first is None:
        return None
    sample, target = inputs.first
    output: Any = None
    with contextlib.suppress(Exception):  # a model that fails on its data says so when it is compared
        output = result_on_copy(Twin(inputs.model).model, sample)
    if output is None:
        return None
    name = getattr(metric, "__name__", "metric")
    try:
        with torch.no_grad():
            finite_number(metric(output, target))
    except Exception as error:  # a metric may raise anything
        return f"metric {name} fails on data[0]: {type(error).__name__}: {sentence(error)} It gets (output, target)."
    return None
