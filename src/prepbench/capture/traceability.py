"""Which ways of tracing a model pass, and every reason why the others do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from prepbench._display import view
from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.failures.describe import describe_failure, failure_line
from prepbench.capture.failures.graph_breaks import fullgraph_failure, graph_breaks
from prepbench.capture.failures.reasons import TIME_LIMIT
from prepbench.capture.failures.reproduce import with_reproduction
from prepbench.capture.modules.collection import recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import base_sample
from prepbench.checks import described
from prepbench.document.model import Failure
from prepbench.errors import UnknownNameError
from prepbench.inputs import Sample
from prepbench.running.callable_module import as_module
from prepbench.running.outcomes import without_output
from prepbench.running.time_limit import TimeLimit, TimeLimitReached
from prepbench.running.tracing import tracing
from prepbench.running.twin import Twin

DYNAMO, EXPORT, SYMBOLIC, VALUES = "dynamo", "torch.export", "symbolic trace", "trace with inputs"
Operators = Callable[[torch.export.ExportedProgram], Iterable[Failure]]


@dataclass(frozen=True)
class Check:
    """One way of tracing.

    Attributes:
        name: ``"dynamo"`` (one graph, dynamic shapes), ``"torch.export"``, ``"symbolic trace"`` (``torch.fx``, no
            inputs), ``"trace with inputs"`` (module graph by values), or ``"operators of <target>"``.
        passed: whether the whole model is one graph that way.
        failures: every reason why not.
        seconds: how long it took.
        timed_out: whether it was ended by the time limit.
    """

    name: str
    passed: bool
    failures: tuple[Failure, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    timed_out: bool = False


class Proposal(Protocol):
    """A proposed change to one function, such as :class:`prepbench.fixes.Rewrite`."""

    @property
    def fqn(self) -> str:
        """The first module that the change is for."""

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty when nothing can be proposed."""

    @property
    def reason(self) -> str:
        """Why nothing is proposed."""


