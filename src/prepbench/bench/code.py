"""The Python lines that do the same as the choices on the bench."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from prepbench.bench.names import Named
from prepbench.bench.state import BenchState
from prepbench.capture.sizes.axis import Axis, pattern_of
from prepbench.capture.sizes.dynamic_axes import DynamicAxes


def code_for(state: BenchState, inferred: DynamicAxes, given: Named) -> str:
    """Python source for ``state``.

    Args:
        state: the choices.
        inferred: the axes as inferred from the samples; only differences from them are written.
        given: how the code names ``model``, ``tracing_inputs``, ``calibration_inputs``, ``data`` and ``metric``; what
            was not given is left out.

    Returns:
        Source that sets ``axes``, ``compiled`` and ``comparison``.
    """
    names = given.expressions
    model = names["model"]
    lines = ["import prepbench as pb", "", *given.definitions]
    lines.append(f"axes = pb.DynamicAxes.infer({names['tracing_inputs']}, {model})")
    lines += [f"axes = axes.set({path!r}, {dim}, {dynamic})" for path, dim, dynamic in _changes(state.axes, inferred)]
    lines += ["compiled = pb.compile_model(", f"    {model},"]
    lines += [f"    {name}={value}," for name, value in _arguments(state, names)]
    lines += [")", _comparison(state, names)]
    return "\n".join(lines) + "\n"


def _changes(axes: DynamicAxes, inferred: DynamicAxes) -> list[tuple[str, int, bool]]:
    """Path, dim and choice of what differs from the inferred axes; one pattern where all that it means does."""
    alike: dict[tuple[str, int], list[Axis]] = {}
    for axis in axes.axes:
        alike.setdefault((pattern_of(axis.path), axis.dim), []).append(axis)
    before = {(axis.path, axis.dim): axis.dynamic for axis in inferred.axes}
    changes = []
    for (pattern, dim), members in alike.items():
        changed = [axis for axis in members if axis.dynamic != before[axis.path, dim]]
        if len(changed) == len(members) > 1 and len({axis.dynamic for axis in changed}) == 1:
            changes.append((pattern, dim, changed[0].dynamic))
        else:
            changes += [(axis.path, dim, axis.dynamic) for axis in changed]
    return changes


def _arguments(state: BenchState, names: Mapping[str, str]) -> list[tuple[str, str]]:
    settings = state.quantization_settings()
    arguments = [("tracing_inputs", names["tracing_inputs"])]
    if settings is not None:
        arguments.append(("calibration_inputs", names["calibration_inputs"]))
    arguments += [("dynamic_axes", "axes"), ("deployment_settings", _call(state.deployment()))]
    if settings is not None:
        arguments.append(("quantization_settings", _call(settings)))
    layers = state.layer_settings()
    if layers:
        rows = "".join(f"        {fqn!r}: {_call(value)},\n" for fqn, value in layers.items())
        arguments.append(("layer_quantization_settings", "{\n" + rows + "    }"))
    if state.leaf_wrap:
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


def _comparison(state: BenchState, names: Mapping[str, str]) -> str:
    candidates = f'{{"float32": {names["model"]}, {state.label!r}: compiled}}'
    source = next(names[kind] for kind in ("data", "calibration_inputs", "tracing_inputs") if kind in names)
    ending = f", metric={names['metric']}" if "metric" in names else ""
    return f"comparison = pb.compare({candidates}, {source}{ending})"
