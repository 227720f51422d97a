"""A bench as a page shows it without Python: text, tables and a chart."""

from __future__ import annotations

import functools
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from importlib.metadata import PackageNotFoundError, version
from operator import attrgetter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

from prepbench.bench.captures import Captures, Fixing
from prepbench.bench.choices import Changes, Choices, History
from prepbench.bench.compiling import Compiling
from prepbench.bench.inputs import Inputs
from prepbench.bench.inspecting import Inspecting
from prepbench.bench.layer_costs import Costs, cost_overlays
from prepbench.bench.queue import Jobs
from prepbench.bench.recovering import Training
from prepbench.bench.run_summaries import float_ms, result_texts
from prepbench.bench.runs import Runs
from prepbench.bench.searching import Search
from prepbench.bench.state import BenchState, display_name
from prepbench.bench.summary import AxisSummary, BenchSummary, FailureSummary, InputNote
from prepbench.document.bench import Chart, Fact, ShownBench, ShownFailure, Table
from prepbench.document.checks import cleaned_value
from prepbench.document.model import DiagramDocument, Overlay
from prepbench.errors import SettingsError
from prepbench.measure.comparison import number
from prepbench.results.measurement import Run
from prepbench.results.speed_up import SpeedUp
from prepbench.settings import CompileOptions, DeploymentSettings
from prepbench.targets import target_for
from prepbench.views.bench_chart import ChartRun, bench_chart
from prepbench.views.bench_page import bench_bundle
from prepbench.views.overlays import make_overlay

_CHART = 500  # runs in the chart; the newest


def shown(bench: Parts) -> ShownBench:
    """Return the page's content for the current bench."""
    summary = bench.summary()
    found = ShownBench(
        title=summary.title,
        sentence=summary.sentence,
        settings=_settings(bench.choices.state, summary),
        failures=tuple(map(_failure, summary.failures)),
        assumptions=summary.assumptions,
        tables=(
            _axes(summary.axes),
            _rules(summary),
            _layers(summary),
            _runs(summary),
            *_written(summary),
            *_compared(summary),
        ),
        chart=runs_chart(bench.run_history.runs, bench.run_history.float_name, bench.run_history.speed_ups),
        code=summary.code,
        environment=_environment(bench.choices.state.targets),
        samples=summary.difference.samples,
    )
    cleaned: ShownBench = cleaned_value(found)
    return cleaned


def still(bench: Parts) -> dict[str, Any]:
    """Return the fallback of a notebook output without a kernel; without versions, so that outputs can be compared."""
    return bench_bundle(replace(shown(bench), environment=()), graph_of(bench))


def graph_of(bench: Parts) -> DiagramDocument:
    """Return the diagram: the module graph, coloured by each layer's outcome or else its plan."""
    document = bench.fixing.document
    summary = bench.summary()
    planned = {layer.fqn: summary.decisions[i].label for layer, i in zip(summary.layers, summary.planned, strict=True)}
    applied = {layer.fqn: summary.outcomes[i].label for layer, i in zip(summary.layers, summary.applied, strict=False)}
    known = {module.fqn for module in document.modules}
    overlays: list[Overlay] = []
    for name, values in (("applied", applied), ("planned", planned)):
        present = {fqn: value for fqn, value in values.items() if fqn in known}
        if present:
            overlays.append(make_overlay(present, [document], name=name))
    fqns = [layer.fqn for layer in summary.layers]
    for cost in cost_overlays(fqns, summary.columns, known):
        made = make_overlay(cost.values, [document], name=cost.name, unit=cost.unit, combine=cost.combine)
        overlays.append(made)
    colours = summary.difference.colours
    apart = {fqn: value for fqn, value in zip(colours.fqns, colours.values, strict=True) if fqn in known}
    if apart:
        made = make_overlay(apart, [document], name=colours.title, unit=colours.unit, combine="mean", diverging=True)
        overlays.insert(0, made)
    return DiagramDocument((document,), overlays=tuple(overlays), overlay=overlays[0].name if overlays else "")


def _settings(state: BenchState, summary: BenchSummary) -> tuple[Fact, ...]:
    facts = [Fact("Target", _target(settings)) for settings in state.targets]
    facts.append(Fact("Precision", _precision(summary)))
    standard = CompileOptions()
    changed = [(one.name, getattr(state.options, one.name)) for one in fields(CompileOptions)]
    facts += [Fact(name, str(value)) for name, value in changed if value != getattr(standard, name)]
    leaves = ", ".join(name or "the model itself" for name in state.leaves)
    facts += [Fact("Kept in PyTorch", leaves)] if leaves else []
    facts += [Fact("What cannot be captured", "is kept in PyTorch")] if state.leaf_wrap else []
    fixes = ", ".join(name or "the model itself" for name in state.fixes)
    facts += [Fact("Rewritten", fixes)] if fixes else []
    facts += [Fact("Training back", state.recovery.summary)] if state.recovery is not None else []
    facts += [Fact("Results", summary.stale)] if summary.stale else []
    return tuple(facts)


