"""Compute the summary that front ends show from a bench."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import PurePath
from types import MappingProxyType

from prepbench.bench.captures import Captures, Several
from prepbench.bench.cards import LEAF_LABEL, remedy_words
from prepbench.bench.input_checks import axis_notes
from prepbench.bench.layer_summaries import (
    base_label,
    columns,
    decisions,
    default_pruning,
    outcomes,
    precision_choices,
    pruning_rule_summaries,
    rule_summaries,
    setting_fields,
)
from prepbench.bench.queue import QueuedRun
from prepbench.bench.run_summaries import in_order, result_texts, run_summaries, staleness_of, written_by
from prepbench.bench.shown import Parts
from prepbench.bench.state import (
    PRECISIONS,
    TARGETS,
    BenchState,
    axes_words,
    display_name,
    precision_of,
    precision_words,
    unavailable,
)
from prepbench.bench.summary import (
    AxisSummary,
    BenchSummary,
    Control,
    ElsewhereSummary,
    FailureSummary,
    LayerColumn,
    OptionField,
    QueuedSummary,
    StepSummary,
    TargetSummary,
)
from prepbench.bench.variables import InputGroup, input_groups
from prepbench.bench.written import workload_words
from prepbench.capture.aten.variants import sizes_may_decide
from prepbench.capture.aten.verification import AxesReport, AxisResult
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.conditions import SizeCondition
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import described
from prepbench.document.model import Failure
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.fixes import Draft, Fix
from prepbench.measure.generation import Generation
from prepbench.objects.code import change_text
from prepbench.results.measurement import Run
from prepbench.settings import DeploymentSettings, ExplainedLayer
from prepbench.targets import target_for
from prepbench.targets.base import check_settings


def summarize(bench: Parts, code: str) -> BenchSummary:
    """Return everything that a front end shows.

    Args:
        bench: its parts.
        code: the Python lines that do the same.
    """
    choices, history, captures = bench.choices, bench.run_history, bench.captures
    state, explained, shown = choices.state, choices.explained, history.shown_run()
    facts = choices.facts
    layers = [layer.fqn for layer in facts]
    report = {row.fqn: row for row in shown.report} if shown is not None else {}
    values = history.value_mark
    differences = history.differences_of(shown, values) if shown is not None else ()
    own = {run.id for run in history.runs}
    runs = in_order(history.listed_runs)
    stale = staleness_of(runs, lambda run: history.differences_of(run, values) if run.id in own else ())
    prompts, written = written_by(history.runs, history.float_name, bench.inputs.prompts)
    planned = decisions(choices.planned, choices.pruning)
    done = outcomes(layers, report, choices.layer_rules.tables, shown.pruned if shown is not None else {})
    # the card of what is fixed stays, so that it can be taken back
    several = captures.several(state.fixes)
    failures = failure_summaries(captures.collection().failures, captures.fixes, state.fixes, state.leaves, several)
    axes = axis_summaries(state.axes, captures.verified(state.axes), captures.refused)
    targets = target_summaries(state.targets, explained)
    notes = (*bench.opening_notes, *axis_notes(bench.inputs, state.axes, captures.refused))
    steps = _steps(bench, failures, axes, targets, any(note.kind == "bad" and note.label for note in notes))
    return BenchSummary(
        title=type(choices.model).__name__,
        sentence=_sentence(bench, failures),
        notes=notes,
        steps=steps,
        selected=choices.selected,
        failures=failures,
        fixes_known=bench.fixing.is_searched,
        newer_code=change_text(captures.newer_code),
        assumptions=_assumptions(captures, state.fixes),
        leaf_wrap=state.leaf_wrap,
        leaf_label=LEAF_LABEL,
        leaves=state.leaves,
        axes=axes,
        layers=facts,
        decisions=planned[0],
        planned=planned[1],
        outcomes=done[0],
        applied=done[1],
        columns=(*_columns(layers, shown, history.runs), *bench.costs.columns()),
        measured=bench.costs.measured.caption,
        is_measuring=bench.costs.is_measuring,
        inspection=bench.inspecting.summary,
        search=bench.found.summary(),
        search_now=bench.found.now(),
        recovery=bench.training.summary(),
        expected=choices.expected_size,
        rules=(
            *rule_summaries(state.rules, state.quantization, explained),
            *pruning_rule_summaries(state.pruning, state.pruning_rules, choices.pruning),
        ),
        base=_base(state),
        settings=setting_fields(state.targets),
        precisions=precision_choices(calibrated=choices.is_calibrated),
        targets=targets,
        queue=tuple(map(_queued, bench.jobs.queue)),
        turn=bench.jobs.turn,
        is_queued=bench.compiling.is_queued,
        runs=run_summaries(runs, history.live_runs, own, history.speed_ups, history.without_float),
        elsewhere=ElsewhereSummary(history.elsewhere, history.elsewhere_shown, str(history.results_path or "")),
        shown_run=shown.id if shown is not None else "",
        staleness=stale[0],
        stale_of=stale[1],
        difference=history.difference,
        workload=workload_words(bench.inputs.data) if isinstance(bench.inputs.data, Generation) else "",
        prompts=prompts,
        written=written,
        code=code,
        stale=f"compiled before a change: {'; '.join(differences)}" if differences else "",
        can_undo=choices.history.can_undo,
        can_redo=choices.history.can_redo,
    )


def text_of(bench: Parts) -> str:
    """Return a few lines about the choices and results."""
    choices = bench.choices
    precisions = [precision_of(layer.settings) for layer in choices.planned]
    counts = {p: precisions.count(p) for p in PRECISIONS}
    layers = ", ".join(f"{count} in {p}" for p, count in counts.items() if count) or "none quantizable"
    dynamic = [f"{axis.path}[{axis.dim}]" for axis in choices.axes.axes if axis.dynamic] or ["none"]
    lines = [
        f"Bench({type(choices.model).__name__})",
        f"  dynamic axes  {', '.join(dynamic)}",
        f"  layers        {layers}",
        f"  target        {', '.join(map(display_name, choices.state.targets))}",
        f"  failures      {len(bench.fixing.collection.failures)}",
        f"  results       {', '.join(bench.run_history.results) or 'none yet: bench.compile()'}",
    ]
    lines += [f"  {'! ' if note.kind == 'bad' else ''}{note.text}" for note in bench.summary().notes]
    if sum(counts.values()) and not bench.run_history.results and not bench.fixing.collection.failures:
        bound = "max_drop=0.01" if bench.inputs.metric is not None else "min_metric=30.0"
        lines.append(f"  next          bench.search(pb.Budget({bound})) finds the best settings for a target")
    return "\n".join(lines)


def _columns(layers: Sequence[str], shown: Run | None, runs: Iterable[Run]) -> tuple[LayerColumn, ...]:
    if shown is None:
        return ()
    several = len({run.target for run in runs if not run.error}) > 1
    report = {row.fqn: row for row in shown.report}
    return columns(layers, report, shown.name, shown.target_name if several else "")


def _base(state: BenchState) -> str:
    """Return what applies where no rule does, and whether ruined layers stay quantized, which no rule shows."""
    ruined = "" if state.options.keep_ruined_layers_in_float else "ruined layers stay quantized"
    precision, pruned = base_label(state.quantization, state.rules), default_pruning(state.pruning, state.pruning_rules)
    return ", ".join(filter(None, (precision, pruned, ruined)))


def _queued(run: QueuedRun) -> QueuedSummary:
    return QueuedSummary(run.id, run.name, ", ".join(run.targets), run.settings)


def _assumptions(captures: Captures, fixes: tuple[str, ...]) -> tuple[str, ...]:
    collection = captures.collection(fixes)
    found = [f"{finding.fqn}: {finding.message}" if finding.fqn else finding.message for finding in collection.findings]
    return tuple(dict.fromkeys([*captures.assumptions(fixes), *collection.assumptions, *found]))


def _open_failures(failures: tuple[FailureSummary, ...]) -> int:
    return sum(card.count for card in failures if not (card.fixed or card.is_leaf or card.graphs))


def _open_and_kept(bench: Parts, failures: tuple[FailureSummary, ...]) -> tuple[int, int]:
    """Return how many modules fail, and how many run in PyTorch: the chosen ones, and with them what fails."""
    state, failing = bench.choices.state, _open_failures(failures)
    is_some_left = all(card.fqn or card.fixed for card in failures)  # no graph is left where the model itself fails
    kept = len(state.leaves)
    return (0, kept + failing) if state.leaf_wrap and is_some_left else (failing, kept)


def _graphs(failures: tuple[FailureSummary, ...]) -> int:
    """Return how many graphs a compile makes because of the samples' sizes; 0 for one."""
    return max((card.graphs for card in failures), default=0)


