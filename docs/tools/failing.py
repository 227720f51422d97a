"""For each kind of failure a model that has it: shown on the page of errors, run by the tests."""

from __future__ import annotations

import copy
import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.capture.failures import describe


@dataclass(frozen=True)
class Example:
    """How a kind of failure comes about.

    Attributes:
        cause: what it means.
        failing: a model that has it.
        advised: the same model changed so that it can be captured; None where that is not a matter of its source.
        found_by: the failures of the model, on two samples of 2 × 4 and 3 × 4.
        remedy: for kinds that no reason in the code has a remedy for.
    """

    cause: str
    failing: type[nn.Module]
    found_by: Callable[[nn.Module], tuple[Any, ...]]
    advised: type[nn.Module] | None = None
    remedy: str = ""


SAMPLES = [torch.linspace(-1, 2, 8).view(2, 4), torch.linspace(-2, 1, 12).view(3, 4)]


def by_tracing(model: nn.Module) -> tuple[Any, ...]:
    """Without samples: values are stand-ins."""
    return pb.recursive_trace(model).failures


def by_tracing_samples(model: nn.Module) -> tuple[Any, ...]:
    """At module level, on samples."""
    return pb.recursive_trace(model, inputs=SAMPLES).failures


def by_capture(model: nn.Module) -> tuple[Any, ...]:
    """As one ATen graph, on samples."""
    try:
        return pb.capture(model, SAMPLES).leaves
    except FullGraphError as error:
        return error.failures


def by_checking(model: nn.Module) -> tuple[Any, ...]:
    """By all ways of tracing."""
    return pb.check_traceability(model, SAMPLES).failures


def in_short_time(model: nn.Module) -> tuple[Any, ...]:
    """By all ways of tracing, each with too little time."""
    return pb.check_traceability(model, SAMPLES[:1], time_limit=0.05).failures


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1


class NoBranch(nn.Module):
    def forward(self, x):
        return torch.where(x.sum() > 0, x * 2, x - 1)


class Number(nn.Module):
    def forward(self, x):
        return x * math.sqrt(x.square().sum())


class NoNumber(nn.Module):
    def forward(self, x):
        return x * torch.sqrt(x.square().sum())


class Numpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sin(x.numpy()))


class NoNumpy(nn.Module):
    def forward(self, x):
        return torch.sin(x)


class Rows(nn.Module):
    def forward(self, x):
        return torch.stack([row.cumsum(0) * 2 for row in x])


class NoRows(nn.Module):
    def forward(self, x):
        return torch.vmap(lambda row: row.cumsum(0) * 2)(x)


class Solves(nn.Module):
    def forward(self, x):
        square = x.t()[:2, :2] + 9 * torch.eye(2)
        return torch.linalg.lstsq(square, torch.eye(2)).solution


class NoSolution(nn.Module):
    def forward(self, x):
        square = x.t()[:2, :2] + 9 * torch.eye(2)
        return torch.linalg.pinv(square)


class Prints(nn.Module):
    def forward(self, x):
        print("mean", x.mean())  # noqa: T201
        return x * 2


class NoPrint(nn.Module):
    def forward(self, x):
        if not torch.compiler.is_compiling():
            print("mean", x.mean())  # noqa: T201
        return x * 2


