"""``check_traceability``: all ways of tracing, and the operators that a target does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from prepbench.capture.aten.leaf_operators import is_leaf_operator
from prepbench.capture.failures.describe import describe_node
from prepbench.capture.traceability import TraceabilityReport, check_ways
from prepbench.checks import check_seconds
from prepbench.document.model import Failure
from prepbench.fixes import fix
from prepbench.fixes.search import attach_fixes
from prepbench.inputs import Sample
from prepbench.interrupts import TimeLimit, TimeLimitReached
from prepbench.progress_bar import shows_progress
from prepbench.running.check_inputs import check_traced, checked_samples
from prepbench.running.tracing import tracing
from prepbench.settings import DeploymentSettings
from prepbench.targets import Target, target_for


@shows_progress("check")
def check_traceability(
    module_or_func: Callable[..., Any],
    inputs: Any,
    *,
    target: DeploymentSettings | None = None,
    time_limit: float = 60.0,
) -> TraceabilityReport:
    """Return whether a model can be one graph: by dynamo, ``torch.export`` and tracing at module level, and why not.

    A graph counts if it gives what the model gives on every sample.

    The model runs on copies of the inputs, in the mode it is in; afterwards the model, the inputs and the random
    number generators are as before. What the model prints is dropped.

    Args:
        module_or_func: a module, function or bound method.
        inputs: sample inputs; sizes that differ between them are dynamic.
        target: also list the operators that this target does not support.
        time_limit: seconds for each of the checks.

    Returns:
        A report with one result for each check, all failures with their line and remedy, and what
        :func:`prepbench.fix` makes of them: fixes that are proven, and drafts with the reason why they are not.

    Raises:
        InputError: the inputs do not fit the model.
        CaptureError: the model itself raises on one of them.

    Example:
        >>> report = check_traceability(torch.nn.Linear(2, 2), [torch.ones(2, 2), torch.ones(3, 2)])
        >>> report.passed
        True
    """
    check_traced("module_or_func", module_or_func)
    check_seconds("time_limit", time_limit)
    chosen = target_for(target, "target") if target is not None else None
    operators = partial(_unsupported, chosen) if chosen is not None else None
    samples = checked_samples(module_or_func, inputs)
    report = check_ways(
        module_or_func, samples, time_limit=time_limit, operators=operators, target=chosen.name if chosen else ""
    )
    return _with_fixes(report, module_or_func, samples, time_limit) if report.failures else report


def _with_fixes(
    report: TraceabilityReport, module_or_func: Callable[..., Any], samples: list[Sample], time_limit: float
) -> TraceabilityReport:
    try:
        with tracing(), TimeLimit(time_limit):
            fixed = fix(module_or_func, samples)
    except TimeLimitReached:
        return report
    attach_fixes(report.failures, fixed)
    for check in report.checks:
        attach_fixes(check.failures, fixed)
    return replace(report, fixes=fixed.applied, drafts=fixed.remaining)


def _unsupported(target: Target, program: torch.export.ExportedProgram) -> Iterator[Failure]:
    seen = set()
    for node in target.unsupported_nodes(program):
        if is_leaf_operator(node.target):
            continue  # a module that failed, which the other checks report
        failure = describe_node(
            node,
            f"{target.name} has no translation for the operator {node.target}.",
            "Write this line with other torch operators, keep the module in PyTorch as a leaf "
            "(fullgraph=False) on a target that runs leaves, or choose InductorDeployment().",
        )
        if failure not in seen:
            seen.add(failure)
            yield failure
