"""Runs of an instrumented copy of a user's function, on the samples and on other values of the same shapes."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.fixes.function_source import FunctionSource, Place
from prepbench.fixes.kinds.kind import RewriteKind
from prepbench.inputs import Sample
from prepbench.running.outcomes import Outcome, outcome, without_output
from prepbench.running.replaced_forward import replaced_forward
from prepbench.running.twin import Twin


def places_to_change(
    kind: RewriteKind, source: FunctionSource, model: torch.nn.Module, fqn: str, samples: Sequence[Sample]
) -> set[Place]:
    """Where a submodule's forward needs this kind of change, found by running an instrumented copy."""
    found: set[Place] = set()

    def probe(place: Place, value: Any) -> Any:
        if kind.needs_change(value):
            found.add(place)
        return value

    function = source.instrumented(kind.instrument, probe)
    for sample in variants(samples):
        try:
            run_with(model, fqn, function, sample)
        except Exception:  # a made-up value that the model does not take
            continue
    return found


def run_with(model: torch.nn.Module, fqn: str, function: Any, sample: Sample) -> Outcome:
    """The result of a call, and the buffers after it, with ``function`` as the forward of one submodule.

    The model is left as it was.
    """
    model = Twin(model).model
    forward = types.MethodType(function, model.get_submodule(fqn))
    with without_output(), replaced_forward(model, fqn, forward):
        # a branch that adds in place to what may be its argument stops doing so when both sides are computed
        return replace(outcome(model, sample, model), inputs={})


def variants(samples: Sequence[Sample]) -> Iterator[Sample]:
    """The samples, and the same with other values of their floating-point tensors."""
    changes: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: t, lambda t: -t, lambda t: t.abs(), lambda t: -t.abs(), lambda t: t * 100, lambda t: t * 0.01,
        lambda t: t * -100, lambda t: t.abs() * 100, lambda t: t.abs() * -100,
        torch.zeros_like, torch.ones_like, lambda t: torch.full_like(t, torch.nan),
        lambda t: t.flatten().flip(0).reshape(t.shape),
    ]  # fmt: skip
    for change in changes:
        for sample in samples:
            yield sample.map(functools.partial(_changed, change))


def _changed(change: Callable[[torch.Tensor], torch.Tensor], leaf: Any) -> Any:
    return change(leaf) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
