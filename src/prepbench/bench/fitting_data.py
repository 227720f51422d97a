"""Check that data fits the axes, so that a mismatch is reported before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.errors import InputError
from prepbench.inputs import named_leaves
from prepbench.measure.batches import read_batches
from prepbench.measure.generation import Generation
from prepbench.measure.scores import takes_targets
from prepbench.running.empty_caches import is_nothing

_Shapes = Mapping[str, tuple[int, ...]]


def check_data_fits(
    model: nn.Module,
    axes: DynamicAxes,
    data: Sequence[Any] | Generation | None,
    metric: Callable[[Any, Any], Any] | None,
) -> None:
    """Raise ``InputError`` for the first size in the data that differs from a static axis.

    Args:
        model: the model that is called with the data.
        axes: of the compile.
        data: of the comparison; None where there is none of its own.
        metric: decides whether the data has targets.
    """
    if data is None:
        return
    for name, shapes in _shapes(model, data, metric):
        for axis in axes.axes:
            shape = shapes.get(axis.path, ())
            if axis.dim >= len(shape):
                continue
            size, place = shape[axis.dim], f"{axis.path}.shape[{axis.dim}]"
            if not axis.dynamic and size not in axis.sizes:
                raise InputError(
                    f"{place} is {size} in {name}, and the axes fix it at {axis.sizes[0]}. Make it dynamic in Axes, "
                    f"which is bench.set_axis({axis.path!r}, {axis.dim}, dynamic=True, linked=True) in Python, or give "
                    "data of that size: the compiled model would refuse this."
                )


def _shapes(
    model: nn.Module, data: Sequence[Any] | Generation, metric: Callable[[Any, Any], Any] | None
) -> Iterator[tuple[str, _Shapes]]:
    """Yield the shapes of the model's arguments by path, for each element of the data."""
    if isinstance(data, Generation):
        for index, prompt in enumerate(data.batches):
            # the length of what is read at once is not that of the prompt where PyTorch makes the first step
            yield f"prompts[{index}]", {name: tuple(value.shape[:1]) for name, value in prompt.given.items()}
        return
    for batch in read_batches([model], data, with_targets=takes_targets(metric)):
        leaves = named_leaves(model, batch.sample)
        yield (
            f"data[{batch.sample.index}]",
            {
                path: tuple(leaf.shape)
                for path, leaf in leaves
                if isinstance(leaf, torch.Tensor) and not is_nothing(leaf)
            },
        )