def _steps(
    bench: Parts,
    failures: tuple[FailureSummary, ...],
    axes: tuple[AxisSummary, ...],
    targets: tuple[TargetSummary, ...],
    misfits: bool,
) -> tuple[StepSummary, ...]:
    failing, kept = _open_and_kept(bench, failures)
    state, runs = bench.choices.state, bench.run_history.runs
    graphs = _graphs(failures)
    done = f"{kept} in PyTorch" if kept else f"{graphs} graphs" if graphs else "all captured"
    capture = f"{failing} fail" if failing else done
    wrong = sum(bool(axis.problem) for axis in axes)
    names = list(dict.fromkeys(axis.symbol for axis in axes if axis.dynamic))
    chosen = [target for target in targets if target.chosen]
    blocked = [target for target in chosen if target.unavailable or target.problem]
    broken = sum(bool(run.error) for run in runs)
    precision, training = precision_words(bench.choices.planned), state.recovery
    count = sum(row.settings is not None for row in bench.choices.pruning.values())
    pruned = f"{count} pruned" if count else ""
    return (
        StepSummary("capture", "Capture", capture, "bad" if failing else "good"),
        StepSummary(
            "axes",
            "Axes",
            f"{wrong} wrong" if wrong else "data does not fit" if misfits else ", ".join(names[:3]) or "static",
            "bad" if wrong or misfits else "good",
        ),
        StepSummary("precision", "Precision", " · ".join(filter(None, (precision, pruned))), ""),
        StepSummary("recover", "Train back", "off" if training is None else f"{training.steps} steps"),
        StepSummary(
            "run",
            "Run",
            "not possible" if blocked else ", ".join(target.name for target in chosen),
            "bad" if blocked else "",
        ),
        StepSummary(
            "results",
            "Results",
            f"{len(runs)} run{'s' * (len(runs) != 1)}" if runs else "none yet",
            "warning" if broken else "",
        ),
    )