@dataclass(frozen=True, repr=False)
class TraceabilityReport:
    """What :func:`prepbench.check_traceability` found.

    Attributes:
        model_type: class name of the model.
        checks: one result for each way of tracing.
        rewrites: proposed changes of ``forward`` for branches on tensor values.
    """

    model_type: str
    checks: tuple[Check, ...]
    rewrites: tuple[Proposal, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether one of the ways gives the whole model as one graph, and the target, if any, takes all operators."""
        ways = [check.passed for check in self.checks if check.name in (DYNAMO, EXPORT, SYMBOLIC, VALUES)]
        return any(ways) and all(check.passed for check in self.checks if check.name.startswith("operators"))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failing line of every module once, as the first check that met it describes it."""
        found: dict[Any, Failure] = {}
        for check in self.checks:
            for failure in check.failures:
                found.setdefault((failure.fqn, failure.source or failure.message), failure)
        return tuple(found.values())

    def __getitem__(self, name: str) -> Check:
        """The check of this name.

        Raises:
            UnknownNameError: there is none; the message lists the names.
        """
        for check in self.checks:
            if check.name == name:
                return check
        known = [check.name for check in self.checks]
        raise UnknownNameError(f"name: there is no check called {described(name)}. Choose one of {known}.")

    def table(self) -> Any:
        """One row for each check and failure, as a pandas ``DataFrame``."""
        return view("views.tables", "traceability_table", self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "traceability_bundle", self)

    def __repr__(self) -> str:
        verdict = "can be traced" if self.passed else "cannot be traced as a whole"
        lines = [f"{self.model_type} {verdict}"]
        for check in self.checks:
            state = "passed" if check.passed else "time limit reached" if check.timed_out else "failed"
            lines.append(f"  {check.name}: {state}" + (f", {len(check.failures)} reasons" if check.failures else ""))
        for failure in self.failures:
            lines += [
                f"- {failure_line(failure)}",
                *_indented(failure.frame or (failure.source.code if failure.source else "")),
            ]
            lines += [f"    {failure.exception_type}: {failure.message.splitlines()[0]}", f"    {failure.remedy}"]
        for rewrite in self.rewrites:
            lines += [f"Proposed for {rewrite.fqn or 'the model'}:", *_indented(rewrite.diff or rewrite.reason)]
        return "\n".join(lines)


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def check_ways(
    module_or_func: Callable[..., Any],
    samples: list[Sample],
    *,
    time_limit: float,
    operators: Operators | None,
    target: str,
) -> TraceabilityReport:
    """Try every way of tracing on checked samples; see :func:`prepbench.check_traceability`."""
    model = as_module(module_or_func)
    axes = DynamicAxes.infer(samples, module_or_func)
    captured: list[Captured] = []
    checks = [
        _checked(DYNAMO, time_limit, lambda part: _dynamo(part, base_sample(model, samples, axes)), model),
        _checked(EXPORT, time_limit, lambda part: _export(part, samples, captured), module_or_func),
        _checked(SYMBOLIC, time_limit, _symbolic, module_or_func),
        _checked(VALUES, time_limit, lambda part: _values(part, samples), module_or_func),
    ]
    if operators is not None:
        checks.append(_operators(f"operators of {target}", captured, operators))
    checks = [replace(check, failures=with_reproduction(check.failures, model, samples)) for check in checks]
    return TraceabilityReport(type(model).__name__, tuple(checks))


def _checked(name: str, limit: float, attempt: Callable[[Any], list[Failure]], model: Callable[..., Any]) -> Check:
    # a twin, because what is ended by the time limit may leave anything behind
    start = time.perf_counter()
    timed_out = False
    try:
        with tracing(), TimeLimit(limit):
            failures = attempt(Twin(model).model)
    except TimeLimitReached:
        timed_out = True
        failures = [_out_of_time(name, limit, type(as_module(model)).__name__)]
    except Exception as error:
        module = as_module(model)
        failures = [describe_failure(error, fqn="", module_type=type(module).__name__, module=module)]
    return Check(name, not failures, tuple(failures), time.perf_counter() - start, timed_out)


def _out_of_time(name: str, limit: float, model_type: str) -> Failure:
    return Failure(
        "", model_type, TIME_LIMIT, "TimeLimitReached", f"{name} did not finish within {limit:g} s.",
        remedy="Give time_limit= more seconds, or smaller samples: loops over sizes are unrolled.",
    )  # fmt: skip


def _dynamo(model: torch.nn.Module, sample: Sample) -> list[Failure]:
    breaks = graph_breaks(model, sample)
    failure = None if breaks else fullgraph_failure(model, sample)
    return [failure] if failure is not None else breaks


def _symbolic(module_or_func: Callable[..., Any]) -> list[Failure]:
    model = as_module(module_or_func)
    try:
        with without_output():
            torch.fx.symbolic_trace(module_or_func)
    except Exception as error:
        with without_output():
            failures = list(recursive_trace(module_or_func).failures)
        return failures or [describe_failure(error, fqn="", module_type=type(model).__name__, module=model)]
    return []


def _values(module_or_func: Callable[..., Any], samples: list[Sample]) -> list[Failure]:
    with without_output():
        return list(recursive_trace(module_or_func, inputs=samples).failures)


def _export(module_or_func: Callable[..., Any], samples: list[Sample], captured: list[Captured]) -> list[Failure]:
    try:
        with without_output():
            captured.append(capture(module_or_func, samples))
    except FullGraphError as error:
        with without_output():
            captured.append(capture(module_or_func, samples, fullgraph=False))
        return list(error.failures)
    return []


def _operators(name: str, captured: list[Captured], operators: Operators) -> Check:
    if not captured:
        reason = Failure("", "", "not captured", "", "The operators are not known, because nothing was captured.")
        return Check(name, False, (reason,))
    start = time.perf_counter()
    with tracing():
        failures = tuple(operators(captured[0].program))
    return Check(name, not failures, failures, time.perf_counter() - start)
