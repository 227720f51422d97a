"""The Python lines that do the same as the choices on the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from textwrap import indent
from typing import Any

from prepbench.bench.names import Named
from prepbench.bench.state import BenchState, label_of
from prepbench.capture.sizes.axis import Axis, pattern_of
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.settings import CompileOptions, ExplainedLayer


def code_for(
    state: BenchState, inferred: DynamicAxes, explained: Sequence[ExplainedLayer], given: Named, base: str
) -> str:
    """Python source for ``state``.

    Args:
        state: the choices.
        inferred: the axes as inferred from the samples; only differences from them are written.
        explained: what is planned for each layer.
        given: how the code names ``model``, ``tracing_inputs``, ``calibration_inputs``, ``data`` and ``metric``; what
            was not given is left out.
        base: what the float model is called in the comparison.

    Returns:
        Source that sets ``axes``, ``compiled`` and ``comparison``; with several targets ``compiled`` is a dict.
    """
    names = given.expressions
    model = names["model"]
    lines = ["import prepbench as pb", "", *given.definitions]
    lines.append(f"axes = pb.DynamicAxes.infer({names['tracing_inputs']}, {model})")
    lines += [f"axes = axes.{change}" for change in _changes(state.axes, inferred)]
    fixed = _fixes(state, names)
    lines += fixed
    called = {**names, "model": "fixed"} if fixed else names
    labels = {label_of(explained, target, base): target for target in state.targets}
    if len(labels) == 1:
        lines += ["compiled = pb.compile_model(", *_call_lines(state, explained, called, _call(state.targets[0])), ")"]
        compiled = f"{next(iter(labels))!r}: compiled"
    else:
        lines += ["targets = {", *(f"    {label!r}: {_call(target)}," for label, target in labels.items()), "}"]
        lines += ["compiled = {", "    name: pb.compile_model("]
        lines += [indent(line, "    ") for line in _call_lines(state, explained, called, "target")]
        lines += ["    )", "    for name, target in targets.items()", "}"]
        compiled = "**compiled"
    return "\n".join([*lines, _comparison(compiled, called, base)]) + "\n"


def _fixes(state: BenchState, names: Mapping[str, str]) -> list[str]:
    """Lines that apply proven fixes to a copy of the model, called ``fixed``."""
    if not state.fixes:
        return []
    fqns = ", ".join(map(repr, state.fixes))
    return [f"fixed = pb.fix({names['model']}, {names['tracing_inputs']}).model_with({fqns})"]


def _call_lines(
    state: BenchState, explained: Sequence[ExplainedLayer], names: Mapping[str, str], target: str
) -> list[str]:
    arguments = _arguments(state, explained, names, target)
    return [f"    {names['model']},", *(f"    {name}={value}," for name, value in arguments)]


def _changes(axes: DynamicAxes, inferred: DynamicAxes) -> list[str]:
    """The calls that lead from the inferred axes to these; one pattern where all that it means changes alike."""
    before = {(axis.path, axis.dim): axis for axis in inferred.axes}
    alike: dict[tuple[str, int], list[Axis]] = {}
    for axis in axes.axes:
        alike.setdefault((pattern_of(axis.path), axis.dim), []).append(axis)
    calls: list[str] = []
    for (pattern, dim), members in alike.items():
        steps = [_steps(axis, before[axis.path, axis.dim]) for axis in members]
        if len(members) > 1 and len(set(map(tuple, steps))) == 1:
            calls += [step.format(path=repr(pattern), dim=dim) for step in steps[0]]
        else:
            for axis, own in zip(members, steps, strict=True):
                calls += [step.format(path=repr(axis.path), dim=dim) for step in own]
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


def _arguments(
    state: BenchState, explained: Sequence[ExplainedLayer], names: Mapping[str, str], target: str
) -> list[tuple[str, str]]:
    quantized = any(layer.settings is not None for layer in explained)
    arguments = [("tracing_inputs", names["tracing_inputs"])]
    if quantized:
        arguments.append(("calibration_inputs", names["calibration_inputs"]))
    arguments += [("dynamic_axes", "axes"), ("deployment_settings", target)]
    if quantized:
        arguments.append(("quantization_settings", _call(state.quantization)))
    if quantized and state.rules:
        rows = "".join(f"        {key!r}: {_call(value)},\n" for key, value in state.rules.items())
        arguments.append(("layer_quantization_settings", "{\n" + rows + "    }"))
    if state.options != CompileOptions():
        arguments.append(("compile_options", _call(state.options)))
    if state.leaves:
        arguments.append(("leaf_modules", repr(list(state.leaves))))
    if not state.fullgraph:
        arguments.append(("fullgraph", "False"))
    return arguments


def _call(settings: Any) -> str:
    """A constructor call naming only the fields that differ from their defaults."""
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