def _sentence(bench: Parts, failures: tuple[FailureSummary, ...]) -> str:
    """Describe the progress in one sentence, e.g. ``"2 modules cannot be captured · batch dynamic · 41 int8, 3 float
    · ..."``.
    """
    failing, kept = _open_and_kept(bench, failures)
    graphs = _graphs(failures)
    done = f"captured as {graphs} graphs" if graphs else "all modules captured"
    if kept:
        done = f"{kept} module{'s' * (kept != 1)} kept in PyTorch"
    said = [f"{failing} module{'s' * (failing != 1)} cannot be captured" if failing else done]
    said.append(axes_words(bench.choices.axes))
    said.append(precision_words(bench.choices.planned).replace(" · ", ", "))
    said.append(", ".join(map(display_name, bench.choices.state.targets)))
    if (run := bench.run_history.shown_run()) is not None and run.score is not None:
        texts = result_texts(run)
        time = "" if run.p50_ms is None else f", {texts['p50']} ms"
        said.append(f"{run.name}: {run.metric.replace('_', ' ')} {texts['score']}{time}")
    return " · ".join(said)


# The modules that cannot be captured, with the possible actions, and the axes of the inputs.


def failure_summaries(
    failures: Iterable[Failure],
    fixes: Mapping[str, Fix | Draft],
    fixed: Collection[str],
    leaves: Collection[str],
    several: Several,
) -> tuple[FailureSummary, ...]:
    """Return a card for each failure; failures of one class with one reason at one line share a card."""
    alike: dict[object, list[Failure]] = {}
    for failure in failures:
        place = failure.source or failure.message
        alike.setdefault((failure.module_type, failure.kind, failure.exception_type, place), []).append(failure)
    applied = [fixes[fqn] for fqn in fixed if fqn in fixes]
    return tuple(_card(same, fixes, applied, leaves, several) for same in alike.values())


