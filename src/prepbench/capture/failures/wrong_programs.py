"""Compare a graph with its model on the samples, and describe the first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from prepbench.capture.failures.describe import describe_failure
from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.internal_errors import raise_if_internal
from prepbench.running.equality import ROUNDED, difference
from prepbench.running.outcomes import Outcome, outcome, without_output
from prepbench.running.unchanged import NotedState


class WrongProgram(RuntimeError):
    """Raised if a graph was made, but does not agree with the model."""


def problem(
    graph: Callable[..., Any],
    model: torch.nn.Module,
    samples: Sequence[Sample],
    expected: Sequence[Outcome],
    noted: NotedState | None = None,
) -> WrongProgram | None:
    """Return the first problem of a graph on the given samples, if there is one.

    Args:
        graph: the graph as something to call.
        model: the original; its buffers after a call are compared, too.
        samples: the inputs of both.
        expected: the outcomes of the model on the samples.
        noted: the state of the model, where it is noted already.
    """
    noted = noted or NotedState(model)
    for sample, wanted in zip(samples, expected, strict=True):
        try:
            actual = outcome(graph, sample, model, noted)
        except Exception as error:
            raise_if_internal(error)
            wrong = WrongProgram(f"The captured graph fails on sample {sample.index}, on which the model runs: {error}")
            wrong.__cause__ = error
            return wrong
        found = difference(wanted, actual, ROUNDED)
        if not found.equal:
            return WrongProgram(f"The captured graph and the model differ on sample {sample.index}: {found.text}.")
    return None


def unequal(graph: Callable[..., Any], model: torch.nn.Module, samples: Sequence[Sample]) -> Failure | None:
    """Return why a graph is wrong on a sample; ``None`` if it agrees with its model on all of them."""
    with without_output():
        wrong = problem(graph, model, samples, [outcome(model, sample, model) for sample in samples])
    if wrong is None:
        return None
    return describe_failure(wrong, fqn="", module_type=type(model).__name__, module=model)