def _precision(summary: BenchSummary) -> str:
    """Return what layers without a rule get, or how many layers get what, where they differ."""
    counts = Counter(summary.decisions[i].label for i in summary.planned)
    if len(counts) < 2:
        return summary.base
    return " · ".join(f"{count} {label}" for label, count in counts.most_common())


def _target(settings: DeploymentSettings) -> str:
    options = [f"{name} {value}" for name, value in settings.to_dict().items() if value is not None]
    return display_name(settings) + (f" ({', '.join(options)})" if options else "")


def _failure(failure: FailureSummary) -> ShownFailure:
    graphs = f"captured as {failure.graphs} graphs" if failure.graphs else ""
    state = "fixed" if failure.fixed else "kept in PyTorch" if failure.is_leaf else graphs
    name = failure.fqn + (f" and {failure.count - 1} more" if failure.count > 1 else "")
    return ShownFailure(name, failure.type, failure.title, failure.place, failure.code, failure.remedy, state)


def _axes(axes: Sequence[AxisSummary]) -> Table:
    rows = [
        (
            axis.path + (f" ({axis.places})" if axis.places > 1 else ""),
            str(axis.dim),
            ", ".join(map(str, axis.sizes)),
            (axis.name or axis.symbol) if axis.dynamic else "static",
            " to ".join(str(end) if end >= 0 else "any" for end in (axis.min, axis.max)) if _is_limited(axis) else "",
            axis.problem or axis.verified,
        )
        for axis in axes
    ]
    return Table("Inputs", ("input", "dim", "sizes in the samples", "size", "range", "verified"), tuple(rows), (1,))


def _is_limited(axis: AxisSummary) -> bool:
    return axis.min >= 0 or axis.max >= 0


def _rules(summary: BenchSummary) -> Table:
    rows = tuple((rule.pattern, rule.label, str(rule.layers)) for rule in summary.rules)
    return Table("Rules", ("layers", "precision", "decides for"), rows, (2,))


def _layers(summary: BenchSummary) -> Table:
    titles = [f"{column.title} ({column.unit}){', old' if column.stale else ''}" for column in summary.columns]
    ran = next((run.name for run in summary.runs if run.id == summary.shown_run), "")
    applied = f"applied, {ran}" if ran else "applied"  # targets differ in what they do
    head = ("layer", "type", "parameters", "planned", "rule", applied, "why", *titles)
    rows = []
    for i, layer in enumerate(summary.layers):
        plan = summary.decisions[summary.planned[i]]
        done = summary.outcomes[summary.applied[i]] if summary.applied else None
        results = (_joined(done.label, done.pruned), done.why) if done is not None else ("", "")
        figures = [_figure(column.values[i] if column.values else None, column.unit) for column in summary.columns]
        asked = (_joined(plan.label, plan.pruning), plan.rule)
        rows.append((layer.fqn, layer.type, f"{layer.parameters:,}", *asked, *results, *figures))
    return Table("Layers", head, tuple(rows), (2, *range(7, len(head))))


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _figure(value: float | None, unit: str) -> str:
    return "–" if value is None else number(value, unit)


def _runs(summary: BenchSummary) -> Table:
    head = ["run", "target", "made", "score", "change", "p50 ms", "p90 ms", "speed-up", "timed beside", "size MB"]
    wrote = any(run.first for run in summary.runs)
    head += ["first token ms", "tokens/s", "peak MB"] if wrote else []
    rows = [
        (
            ("★ " if run.pinned else "") + run.name,
            run.target,
            run.made.replace("T", " ").replace("+00:00", " UTC"),
            *(run.score, run.change, run.p50, run.p90, run.speed, run.eager or "–", run.size),
            *((run.first or "–", run.rate or "–", run.peak or "–") if wrote else ()),
            " ".join(filter(None, (run.error and f"✕ {run.error}", run.why, "; ".join(stale)))),
        )
        for run, stale in zip(summary.runs, (summary.staleness[at].texts for at in summary.stale_of), strict=True)
    ]
    return Table("Runs", (*head, "remarks"), tuple(rows), tuple(range(3, len(head))))


def _written(summary: BenchSummary) -> tuple[Table, ...]:
    """Return the generated texts: for each prompt, the part that equals the float model's, and the rest."""
    if not summary.written:
        return ()
    base = summary.written[0].name
    head = ("prompt", "candidate", f"tokens as {base}", f"text as {base}", "first other token", "and then")
    rows = []
    for index, prompt in enumerate(summary.prompts):
        for by in summary.written:
            if index < len(by.texts):
                text = by.texts[index]
                agree = f"{text.agree} of {text.tokens}" if by is not summary.written[0] else ""
                rows.append((prompt, by.name, agree, text.same, text.other, text.rest))
    return (Table("Generated", head, tuple(rows), (2,)),)


