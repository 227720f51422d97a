"""What cannot be captured, with what can be done about it, and the axes of the inputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from prepbench.bench.axis_groups import InputGroup, input_groups
from prepbench.bench.summary import AxisSummary, FailureSummary
from prepbench.capture.aten.verification import AxesReport, AxisResult
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.document.model import Failure
from prepbench.fixes import Draft, Fix


def failure_summaries(
    failures: Iterable[Failure],
    fixes: Mapping[str, Fix | Draft],
    fixed: Collection[str],
    leaves: Collection[str],
) -> tuple[FailureSummary, ...]:
    """A card for each failure; those of one class with one reason at one line are one card."""
    alike: dict[object, list[Failure]] = {}
    for failure in failures:
        place = failure.source or failure.message
        alike.setdefault((failure.module_type, failure.kind, failure.exception_type, place), []).append(failure)
    applied = [fixes[fqn] for fqn in fixed if fqn in fixes]
    return tuple(_card(same, fixes, applied, leaves) for same in alike.values())


def _card(
    same: list[Failure],
    fixes: Mapping[str, Fix | Draft],
    applied: Collection[Fix | Draft],
    leaves: Collection[str],
) -> FailureSummary:
    failure, source = same[0], same[0].source
    fix = next((fixes[each.fqn] for each in same if each.fqn in fixes), None)
    place = f"{PurePath(source.file).name}:{source.line}" if source else ""
    proof = f"✓ {fix.proof}" if isinstance(fix, Fix) else fix.reason if fix is not None else ""
    if isinstance(fix, Fix) and fix.assumption:
        proof = f"{proof}. It takes for granted that {fix.assumption}"
    report = "\n".join(filter(None, (_headline(failure), failure.message, failure.frame, failure.remedy)))
    return FailureSummary(
        fqn=failure.fqn,
        type=failure.module_type,
        title=failure.kind,
        place=place,
        code=source.code if source else "",
        remedy=_remedy(failure.remedy),
        file=source.file if source else "",
        line=source.line if source else 0,
        diff=fix.diff if fix is not None else "",
        proof=proof,
        can_fix=isinstance(fix, Fix),
        assumption=fix.fix.assumption if isinstance(fix, Draft) and fix.fix is not None else "",
        has_draft=isinstance(fix, Draft) and bool(fix.diff),
        fixed=any(each is fix for each in applied),
        is_leaf=all(each.fqn in leaves for each in same),
        count=len(same),
        fqns=tuple(each.fqn for each in same),
        report=report,
    )


def _headline(failure: Failure) -> str:
    return f"{failure.fqn or 'the model'} ({failure.module_type}): {failure.kind}"


def _remedy(text: str) -> str:
    """The remedy without the clause about arguments, which the buttons stand for."""
    return re.sub(r"[;,] or [^;]*leaf_modules=.*$", ".", text, flags=re.DOTALL)


def axis_summaries(axes: DynamicAxes, verified: AxesReport | None = None) -> tuple[AxisSummary, ...]:
    """A summary of each axis, in their order; inputs of one argument that agree in all dims are one."""
    tensors: dict[str, list[Axis]] = {}
    for axis in axes.axes:
        tensors.setdefault(axis.path, []).append(axis)
    groups = input_groups({path: tuple(map(_choice, dims)) for path, dims in tensors.items()})
    texts = {path: group.text for group in groups for path in group.members}
    results: dict[tuple[str, int], list[AxisResult]] = {}
    for result in verified.axes if verified else ():
        results.setdefault((texts.get(result.path, ""), result.dim), []).append(result)
    linked = _linked(axes, texts)
    summaries: list[AxisSummary] = []
    for group in groups:
        for axis in tensors[group.members[0]]:
            others = [name for name in linked.get(_key(axis), ()) if name != f"{group.text} dim {axis.dim}"]
            summary = _summary(axis, group)
            said = _verified(results.get((group.text, axis.dim), ()))
            summaries.append(replace(summary, linked=tuple(dict.fromkeys(others)), verified=said))
    return tuple(summaries)


def _choice(axis: Axis) -> Hashable:
    return axis.sizes, axis.dynamic, axis.symbol, axis.minimum, axis.maximum


def _key(axis: Axis) -> object:
    if axis.dynamic:
        return axis.symbol
    return axis.sizes if len(set(axis.sizes)) > 1 else None


def _linked(axes: DynamicAxes, texts: Mapping[str, str]) -> dict[object, list[str]]:
    """The dims of each size that varies or is dynamic, in words; ``texts`` are the names of inputs by their paths."""
    found: dict[object, list[str]] = {}
    for axis in axes.axes:
        if _key(axis) is not None:
            found.setdefault(_key(axis), []).append(f"{texts[axis.path]} dim {axis.dim}")
    return found


def _summary(axis: Axis, group: InputGroup) -> AxisSummary:
    return AxisSummary(
        group.text,
        axis.dim,
        tuple(sorted(set(axis.sizes))),
        axis.dynamic,
        axis.short_name if axis.dynamic else "",
        axis.symbol,
        -1 if axis.minimum is None else axis.minimum,
        -1 if axis.maximum is None else axis.maximum,
        problem=_problem(axis, group.text),
        places=len(group.members),
        paths=group.paths,
    )


def _problem(axis: Axis, path: str) -> str:
    """What contradicts the choice: a static dim takes one size only."""
    others = [i for i, size in enumerate(axis.sizes) if size != axis.sizes[0]]
    if axis.dynamic or not others:
        return ""
    return (
        f"{path} dim {axis.dim} is static, so the compiled model takes only size {axis.sizes[0]}; sample "
        f"{others[0] + 1} has {axis.sizes[others[0]]}. Make the dim dynamic, or give samples of one size."
    )


def _verified(results: Sequence[AxisResult]) -> str:
    """What verification found, in words; a tick where the graph is equal at other sizes. The worst one counts."""
    failed = [result for result in results if result.status not in ("holds", "untried")]
    result = next(iter([*failed, *results]), None)
    if result is None:
        return ""
    held = ", ".join(map(str, result.held))
    if result.status == "holds":
        return f"✓ equal at {held}" if held else "✓"
    if result.status == "untried":
        return "not tried: the model itself takes no other size"
    line = next((str(condition) for condition in result.conditions), result.reason)
    return f"{result.status}: {line}" if line else result.status