def _card(
    same: list[Failure],
    fixes: Mapping[str, Fix | Draft],
    applied: Collection[Fix | Draft],
    leaves: Collection[str],
    several: Several,
) -> FailureSummary:
    failure, source = same[0], same[0].source
    fix = next((fixes[each.fqn] for each in same if each.fqn in fixes), None)
    place = f"{PurePath(source.file).name}:{source.line}" if source else ""
    proof = f"✓ {fix.proof}" if isinstance(fix, Fix) else fix.reason if fix is not None else ""
    if isinstance(fix, Fix) and fix.assumption:
        proof = f"{proof}. It takes for granted that {fix.assumption}"
    report = "\n".join(filter(None, (_headline(failure), failure.message, failure.frame, failure.remedy)))
    is_of_sizes = sizes_may_decide([failure])
    return FailureSummary(
        fqn=failure.fqn,
        type=failure.module_type,
        title=failure.kind,
        place=place,
        code=source.code if source else "",
        remedy=remedy_words(several.reason if is_of_sizes and several.reason else failure.remedy),
        graphs=len(several.graphs) if is_of_sizes else 0,
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


def axis_summaries(
    axes: DynamicAxes,
    verified: AxesReport | None = None,
    refused: Mapping[tuple[str, int], str] = MappingProxyType({}),
) -> tuple[AxisSummary, ...]:
    """Return a summary of each axis, in their order; inputs of one argument that agree in all dims share one.

    Args:
        axes: as chosen.
        verified: the check of their sizes.
        refused: why the model itself cannot run with another size of a dim, by argument and dim.
    """
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
            summary = _summary(axis, group, refused.get((axis.path, axis.dim), ""))
            said, reason = verified_words(results.get((group.text, axis.dim), ()))
            linked_dims = tuple(dict.fromkeys(others))
            summaries.append(replace(summary, linked=linked_dims, verified=said, reason=reason))
    return tuple(summaries)


def _choice(axis: Axis) -> Hashable:
    return axis.sizes, axis.dynamic, axis.symbol, axis.minimum, axis.maximum


def _key(axis: Axis) -> object:
    if axis.dynamic:
        return axis.symbol
    return axis.sizes if len(set(axis.sizes)) > 1 else None


def _linked(axes: DynamicAxes, texts: Mapping[str, str]) -> dict[object, list[str]]:
    """Return the dims of each size that varies or is dynamic, in words; ``texts`` maps paths to names of inputs."""
    found: dict[object, list[str]] = {}
    for axis in axes.axes:
        if _key(axis) is not None:
            found.setdefault(_key(axis), []).append(f"{texts[axis.path]} dim {axis.dim}")
    return found


def _summary(axis: Axis, group: InputGroup, refused: str) -> AxisSummary:
    return AxisSummary(
        group.text,
        axis.dim,
        tuple(sorted(set(axis.sizes))),
        axis.dynamic,
        axis.short_name if axis.dynamic else "",
        axis.symbol,
        -1 if axis.minimum is None else axis.minimum,
        -1 if axis.maximum is None else axis.maximum,
        problem=_problem(axis, group.text, refused),
        places=len(group.members),
        paths=group.paths,
    )


def _problem(axis: Axis, path: str, refused: str) -> str:
    """Return the contradiction with the choice: a static dim accepts one size only, or the model takes no other."""
    if axis.dynamic and refused:
        return f"{path} dim {axis.dim} is dynamic, and the model takes no other size: {refused}"
    others = [i for i, size in enumerate(axis.sizes) if size != axis.sizes[0]]
    if axis.dynamic or not others:
        return ""
    return (
        f"{path} dim {axis.dim} is static, so the compiled model takes only size {axis.sizes[0]}; sample "
        f"{others[0] + 1} has {axis.sizes[others[0]]}. Make the dim dynamic, or give samples of one size."
    )


# The available targets with their options, read from the classes of their settings.


def target_summaries(
    chosen: Sequence[DeploymentSettings], explained: Sequence[ExplainedLayer]
) -> tuple[TargetSummary, ...]:
    """Return all targets; for the chosen ones also the unsupported settings."""
    by_name = {display_name(settings): settings for settings in chosen}
    return tuple(_target_summary(name, by_name.get(name), kind, explained) for name, kind in TARGETS.items())


def _target_summary(
    name: str, chosen: DeploymentSettings | None, kind: type[DeploymentSettings], explained: Sequence[ExplainedLayer]
) -> TargetSummary:
    settings = chosen or kind()
    problem = problem_of(settings, explained) if chosen else ""
    return TargetSummary(name, chosen is not None, unavailable(settings), problem, option_fields(settings))


def problem_of(settings: DeploymentSettings, explained: Sequence[ExplainedLayer]) -> str:
    """Return the settings of layers that the target does not support; "" if it supports all."""
    try:
        check_settings(target_for(settings), settings, explained)
    except PrepbenchError as error:
        return str(error)
    return ""


def option_fields(settings: DeploymentSettings) -> tuple[OptionField, ...]:
    """The options of a target with their help, from the docstring of its settings."""
    helps = _helps(type(settings))
    found = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        listed = type(settings).CHOICES.get(field.name, ())
        shown = tuple("" if choice is None else str(choice) for choice in listed)
        kind: Control = "choice" if listed else "number"
        text = "" if value is None else str(value)
        title = field.name.replace("_", " ").capitalize()
        found.append(OptionField(field.name, title, helps.get(field.name, ""), kind, shown, text))
    return tuple(found)


def with_option(settings: DeploymentSettings, name: str, value: str) -> DeploymentSettings:
    """Return the settings with one option as the page sends it; "" is the target's default.

    Raises:
        SettingsError: no such option, or a value that is not allowed.
    """
    known = [field.name for field in fields(settings)]
    if name not in known:
        raise SettingsError(f"{type(settings).__name__} has no option {name!r}; it has: {', '.join(known) or 'none'}.")
    given: object = value
    if value == "":
        given = None
    elif not type(settings).CHOICES.get(name):
        if not re.fullmatch(r"\d{1,9}", value):
            raise SettingsError(f"{type(settings).__name__}.{name} must be a whole number, got {described(value)}.")
        given = int(value)
    return type(settings).from_dict({**settings.to_dict(), name: given})


def _helps(kind: type) -> dict[str, str]:
    """Return the description of each attribute in the docstring of a class."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2]
    helps: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w+:)", text.partition("\n\n")[0]):
        name, _, words = entry.strip().partition(":")
        helps[name] = re.sub(r"``(.*?)``", r"\1", " ".join(words.split()))
    return helps


_ROLES = {"sequence": "length", "past": "length", "total": "length"}
_FORMULA = set("*/%+(")
_SHORTER = (" is at ", " at "), (" must be at ", " at "), (" always equals ", " equals "), (" == ", " only ")


def verified_words(results: Sequence[AxisResult]) -> tuple[str, str]:
    """Return what was found of an axis in words, and where a limit comes from; "" for none.

    Args:
        results: of all dims that the axis stands for; the worst one is told.

    Example:
        >>> verified_words([AxisResult("x", 2, "height", "holds", held=(1, 5))])
        ('✓ equal at 1, 5', '')
        >>> verified_words([AxisResult("x", 2, "height", "bounded", held=(5,), refused=(1, 2))])
        ('height at least 3', '')
    """
    failed = [result for result in results if result.status not in ("holds", "untried")]
    result = next(iter([*failed, *results]), None)
    if result is None:
        return "", ""
    if result.status == "holds":
        return (f"✓ equal at {_listed(result.held)}" if result.held else "✓"), ""
    if result.status == "untried":
        return "not tried: the model itself takes no other size", ""
    if result.status == "wrong":
        return f"differs from the model at {_listed(result.wrong)}", result.reason
    condition = next((one for one in result.conditions if _readable(one, result)), None)
    reason = next((str(one) for one in result.conditions), result.reason)
    return _limit(result) if condition is None else _shorter(condition, result), reason


def _readable(condition: SizeCondition, result: AxisResult) -> bool:
    """Return whether a condition is about the axis in words, and not a formula."""
    rest = functools.reduce(lambda left, name: left.replace(name, ""), condition.sizes, condition.text)
    return condition.text != rest and _FORMULA.isdisjoint(rest)


def _shorter(condition: SizeCondition, result: AxisResult) -> str:
    text = condition.text
    for name in condition.sizes:
        role = _role(result) if name == f"{result.path}.shape[{result.dim}]" else name
        text = text.replace(name, role)
    return functools.reduce(lambda said, pair: said.replace(*pair), _SHORTER, text)


def _limit(result: AxisResult) -> str:
    """Return the limit as the sizes tell it that were tried."""
    role, (least, most) = _role(result), result.range or (0, None)
    if result.status == "specialised" or least == most:
        return f"{role} only {least}" if least == most else f"{role} takes one size only"
    refused = result.refused
    if refused and max(refused) < min(result.held, default=max(refused) + 1):
        return f"{role} at least {max(refused) + 1}"
    return f"{role} not {_listed(refused)}" if refused else f"{role} is limited"


def _role(result: AxisResult) -> str:
    role = result.symbol.partition("_")[0]
    return _ROLES.get(role, role) or f"dim {result.dim}"


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))