class Copies(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return copy.deepcopy(self.layer)(x)


class NoCopy(Copies):
    def forward(self, x):
        return torch.func.functional_call(self.layer, dict(self.layer.named_parameters()), (x,))


class Assigns(nn.Module):
    def forward(self, x):
        x = x * 2
        x[:, 0] = 1
        return x


class NoAssignment(nn.Module):
    def forward(self, x):
        x = x * 2
        return torch.cat([torch.ones_like(x[:, :1]), x[:, 1:]], dim=1)


class Iterates(nn.Module):
    def forward(self, x):
        return [row * 2 for row in x]


class NoIteration(nn.Module):
    def forward(self, x):
        return x * 2


class Histogram(nn.Module):
    def forward(self, x):
        return torch.histogram(x.flatten(), bins=4, range=(-4.0, 4.0)).hist


def scaled(x, factor):
    return x * factor


class Keywords(nn.Module):
    def forward(self, **values):
        return scaled(**values)


class NoKeywords(nn.Module):
    def forward(self, x, factor):
        return scaled(x, factor)


class Generator(nn.Module):
    def forward(self, x):
        return (x * factor for factor in (1, 2))


class NoGenerator(nn.Module):
    def forward(self, x):
        return tuple(x * factor for factor in (1, 2))


class Formats(nn.Module):
    def forward(self, x):
        label = f"{x.shape[0]:d} rows"
        return x * len(label)


class Collects(nn.Module):
    def forward(self, x):
        gc.collect()
        return x * 2


class NoCollecting(nn.Module):
    def forward(self, x):
        return x * 2


class Refuses(nn.Module):
    def forward(self, x):
        return x + torch.zeros(x.shape[0], 4)


class NoRefusal(nn.Module):
    def forward(self, x):
        return x + x.new_zeros(4)


class Sleeps(nn.Module):
    def forward(self, x):
        time.sleep(0.2)
        return x * 2


class Unlike(nn.Module):
    def forward(self, x):
        return x * 2 if isinstance(x, torch.Tensor) and x.sum() > 0 else -x


KINDS = {
    describe.BRANCH: Example(
        "The values of a tensor decide which way Python goes. A graph has one way for all values.",
        Branch, by_capture, NoBranch,
    ),
    describe.NUMBER: Example(
        "A tensor became a number of Python's, which the graph would hold as a constant.", Number, by_capture, NoNumber
    ),
    describe.NUMPY: Example(
        "The computation leaves torch for NumPy, which no tracer follows.", Numpy, by_tracing, NoNumpy
    ),
    describe.SHAPE: Example(
        "The graph holds for the sizes of a sample only: a size became a number, a number of steps or a choice.",
        Rows, by_tracing_samples, NoRows,
    ),
    describe.DATA_SHAPE: Example(
        "The size of a result depends on the values of a tensor, so that what follows has no size.",
        Solves, by_capture, NoSolution,
    ),
    describe.SIDE_EFFECT: Example(
        "The line does something besides computing: it prints, logs, reads a file or the clock. A graph computes only.",
        Prints, by_checking, NoPrint,
    ),
    describe.UNSUPPORTED: Example(
        "The tracer, or the target, has no such operator, or loses where a tensor comes from.",
        Copies, by_capture, NoCopy,
    ),
    describe.MUTATION: Example(
        "A tensor or an attribute is changed in place where the way of tracing cannot follow it.",
        Assigns, by_checking, NoAssignment,
    ),
    describe.ITERATION: Example(
        "Python iterates over a tensor whose length is not known while it is traced.", Iterates, by_tracing, NoIteration
    ),
    describe.NO_FAKE: Example(
        "An operator does not say which size its result has, so that nothing after it can be traced.",
        Histogram, by_capture,
    ),
    describe.SIGNATURE: Example(
        "The arguments of forward cannot be told from its signature. With samples they are known.",
        Keywords, by_tracing, NoKeywords,
    ),
    describe.OUTPUT: Example(
        "The module returns something that a graph cannot return.", Generator, by_capture, NoGenerator
    ),
    describe.PYTHON_CALL: Example(
        "A stand-in for a tensor or a size reached a function that needs the value itself.",
        Formats, by_tracing,
    ),
    describe.GRAPH_BREAK: Example(
        "A construct of Python that dynamo cannot follow splits the graph in two.", Collects, by_checking, NoCollecting
    ),
    describe.ERROR: Example(
        "The forward raised an error while it was traced, without samples or with these.",
        Refuses, by_tracing, NoRefusal,
    ),
    describe.TIME_LIMIT: Example(
        "A way of tracing took longer than it may.", Sleeps, in_short_time,
        remedy="Give ``check_traceability`` a larger ``time_limit=``, or samples of smaller sizes.",
    ),
    describe.DIFFERS: Example(
        "A graph was made, but gives other values than the model on a sample.", Unlike, by_checking, NoBranch
    ),
}  # fmt: skip
"""An example for each kind; a test holds the kinds to those of the code."""
