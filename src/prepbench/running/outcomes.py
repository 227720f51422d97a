"""Run a model or a program on a sample, and record everything that the call changes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.functorch_levels import functorch_levels_kept
from prepbench.inputs import Sample
from prepbench.interrupts import interruptible
from prepbench.patching import output_here, warnings_ignored_here
from prepbench.running.unchanged import NotedState, detached_copy, own_copy, unchanged


def run(function: Callable[..., Any], sample: Sample, model: torch.nn.Module) -> Any:
    """Return the output on one sample, under ``no_grad``, with ``model``, the sample and random state as before
    afterwards.
    """
    with torch.no_grad(), unchanged(model), functorch_levels_kept(), interruptible():
        # what a model returns may be one of its buffers, which unchanged() resets
        return detached_copy(own_copy(sample).call(function))


@contextmanager
def without_output() -> Iterator[None]:
    """Drop the output that the model prints in this thread during the block."""
    with output_here(io.StringIO()), warnings_ignored_here():
        yield


@dataclass(frozen=True)
class Outcome:
    """All effects of one call: its output, and the values of the caller's tensors and of the model's buffers after it.

    ``inputs`` holds the tensors that were given, by place; ``buffers`` those of the model, by name.
    """

    output: Any
    inputs: dict[int, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def outcome(
    function: Callable[..., Any], sample: Sample, model: torch.nn.Module, noted: NotedState | None = None
) -> Outcome:
    """Return all effects of one call under ``no_grad``, and undo them.

    Args:
        function: the callee.
        sample: with what.
        model: whose state the call may change.
        noted: that state, where it is noted already.
    """
    own = own_copy(sample)
    given = {i: leaf for i, leaf in enumerate(pytree.tree_leaves((own.args, own.kwargs))) if _is_tensor(leaf)}
    with torch.no_grad(), (noted or NotedState(model)).unchanged(), functorch_levels_kept(), interruptible():
        output = detached_copy(own.call(function))
        return Outcome(output, detached_copy(given), detached_copy(dict(model.named_buffers())))


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)
