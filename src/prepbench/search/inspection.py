"""``inspect_layer``: one layer in detail: values and their grids, the error, the cost, and what else it could be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from prepbench._display import view
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_progress, check_text, check_type, described, nearest_are
from prepbench.compile import KeptStages
from prepbench.compile.request import CompileRequest
from prepbench.compile.simulation import Simulation
from prepbench.document.model import SourceLine
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.measure.profile import Profile
from prepbench.package.compiled import CompiledModel
from prepbench.progress_bar import shows_progress
from prepbench.quantize import LayerReport
from prepbench.quantize.layer_noise import bounded_decibels
from prepbench.quantize.layer_values import LayerError, TensorValues
from prepbench.running.callable_module import as_module
from prepbench.running.source_lines import frame_of
from prepbench.running.transforms import chosen_transform
from prepbench.search.candidates import name_of_settings, named_candidates
from prepbench.settings import (
    CompileOptions,
    DeploymentSettings,
    LayerQuantizationSettings,
    OnnxRuntimeDeployment,
    QuantizationSettings,
    explain_settings,
    is_within,
    weight_formats,
)
from prepbench.settings.numbers import format_of_bits

if TYPE_CHECKING:
    import plotly.graph_objects

FLOAT = "float"
"""The name of what a layer is without quantization."""


@shows_progress("inspect_layer")
def inspect_layer(
    model: Callable[..., Any],
    calibration_inputs: Iterable[Any],
    layer: str,
    *,
    compiled: CompiledModel | None = None,
    profile: Profile | None = None,
    candidates: Mapping[str, QuantizationSettings] | Sequence[QuantizationSettings] | None = None,
    quantization_settings: QuantizationSettings | None = None,
    layer_quantization_settings: Mapping[str, LayerQuantizationSettings] | None = None,
    deployment_settings: DeploymentSettings | None = None,
    tracing_inputs: Iterable[Any] | None = None,
    compile_options: CompileOptions | None = None,
    dynamic_axes: DynamicAxes | None = None,
    forward_fn: Callable[..., Any] | None = None,
    data_transform_fn: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    fullgraph: bool = True,
    reuse: KeptStages | None = None,
    progress: ProgressCallback = report_nothing,
) -> LayerInspection:
    """Look at one layer: its weights and activations and the grids that they are rounded to, the error of its output,
    what it costs, and what it would be with other settings.

    The model is captured once and simulated in PyTorch, as :func:`prepbench.sensitivity` does. All other layers are in
    float, so the error is this layer's own. Weights and activations are counted on all calibration inputs, the error is
    measured on a few of them, spread over all.

    Args:
        model: a module, a function, or a bound method of a module. It is left as it was.
        calibration_inputs: representative samples, as for ``compile_model``.
        layer: its fully qualified name, as in ``model.named_modules()``.
        compiled: what ``compile_model`` made of the model: the layer is looked at as it was decided there, for the
            target of that compile. Without it, as the settings say.
        profile: of the model or of ``compiled``, from :func:`prepbench.profile`: adds the layer's time.
        candidates: settings by name, or a list of settings, to compare with. By default those of
            :func:`prepbench.sensitivity`. Float is always among them.
        quantization_settings: as for ``compile_model``; ``QuantizationSettings()`` by default.
        layer_quantization_settings: as for ``compile_model``.
        deployment_settings: the target; ``OnnxRuntimeDeployment()`` by default. Its packages are not needed.
        tracing_inputs: as for ``compile_model``.
        compile_options: the algorithms around quantization; floors play no part.
        dynamic_axes: as for ``compile_model``.
        forward_fn: as for ``compile_model``.
        data_transform_fn: as for ``compile_model``.
        transform: as for ``compile_model``.
        fullgraph: as for ``compile_model``.
        reuse: captures of earlier compiles, which are not made again.
        progress: receives each step; it may raise :class:`prepbench.Cancelled`.

    Returns:
        A :class:`LayerInspection`: numbers, a figure and text.

    Raises:
        UnknownNameError: the model has no such layer, or the target cannot quantize it.
        SettingsError: a candidate that the target lacks, or an argument of another type.
        InputError: samples that the model does not take.
        CalibrationError: a sample holds NaN, or values become NaN or infinite on it.
        CaptureError: the model cannot be captured as one graph.

    Example:
        >>> found = pb.inspect_layer(model, samples, "0")
        >>> found.weight.grid.format, [one.name for one in found.what_if]
        ('int8', ['float', 'int8', 'int8 weights', 'int4 weights in blocks of 32'])
    """
    check_text("layer", layer, "encoder.layers.0.linear1")
    check_progress(progress)
    check_type("compiled", compiled, CompiledModel, "Give what compile_model returned.", optional=True)
    check_type("profile", profile, Profile, "Give what pb.profile returned.", optional=True)
    deployment = _deployment(compiled, deployment_settings)
    request = CompileRequest(
        model=model,
        calibration_inputs=calibration_inputs,
        tracing_inputs=tracing_inputs,
        deployment_settings=deployment,
        quantization_settings=QuantizationSettings() if quantization_settings is None else quantization_settings,
        layer_quantization_settings=layer_quantization_settings,
        compile_options=compile_options,
        dynamic_axes=dynamic_axes,
        forward_fn=forward_fn,
        data_transform_fn=chosen_transform(transform, data_transform_fn),
        fullgraph=fullgraph,
        reuse=reuse,
    )
    request.check()
    named = named_candidates(candidates, request.settings)
    simulation = Simulation.captured(replace(request, layer_quantization_settings=None), progress)
    names = [name for name, _ in as_module(model).named_modules()]
    check_inspected(simulation, layer, names)
    planned = planned_layer(request, layer)
    if compiled is not None:
        planned = decided_layer(compiled, layer, planned.settings)
    row = None if profile is None else next((one for one in profile.rows if one.is_layer and one.name == layer), None)
    timed = profile.target if profile is not None else ""
    time = LayerTime(row.ms, row.share, timed) if row is not None else None
    found = inspected(simulation, layer, planned, named, progress)
    return found if time is None else replace(found, time=time)


def _deployment(compiled: CompiledModel | None, given: DeploymentSettings | None) -> DeploymentSettings:
    if compiled is None:
        return OnnxRuntimeDeployment() if given is None else given
    if given is not None and given != compiled.deployment_settings:
        raise SettingsError(
            "deployment_settings are others than those that compiled was made for. Leave deployment_settings out."
        )
    return compiled.deployment_settings


@dataclass(frozen=True)
class PlannedLayer:
    """The settings of a layer, None in float, and the rule that decided or the reason for float."""

    settings: QuantizationSettings | None
    why: str = ""


def planned_layer(request: CompileRequest, fqn: str) -> PlannedLayer:
    """Return the settings that a request has for a layer; of several numbers of bits, the most."""
    settings = request.quantization_settings or QuantizationSettings()
    explained = explain_settings(as_module(request.model), settings, request.layer_quantization_settings)
    for one in explained:
        if one.fqn == fqn:
            return plan_of(one.settings, one.rule)
    return plan_of(settings, "global")


def plan_of(settings: QuantizationSettings | None, rule: str) -> PlannedLayer:
    """Return what a rule plans for a layer."""
    if settings is None:
        return PlannedLayer(None, f"left in float by rule {rule!r}")
    return PlannedLayer(list(settings.candidates())[-1], f"by rule {rule!r}" if rule != "global" else "")


def decided_layer(compiled: CompiledModel, fqn: str, planned: QuantizationSettings | None) -> PlannedLayer:
    """Return the settings that a compile decided on for a layer, from its report."""
    row = next((one for one in compiled.report.layers if one.fqn == fqn), None)
    return PlannedLayer(None, "the model was compiled in float") if row is None else decided_by(row, planned)


def decided_by(row: LayerReport, planned: QuantizationSettings | None) -> PlannedLayer:
    """Return the settings that a compile decided on for a layer.

    Args:
        row: of the compile's report.
        planned: the settings that the layer was to have, which say what the report doesn't.
    """
    if not row.quantized:
        return PlannedLayer(None, row.reason or "left in float by the compile")
    base = QuantizationSettings() if planned is None else planned
    if weight_formats(base)[0] != row.weights:
        base = replace(base, weights_num_bits=row.weights.asked)
    activations = format_of_bits(row.activations_bits)
    if activations.is_float:
        block = row.block_size
        settings = replace(base, prefer_weights_only_quantization=True, weights_only_quantization_block_size=block)
    else:
        bits, observer = row.activations_bits, row.observer or base.observer
        settings = replace(base, prefer_weights_only_quantization=False, activations_num_bits=bits, observer=observer)
    return PlannedLayer(settings, f"by rule {row.rule!r}" if row.rule != "global" else "")


def check_inspected(simulation: Simulation, fqn: str, modules: Sequence[str]) -> None:
    """Raise ``UnknownNameError`` unless the target can quantize a layer of this name; ``modules`` has all names."""
    layers = simulation.layers
    if fqn in layers:
        return
    if not layers:
        raise UnknownNameError(f"layer: the model has no layer that {simulation.target} can quantize.")
    inner = [name for name in layers if is_within(name, fqn)]
    known = nearest_are(fqn, layers)
    if fqn in modules and inner:
        what = "is a module around layers, and one layer is inspected at a time"
        known = f"Its layers are {', '.join(map(repr, inner[:8]))}."
    elif fqn in simulation.source.layers:
        what = f"is not quantized on {simulation.target}: the graph calls it in no form that the target takes"
    elif fqn in modules:
        what = "has no weight matrix, so nothing of it is quantized"
    else:
        what = "is no layer of the model"
    raise UnknownNameError(f"layer: {described(fqn)} {what}. {known}")


# What is found.


@dataclass(frozen=True)
class WhatIf:
    """What a layer would be with some settings.

    Attributes:
        name: of the settings, such as ``"int8"``, or ``"float"``.
        settings: None for float.
        sqnr: of the layer's output in dB, limited to 300; None for float, which adds no error, and where refused.
        weights_bytes: of its weights with scales; None where refused.
        change: bytes more than with the settings that the layer has; None where refused.
        refusal: why the target cannot take the layer so; empty if it can.
    """

    name: str
    settings: QuantizationSettings | None
    sqnr: float | None
    weights_bytes: int | None
    change: int | None
    refusal: str = ""


@dataclass(frozen=True)
class LayerTime:
    """The milliseconds of a layer in one call, its share of the call (0 to 1), and the target where it was measured."""

    ms: float
    share: float
    target: str


@dataclass(frozen=True, repr=False)
class LayerInspection:
    """One layer in detail, from :func:`prepbench.inspect_layer`.

    Attributes:
        layer: its fully qualified name.
        type: its class name.
        target: the deployment target as people call it.
        decided: the name of its settings, such as ``"int8"``, or ``"float"``.
        why: the rule that decided, or the reason for float; empty for the global settings.
        shown: the name of the settings that grids and the error are of: those that the layer has, and for a layer in
            float the first of :attr:`what_if` that the target can take; empty if there is none.
        weight: its weights; where several tensors are multiplied by, the channels of one after those of the other.
        input: what it reads, on all calibration inputs, before it is quantized.
        output: what it returns, likewise.
        error: of its output with the settings that are shown, on a few calibration inputs.
        what_if: other settings, and float.
        parameters: the trainable numbers of it.
        multiplications: of it for the first calibration input.
        weights_bytes: of its weights with the settings that it has.
        float_bytes: of its weights in float32.
        time: of it, if it was profiled.
        calls: how often one call of the model calls it.
        samples: how many calibration inputs were counted.
        source: the line of the model's source that calls it; None where it isn't known.
        frame: the lines around it; empty where they aren't known.

    Example:
        >>> found = pb.inspect_layer(model, samples, "0")
        >>> found.error.sqnr > 20, found.weight.grid.clipped
        (True, 0.0)
    """

    layer: str
    type: str
    target: str
    decided: str
    why: str
    shown: str
    weight: TensorValues
    input: TensorValues
    output: TensorValues
    error: LayerError | None
    what_if: tuple[WhatIf, ...]
    parameters: int
    multiplications: int
    weights_bytes: int
    float_bytes: int
    time: LayerTime | None = None
    calls: int = 1
    samples: int = 0
    source: SourceLine | None = None
    frame: str = field(default="", repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that ``json.dumps`` takes.

        Returns:
            The attributes by name; settings as their fields.
        """
        return asdict(self)

    def figure(self) -> plotly.graph_objects.Figure:
        """Draw the values of weights and input with their grids, and the error of the output.

        Returns:
            A chart with four parts: both histograms, outputs in float against quantized ones, and each channel's SQNR.
        """
        return view("views.layer_charts", "inspection_figure", self)

    @property
    def caption(self) -> str:
        """One or two sentences on how it was measured."""
        return view("views.layer_charts", "caption", self)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return view("views.layer_charts", "inspection_text", self)  # type: ignore[no-any-return]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return view("views.layer_charts", "inspection_bundle", self)  # type: ignore[no-any-return]