def _compared(summary: BenchSummary) -> tuple[Table, ...]:
    """Return the differences of the two compared runs: results, settings and layers."""
    found = summary.difference
    if not found.first:
        return ()
    parts = (("Results", found.results), ("Settings", found.settings), ("Layers", found.layers))
    return tuple(
        Table(
            f"{title} that differ",
            ("", found.first, found.second),
            tuple((row.what, row.first, row.second) for row in rows),
        )
        for title, rows in parts
        if rows
    )


def runs_chart(runs: Sequence[Run], base: str, found: Mapping[str, SpeedUp | None], most: int = _CHART) -> Chart:
    """Return the chart of the newest runs with their times as measured; those of the float model are the latest."""
    scored = [run for run in runs if run.score is not None and run.p50_ms is not None and not run.error]
    if not scored:
        return Chart()
    last = scored[-1]
    alike = [run for run in scored if _kind(run) == _kind(last)][-most:]
    points = [_point(run, last, found.get(run.id)) for run in alike]
    reference = _reference(last, base)
    chart = [*([reference] if reference else []), *points]
    per = "call" if last.generation is None else "token"
    return bench_chart(chart, last.metric, last.unit, last.higher_is_better, per=per)


def _kind(run: Run) -> tuple[str, str, bool]:
    return run.metric, run.unit, run.generation is None


def _point(run: Run, last: Run, speed: SpeedUp | None) -> ChartRun:
    texts = result_texts(run, speed)
    wrote = f", {texts['first']} ms to the first token, {texts['rate']} tokens/s, {texts['peak']} MB at most"
    here, latency = run.machine == last.machine, run.p50_ms or 0.0
    return ChartRun(
        name=run.name,
        note=f"{texts['score']}, {texts['p50']} ms, {texts['speed']}, {texts['size']} MB, {run.target_name}"
        + (wrote if run.generation is not None else ""),
        kind="run" if here else "elsewhere",
        score=math.nan if run.score is None else run.score,
        p50_ms=latency,
        p90_ms=max(run.p90_ms or 0.0, latency),
        spread=run.spread,
        size_bytes=run.size_bytes or 0,
        pinned=run.pinned,
    )


def _reference(run: Run, base: str) -> ChartRun | None:
    """Return the float model that a run was compared with; its size is unknown."""
    latency = float_ms(run)
    if latency is None or run.score is None:
        return None
    score = math.inf if run.unit == "dB" else run.score - run.change if run.change is not None else math.nan
    return ChartRun(base, "the original model", "float", score, latency, latency)


def _environment(targets: Sequence[DeploymentSettings]) -> tuple[Fact, ...]:
    packages = dict.fromkeys(["prepbench", "torch", "torchao", *(p for t in targets for p in target_for(t).packages)])
    facts = [Fact("Python", platform.python_version())]
    facts += [Fact(name, found) for name in packages if (found := _version(name))]
    cores = f"{os.cpu_count() or '?'} cores, {torch.get_num_threads()} threads of PyTorch"
    return (*facts, Fact("Machine", f"{platform.machine()} {platform.system()}, {cores}"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# The parts of a bench, and how a bench shows what they can do as its own.


P = ParamSpec("P")
T = TypeVar("T")


class Parts(Protocol):
    """What a bench consists of. None inherits from another; each gets those that it needs when it is made."""

    inputs: Inputs
    opening_notes: tuple[InputNote, ...]
    changes: Changes
    choices: Choices
    history: History
    captures: Captures
    fixing: Fixing
    run_history: Runs
    jobs: Jobs
    training: Training
    compiling: Compiling
    costs: Costs
    inspecting: Inspecting
    found: Search

    def summary(self) -> BenchSummary:
        """Return what front ends show."""


def method_of(part: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Return a method of the whole that calls the one of a part, with its signature and docstring.

    Example:
        >>> class Whole:
        ...     title = method_of("text", str.title)
        ...     text = "a bench"
        >>> Whole().title()
        'A Bench'
    """

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(getattr(self, part), *args, **kwargs)

    return call


def value_of(part: str, value: Callable[[Any], T]) -> T:
    """Return a property of the whole that reads the one of a part, with its docstring."""
    of_part: Any = value
    found: T = property(method_of(part, of_part.fget))  # type: ignore[assignment]
    return found


def attribute_of(path: str) -> Any:
    """Return a property of the whole that reads an attribute of a part, such as ``"inputs.model"``."""
    part, _, name = path.partition(".")

    def refused(whole: Any, value: Any) -> None:
        if part == "inputs":
            given = "..." if name == "model" else f"model, {name}=..."
            raise SettingsError(f"bench.{name} cannot be replaced. Make another bench: pb.Bench({given}).")
        raise SettingsError(f"bench.{name} is what the bench found or what is selected; it can be read only.")

    return property(attrgetter(path), refused, doc="")  # else it would have the docstring of attrgetter
