"""Try every way of tracing a model, and report all failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import torch

from prepbench._display import view
from prepbench._torch_compat.dynamo import compiled_by_dynamo, graph_breaks_noted
from prepbench.capture.aten.capture import FullGraphError, capture
from prepbench.capture.aten.captured import Captured
from prepbench.capture.failures.describe import DIFFERS, TIME_LIMIT, describe_failure, failure_line, unequal
from prepbench.capture.failures.reproduce import with_reproduction
from prepbench.capture.modules.collection import recursive_trace
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.capture.sizes.resizing import base_sample
from prepbench.checks import described
from prepbench.document.model import Failure, alike_failures
from prepbench.errors import UnknownNameError
from prepbench.inputs import Sample
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.objects.copy import Twin
from prepbench.objects.parts import is_user_code
from prepbench.running.callable_module import as_module
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import own_copy, unchanged, without_output

DYNAMO, EXPORT, SYMBOLIC, VALUES = "dynamo", "torch.export", "symbolic trace", "trace with inputs"
_WAYS = (DYNAMO, EXPORT, SYMBOLIC, VALUES)
Operators = Callable[[torch.export.ExportedProgram], Iterable[Failure]]


@dataclass(frozen=True)
class Check:
    """One way of tracing.

    Attributes:
        name: ``"dynamo"`` (one graph, dynamic shapes), ``"torch.export"``, ``"symbolic trace"`` (``torch.fx``, no
            inputs), ``"trace with inputs"`` (module graph by values), or ``"operators of <target>"``.
        passed: whether the whole model is one graph that way, which gives what the model gives on all samples; for
            operators, whether the target supports all of them.
        failures: every reason why not.
        seconds: the duration.
        timed_out: whether it was ended by the time limit.
        equal: whether the graph gave what the model gives on all samples: outputs, and the buffers and the caller's
            tensors after each call; ``None`` where there was no whole graph to compare.
    """

    name: str
    passed: bool
    failures: tuple[Failure, ...] = ()
    seconds: float = field(default=0.0, compare=False)
    timed_out: bool = False
    equal: bool | None = None

    @property
    def state(self) -> str:
        """The result in a few words, e.g. ``"passed, equal on all samples"``."""
        if self.passed:
            return "passed, equal on all samples" if self.equal else "passed"
        if self.equal is False:
            return "failed, differs from the model"
        count = len(self.failures)
        return f"{'time limit reached' if self.timed_out else 'failed'}, {count} reason{'' if count == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class TraceabilityReport:
    """The result of :func:`prepbench.check_traceability`.

    Attributes:
        model_type: class name of the model.
        checks: one result for each way of tracing.
        fixes: proven changes of the source, see :func:`prepbench.fix`.
        drafts: the failures that these leave, each with the reason.
        samples: on how many samples graphs were compared with the model.
    """

    model_type: str
    checks: tuple[Check, ...]
    fixes: tuple[Any, ...] = ()
    drafts: tuple[Any, ...] = ()
    samples: int = 0

    @property
    def passed(self) -> bool:
        """Whether the model was captured whole, equals its graph on all samples, and suits the target.

        One of the ways must give such a graph. With a target it must be ``torch.export``, whose graph is what targets
        get, and the target must take all of its operators.
        """
        operators = [check for check in self.checks if check.name.startswith("operators")]
        wanted = (EXPORT,) if operators else _WAYS
        return any(name in wanted for name in self.verified) and all(check.passed for check in operators)

    @property
    def verified(self) -> tuple[str, ...]:
        """The ways that give one graph of the whole model which equals it on all samples."""
        return tuple(check.name for check in self.checks if check.passed and check.equal)

    @property
    def verdict(self) -> str:
        """The result :attr:`passed` in words."""
        if self.passed:
            return f"can be traced, and its graph equals it on all samples ({self.samples})"
        return "is not supported by the target" if EXPORT in self.verified else "cannot be traced as a whole"

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Every failing line of every module once, as described by the first check that met it."""
        found: dict[Any, Failure] = {}
        for check in self.checks:
            for failure in check.failures:
                found.setdefault((failure.fqn, failure.source or failure.message), failure)
        return tuple(found.values())

    def __getitem__(self, name: str) -> Check:
        """Return the check of this name.

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
        return view("views.display", "traceability_table", self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "traceability_bundle", self)

    def __repr__(self) -> str:
        lines = [f"{self.model_type} {self.verdict}"]
        for check in self.checks:
            lines.append(f"  {check.name}: {check.state}")
        for failure in alike_failures(self.failures):
            lines += [
                f"- {failure_line(failure)}",
                *_indented(failure.frame or (failure.source.code if failure.source else "")),
            ]
            lines += [f"    {failure.exception_type}: {failure.message.splitlines()[0]}", f"    {failure.remedy}"]
        if self.fixes:
            lines.append("Fixes, each proven; pb.fix(model, samples) applies them:")
            lines += [line for fix in self.fixes for line in _indented(repr(fix))]
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
    # the sizes that suit tracing best come first
    base = base_sample(model, samples, axes)
    ordered = [base, *(sample for sample in samples if sample.index != base.index)]
    checks = [
        _checked(DYNAMO, time_limit, lambda part: _dynamo(part, ordered), model),
        _checked(EXPORT, time_limit, lambda part: _export(part, samples, captured), module_or_func),
        _checked(SYMBOLIC, time_limit, lambda part: _symbolic(part, samples), module_or_func),
        _checked(VALUES, time_limit, lambda part: _values(part, samples), module_or_func),
    ]
    if operators is not None:
        checks.append(_operators(f"operators of {target}", captured, operators))
    checks = [replace(check, failures=with_reproduction(check.failures, model, samples)) for check in checks]
    return TraceabilityReport(type(model).__name__, tuple(checks), samples=len(samples))


def _checked(name: str, limit: float, attempt: Callable[[Any], list[Failure]], model: Callable[..., Any]) -> Check:
    # a twin, because a run that the time limit ends may leave any state behind
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
    compared = not failures or any(failure.kind == DIFFERS for failure in failures)
    equal = not failures if compared else None
    return Check(name, not failures, tuple(failures), time.perf_counter() - start, timed_out, equal)


def _out_of_time(name: str, limit: float, model_type: str) -> Failure:
    return Failure(
        "", model_type, TIME_LIMIT, "TimeLimitReached", f"{name} did not finish within {limit:g} s.",
        remedy="Give time_limit= more seconds, or smaller samples: loops over sizes are unrolled.",
    )  # fmt: skip


def _dynamo(model: torch.nn.Module, samples: list[Sample]) -> list[Failure]:
    failure = None
    breaks = graph_breaks(model, samples[0])
    if not breaks:
        failure = fullgraph_failure(model, samples)
    return [failure] if failure is not None else breaks


def _symbolic(module_or_func: Callable[..., Any], samples: list[Sample]) -> list[Failure]:
    model = as_module(module_or_func)
    try:
        with without_output(), unchanged(model):
            graph = torch.fx.symbolic_trace(module_or_func)
    except Exception as error:
        with without_output():
            failures = list(recursive_trace(module_or_func).failures)
        return failures or [describe_failure(error, fqn="", module_type=type(model).__name__, module=model)]
    return _differing(graph, model, samples)


def _values(module_or_func: Callable[..., Any], samples: list[Sample]) -> list[Failure]:
    with without_output():
        collection = recursive_trace(module_or_func, inputs=samples)
    if collection.failures:
        return list(collection.failures)
    return _differing(collection.graph_module(), as_module(module_or_func), samples)


def _differing(graph: Callable[..., Any], model: torch.nn.Module, samples: list[Sample]) -> list[Failure]:
    failure = unequal(graph, model, samples)
    return [] if failure is None else [failure]


def _export(module_or_func: Callable[..., Any], samples: list[Sample], captured: list[Captured]) -> list[Failure]:
    try:
        with without_output():
            # compares with the model on all samples before it returns
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


# All graph breaks of dynamo in a model: the model runs once, graph by graph.


def graph_breaks(model: torch.nn.Module, sample: Sample) -> list[Failure]:
    """Return all graph breaks on the path that ``sample`` takes, in order.

    The model runs for real on a copy of the sample; its state and the random numbers are as before afterwards.
    """
    with unchanged(model), without_output(), torch.no_grad(), graph_breaks_noted() as noted:
        with compiled_by_dynamo(model, fullgraph=False) as compiled:
            own_copy(sample).call(compiled)
    owners = dict(_lines_of(model))
    found: dict[Any, Failure] = {}
    for error in noted:
        for fqn in _owners_of(getattr(error, "real_stack", ()), owners) or [""]:
            module = model.get_submodule(fqn)
            failure = describe_failure(error, fqn=fqn, module_type=type(module).__name__, module=module)
            found.setdefault((fqn, failure.source), failure)
    return list(found.values())


def fullgraph_failure(model: torch.nn.Module, samples: Sequence[Sample]) -> Failure | None:
    """Return why dynamo cannot make one graph of the model that equals it on all samples; ``None`` if it can."""
    with compiled_by_dynamo(model, fullgraph=True) as compiled:
        try:
            with unchanged(model), without_output(), torch.no_grad():
                own_copy(samples[0]).call(compiled)
        except Exception as error:
            owners = _owners_of(getattr(error, "real_stack", None) or (), dict(_lines_of(model)))
            module = model.get_submodule(owners[0]) if owners else model
            fqn = owners[0] if owners else ""
            return describe_failure(error, fqn=fqn, module_type=type(module).__name__, module=module)
        return unequal(compiled, model, samples)


def _lines_of(model: torch.nn.Module) -> Iterator[tuple[str, list[tuple[str, range]]]]:
    """Return, for each module, the files and lines of the methods that its own classes define."""
    for fqn, module in model.named_modules():
        codes = [
            getattr(getattr(value, "__wrapped__", value), "__code__", None)
            for kind in type(module).__mro__
            for value in vars(kind).values()
        ]
        codes.append(getattr(getattr(module.forward, "__func__", module.forward), "__code__", None))
        places = [_place(code) for code in codes if isinstance(code, CodeType) and is_user_code(code)]
        if places:
            yield fqn, places


def _place(code: CodeType) -> tuple[str, range]:
    lines = [line for _, _, line in code.co_lines() if line is not None]
    return code.co_filename, range(min(lines), max(lines) + 1)


def _owners_of(stack: Any, owners: dict[str, list[tuple[str, range]]]) -> list[str]:
    """Return the modules of which one owns the innermost frame of ``stack`` that belongs to a module."""
    for frame in reversed(list(stack)):
        found = [
            fqn
            for fqn, places in owners.items()
            if any(frame.filename == file and (frame.lineno or 0) in lines for file, lines in places)
        ]
        if found:
            return found
    return []
