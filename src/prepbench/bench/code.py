"""Python code that does the same as the choices on the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from textwrap import indent
from typing import Any

from prepbench.bench.recovering import TrainingData
from prepbench.bench.state import BenchState, label_of
from prepbench.bench.variables import Named, input_groups
from prepbench.capture.sizes.axis import Axis
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.settings import CompileOptions, ExplainedLayer


def code_for(
    state: BenchState,
    inferred: DynamicAxes,
    explained: Sequence[ExplainedLayer],
    given: Named,
    base: str,
    *,
    writes: bool = False,
    training: TrainingData | None = None,
    training_done: str = "",
) -> str:
    """Return the Python source for ``state``.

    Args:
        state: the choices.
        inferred: the axes as inferred from the samples; only differences from them are written.
        explained: the plan for each layer.
        given: the code's names of ``model``, ``tracing_inputs``, ``calibration_inputs``, ``data``, ``metric`` and
            ``decode``; missing arguments are left out.
        base: the name of the float model in the comparison.
        writes: whether text is generated.
        training: the training data, if there is any.
        training_done: how the last such training ended, where it was not over.

    Returns:
        Source that sets ``axes``, ``compiled`` and ``comparison``; with several targets ``compiled`` is a dict. The
        generated texts are ``written``, the trained model is ``prepared``, and ``recovery`` is the training's result.
    """
    names, definitions = given.expressions, list(given.definitions)
    if "calibration_inputs" not in names and _calibrates(state, explained):
        # choices made with samples outlive them: a bench that was saved with them may be opened without
        names = {**names, "calibration_inputs": "calibration_inputs"}
        definitions.append("calibration_inputs = [...]  # put here representative samples")
    model = names["model"]
    lines = ["import prepbench as pb", "", *definitions]
    lines.append(f"axes = pb.DynamicAxes.infer({names['tracing_inputs']}, {model})")
    lines += [f"axes = axes.{change}" for change in _changes(state.axes, inferred)]
    fixed = _fixes(state, names)
    lines += fixed
    called = {**names, "model": "fixed"} if fixed else names
    labels = {label_of(state, explained, target, base): target for target in state.targets}
    trains = state.recovery is not None and training is not None
    made, function = ("prepared", "pb.trainable(") if trains else ("compiled", "pb.compile_model(")
    if len(labels) == 1:
        lines += [f"{made} = {function}", *_call_lines(state, explained, called, _call(state.targets[0])), ")"]
        if trains:
            lines += [f"# it {training_done}"] if training_done else []
            lines += [f"recovery = {_recover(state, called, training, 'prepared')}"]
            lines += ["compiled = pb.compile_model(prepared)"]
        compiled = f"{next(iter(labels))!r}: compiled"
    else:
        lines += ["targets = {", *(f"    {label!r}: {_call(target)}," for label, target in labels.items()), "}"]
        lines += [f"{made} = {{", f"    name: {function}"]
        lines += [indent(line, "    ") for line in _call_lines(state, explained, called, "target")]
        lines += ["    )", "    for name, target in targets.items()", "}"]
        if trains:
            lines += [f"# the last one {training_done}"] if training_done else []
            each = _recover(state, called, training, "each")
            lines += [f"recovery = {{name: {each} for name, each in prepared.items()}}"]
            lines += ["compiled = {name: pb.compile_model(each) for name, each in prepared.items()}"]
        compiled = "**compiled"
    lines.append(_comparison(compiled, called, base))
    lines += [f"written = comparison.generated({called.get('decode', '')})"] if writes else []
    lines.append("comparison")  # a cell shows its last line
    return "\n".join(lines) + "\n"


def _fixes(state: BenchState, names: Mapping[str, str]) -> list[str]:
    """Return the lines that apply proven fixes to a copy of the model, called ``fixed``."""
    if not state.fixes:
        return []
    fqns = ", ".join(map(repr, state.fixes))
    return [f"fixed = pb.fix({names['model']}, {names['tracing_inputs']}).model_with({fqns})"]


def _call_lines(
    state: BenchState, explained: Sequence[ExplainedLayer], names: Mapping[str, str], target: str
) -> list[str]:
    arguments = _arguments(state, explained, names, target)
    return [f"    {names['model']},", *(f"    {name}={value}," for name, value in arguments)]


def _recover(state: BenchState, names: Mapping[str, str], training: TrainingData | None, prepared: str) -> str:
    """Return the call that trains."""
    settings = state.recovery
    assert settings is not None
    assert training is not None
    data = next(names[kind] for kind in ("training_data", "calibration_inputs", "tracing_inputs") if kind in names)
    given = [prepared, data, *([names["loss"]] if training.loss is not None else [])]
    given += [f"teacher={names['model']}"] if settings.distill else []
    standard = {"learning_rate": 1e-3}
    for name, value in training.arguments(settings).items():
        if standard.get(name) != value:
            given.append(f"{name}={names['metric'] if name == 'metric' else repr(value)}")
    return f"pb.recover({', '.join(given)})"


def _changes(axes: DynamicAxes, inferred: DynamicAxes) -> list[str]:
    """Return the calls that turn the inferred axes into these; inputs of one group share a call."""
    before = {(axis.path, axis.dim): axis for axis in inferred.axes}
    calls: list[str] = []
    for dim in sorted({axis.dim for axis in axes.axes}):
        changes: dict[str, tuple[str, ...] | None] = dict.fromkeys(axis.path for axis in axes.axes)
        changes |= {axis.path: tuple(_steps(axis, before[axis.path, dim])) for axis in axes.axes if axis.dim == dim}
        for group in input_groups(changes):
            steps = changes[group.members[0]] or ()
            calls += [step.format(path=repr(path), dim=dim) for path in group.paths for step in steps]
    return list(dict.fromkeys(calls))


def _steps(axis: Axis, before: Axis) -> list[str]:
    steps = []
    if axis.dynamic != before.dynamic:
        steps.append(f"set({{path}}, {{dim}}, {axis.dynamic})")
    if axis.named and not before.named:
        steps.append(f"rename({{path}}, {{dim}}, {axis.symbol!r})")
    if (axis.minimum, axis.maximum) != (before.minimum, before.maximum):
        steps.append(f"limit({{path}}, {{dim}}, min={axis.minimum}, max={axis.maximum})")
    return steps


def _calibrates(state: BenchState, explained: Sequence[ExplainedLayer]) -> bool:
    return state.pruning_needs_samples or any(layer.settings is not None for layer in explained)


def _arguments(
    state: BenchState, explained: Sequence[ExplainedLayer], names: Mapping[str, str], target: str
) -> list[tuple[str, str]]:
    quantized = any(layer.settings is not None for layer in explained)
    arguments = [("tracing_inputs", names["tracing_inputs"])]
    if _calibrates(state, explained):
        arguments.append(("calibration_inputs", names["calibration_inputs"]))
    arguments += [("dynamic_axes", "axes"), ("deployment_settings", target)]
    if quantized:
        arguments.append(("quantization_settings", _call(state.quantization)))
    if quantized and state.rules:
        arguments.append(("layer_quantization_settings", _table(state.rules)))
    if state.pruning is not None:
        arguments.append(("pruning_settings", _call(state.pruning)))
    if state.pruning_rules:
        arguments.append(("layer_pruning_settings", _table(state.pruning_rules)))
    if state.options != CompileOptions():
        arguments.append(("compile_options", _call(state.options)))
    if state.leaves:
        arguments.append(("leaf_modules", repr(list(state.leaves))))
    if not state.fullgraph:
        arguments.append(("fullgraph", "False"))
    return arguments


def _table(rules: Mapping[str, Any]) -> str:
    rows = "".join(f"        {key!r}: {_call(value)},\n" for key, value in rules.items())
    return "{\n" + rows + "    }"


def _call(settings: Any) -> str:
    """Return a constructor call with only the fields that differ from their defaults."""
    default = type(settings)()
    changed = [
        f"{f.name}={getattr(settings, f.name)!r}"
        for f in fields(settings)
        if getattr(settings, f.name) != getattr(default, f.name)
    ]
    return f"pb.{type(settings).__name__}({', '.join(changed)})"


def _comparison(compiled: str, names: Mapping[str, str], base: str) -> str:
    candidates = f'{{"{base}": {names["model"]}, {compiled}}}'
    source = next(names[kind] for kind in ("data", "calibration_inputs", "tracing_inputs") if kind in names)
    ending = f", metric={names['metric']}" if "metric" in names else ""
    return f"comparison = pb.compare({candidates}, {source}{ending})"
