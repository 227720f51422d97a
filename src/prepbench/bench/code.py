"""The Python lines that do the same as the choices on the bench."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from prepbench.bench.state import BenchState
from prepbench.capture.sizes.dynamic_axes import DynamicAxes


def code_for(
    state: BenchState, inferred: DynamicAxes, *, data: bool, metric: str | None, forward: str = "model"
) -> str:
    """Python source for ``state``.

    Args:
        state: the choices.
        inferred: the axes as inferred from the samples; only differences from them are written.
        data: whether labelled data was given to compare on (else the calibration inputs serve).
        metric: the metric as an expression, e.g. ``"pb.metrics.accuracy"``.
        forward: the name of the model variable.

    Returns:
        Source that reads the variables ``model``, ``tracing_inputs``, ``calibration_inputs`` (and ``data``, ``metric``
        where used), and sets ``axes``, ``compiled`` and ``comparison``.
    """
    lines = ["import prepbench as pb", "", f"axes = pb.DynamicAxes.infer(tracing_inputs, {forward})"]
    for axis, base in zip(state.axes.axes, inferred.axes, strict=True):
        if axis.dynamic != base.dynamic:
            lines.append(f"axes = axes.set({axis.path!r}, {axis.dim}, {axis.dynamic})")
    lines += ["compiled = pb.compile_model(", f"    {forward},"]
    lines += [f"    {name}={value}," for name, value in _arguments(state)]
    lines += [")", _comparison(state, data, metric, forward)]
    return "\n".join(lines) + "\n"


def _arguments(state: BenchState) -> list[tuple[str, str]]:
    settings = state.quantization_settings()
    arguments = [("tracing_inputs", "tracing_inputs")]
    if settings is not None:
        arguments.append(("calibration_inputs", "calibration_inputs"))
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


def _comparison(state: BenchState, data: bool, metric: str | None, forward: str) -> str:
    candidates = f'{{"float32": {forward}, {state.label!r}: compiled}}'
    source = "data" if data else "calibration_inputs"
    ending = f", metric={metric}" if metric else ""
    return f"comparison = pb.compare({candidates}, {source}{ending})"