def inspected(
    simulation: Simulation,
    fqn: str,
    planned: PlannedLayer,
    candidates: Mapping[str, QuantizationSettings],
    progress: ProgressCallback = report_nothing,
) -> LayerInspection:
    """Look at one layer of a captured model, beside candidates that the target supports; see :func:`inspect_layer`."""
    settings, why = planned.settings, planned.why
    if settings is not None and (refusal := simulation.refusal(fqn, settings)):
        settings, why = None, refusal
    decided = FLOAT if settings is None else _name_in(candidates, settings)
    named = dict(candidates) if settings is None else {decided: settings, **candidates}
    refused = {name: simulation.refusal(fqn, one) for name, one in named.items()}
    taken = {name: one for name, one in named.items() if not refused[name]}
    shown = decided if settings is not None else next(iter(taken), "")
    noise = simulation.layer_noise(fqn, taken, progress)
    now = simulation.weight_bytes(fqn, settings)
    sizes = {name: simulation.weight_bytes(fqn, one) for name, one in taken.items()}
    in_float = simulation.weight_bytes(fqn, None)
    what_if = [WhatIf(FLOAT, None, None, in_float, in_float - now)]
    for name in [*(one for one in candidates if one in named), *(one for one in named if one not in candidates)]:
        size = sizes.get(name)
        sqnr = bounded_decibels(noise[name]) if name in noise else None
        change = None if size is None else size - now
        what_if.append(WhatIf(name, named[name], sqnr, size, change, refused[name]))
    if not shown:
        reasons = "; ".join(dict.fromkeys(refused.values()))
        raise SettingsError(f"candidates: {simulation.target} takes the layer {fqn!r} with none of them: {reasons}.")
    values = simulation.layer_values(fqn, taken[shown], progress)
    source = simulation.place(fqn)
    return LayerInspection(
        layer=fqn,
        type=simulation.types[fqn],
        target=simulation.target,
        decided=decided,
        why=why,
        shown=shown,
        weight=values.weight,
        input=values.input,
        output=values.output,
        error=values.error,
        what_if=tuple(what_if),
        parameters=simulation.parameters[fqn],
        multiplications=simulation.multiplications[fqn],
        weights_bytes=now,
        float_bytes=in_float,
        calls=values.calls,
        samples=len(simulation.source.samples),
        source=source,
        frame="" if source is None else frame_of(source),
    )


def _name_in(candidates: Mapping[str, QuantizationSettings], settings: QuantizationSettings) -> str:
    """Return the name of settings: a candidate's, or else their own."""
    same = (name for name, one in candidates.items() if one == settings)
    own = name_of_settings(settings)
    return next(same, own if own not in candidates else f"{own}, as set")
