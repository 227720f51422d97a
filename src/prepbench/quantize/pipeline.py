"""The PT2E stages as functions from value to value: insert observers, calibrate, convert."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from prepbench.errors import CalibrationError, SettingsError
from prepbench.inputs import Sample, named_leaves
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.quantize._torchao import pt2e
from prepbench.quantize.annotate import make_quantizer
from prepbench.quantize.biases import fit_biases
from prepbench.quantize.layers import operators_of
from prepbench.quantize.placement import Placement
from prepbench.quantize.report import LayerReport
from prepbench.settings import ExplainedLayer


@dataclass(frozen=True)
class Observed:
    """A graph with observers in it, and what will become of each layer."""

    graph: fx.GraphModule
    layers: tuple[LayerReport, ...]


def insert_observers(
    program: torch.export.ExportedProgram,
    model: nn.Module,
    explained: Sequence[ExplainedLayer],
    placement: Placement,
    leaves: Mapping[str, str] | None = None,
) -> Observed:
    """Fold batch norms and put observers where the settings and the target want them.

    Args:
        program: the captured model; it is not changed.
        model: the model it was captured from, for parameter counts.
        explained: the decision for each layer, from :func:`prepbench.settings.explain_settings`.
        placement: the target's wishes.
        leaves: leaf-wrapped modules and why, by FQN: what is inside them cannot be quantized.

    Raises:
        SettingsError: nothing would be quantized under these settings.
    """
    settings = {layer.fqn: layer.settings for layer in explained if layer.settings is not None}
    quantizer = make_quantizer(settings, placement)
    graph = program.module(check_guards=False)
    observed = pt2e().prepare_pt2e(graph, quantizer)
    rows = tuple(_row(layer, model, quantizer, observed, leaves or {}) for layer in explained)
    if not any(row.quantized for row in rows):
        reasons = "; ".join(f"{row.fqn or 'the model'}: {row.reason}" for row in rows[:6])
        raise SettingsError(
            f"Nothing would be quantized: {reasons or 'the model has no layer with a weight matrix'}. "
            "Change layer_quantization_settings, or compile in float with quantization_settings=None."
        )
    return Observed(observed, rows)


def calibrate(observed: Observed, samples: Sequence[Sample], progress: ProgressCallback = report_nothing) -> Observed:
    """Run the samples through the observers; each learns the range of what passes it.

    Args:
        observed: from :func:`insert_observers`; its observers start afresh, so a cancelled call can be repeated.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.

    Raises:
        CalibrationError: a sample on which the graph cannot run, or an observer saw no finite range.
    """
    for module in observed.graph.modules():
        if isinstance(module, pt2e().MinMaxObserver | pt2e().PerChannelMinMaxObserver):
            module.reset_min_max_vals()
    progress(Progress("calibrate", 0, len(samples)))
    for done, sample in enumerate(samples, start=1):
        _observe(observed.graph, sample)
        progress(Progress("calibrate", done, len(samples)))
    _check_ranges(observed.graph, samples)
    fit_biases(observed.graph)
    return observed


def _observe(graph: fx.GraphModule, sample: Sample) -> None:
    try:
        with torch.no_grad():
            sample.call(graph)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        leaves = zip(_names(graph), pytree.tree_leaves((sample.args, sample.kwargs)), strict=False)
        shapes = ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in leaves if isinstance(leaf, torch.Tensor))
        raise CalibrationError(
            f"The captured graph cannot run on calibration_inputs[{sample.index}] ({shapes}): {error} "
            "Give calibration inputs of the form of the tracing inputs; sizes may differ along dynamic axes only."
        ) from error


def _names(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]


def convert(observed: Observed) -> fx.GraphModule:
    """Replace observers by quantize and dequantize operators with the learned scales; weights become int8 constants."""
    converted = pt2e().convert_pt2e(observed.graph)
    assert isinstance(converted, fx.GraphModule)
    _forget_unused(converted)
    return converted.requires_grad_(False)


def _forget_unused(graph: fx.GraphModule) -> None:
    """Drop the float weights that int8 ones replace; they would be saved with the model."""
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for module_name, module in graph.named_modules():
        prefix = f"{module_name}." if module_name else ""
        for name in [*module._parameters, *module._buffers]:
            if prefix + name not in used:
                delattr(module, name)


def check_calibration(function: Callable[..., Any], samples: Sequence[Sample]) -> None:
    """Raise ``CalibrationError`` for a sample with NaN in it, naming the sample and the argument."""
    for sample in samples:
        for path, leaf in named_leaves(function, sample):
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not bool(leaf.isnan().any()):
                continue
            count = int(leaf.isnan().sum())
            raise CalibrationError(
                f"calibration_inputs[{sample.index}]: {path} holds {count} NaN (of {leaf.numel()} values). "
                "Scales learned from it would be NaN: remove the sample or repair its preprocessing."
            )


def _check_ranges(graph: fx.GraphModule, samples: Sequence[Sample]) -> None:
    for node in graph.graph.nodes:
        if node.op != "call_module" or not str(node.target).startswith("activation_post_process"):
            continue
        observer = graph.get_submodule(str(node.target))
        low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
        if low is None or high is None or bool((low.isfinite() & high.isfinite()).all()):
            continue
        found = _infinite(graph, samples)
        where = f"Infinite are {', '.join(found[:5])}: repair or remove them" if found else "No input is infinite"
        raise CalibrationError(
            f"The values of {_place(node.args[0])} reach from {float(low.min())} to {float(high.max())} on the "
            f"calibration inputs, so no scale fits them. {where}; or keep this layer in float "
            "(LayerQuantizationSettings(skip_quantization=True))."
        )


def _infinite(graph: fx.GraphModule, samples: Sequence[Sample]) -> list[str]:
    """Which samples hold infinities, with the names that the graph gives to its inputs."""
    return [
        f"calibration_inputs[{sample.index}]: {name}"
        for sample in samples
        for name, leaf in zip(_names(graph), pytree.tree_leaves((sample.args, sample.kwargs)), strict=False)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and bool(leaf.isinf().any())
    ]


def _place(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    where = stack[-1][0] if stack and stack[-1][0] else "the model"
    return f"{node.name} in {where}"


def _row(
    layer: ExplainedLayer, model: nn.Module, quantizer: Any, graph: fx.GraphModule, leaves: Mapping[str, str]
) -> LayerReport:
    parameters = sum(p.numel() for p in model.get_submodule(layer.fqn).parameters())
    if layer.settings is not None and layer.fqn in quantizer.quantized:
        only_weights = layer.settings.prefer_weights_only_quantization
        return LayerReport(
            layer.fqn,
            layer.type,
            parameters,
            weights_bits=layer.settings.weights_num_bits,
            activations_bits=32 if only_weights else layer.settings.activations_num_bits,
            rule=layer.rule,
            reason="weights only, by the settings" if only_weights else "",
        )
    reason = quantizer.refused.get(layer.fqn) or _why_not(layer, model, graph, leaves)
    return LayerReport(layer.fqn, layer.type, parameters, rule=layer.rule, reason=reason)


def _why_not(layer: ExplainedLayer, model: nn.Module, graph: fx.GraphModule, leaves: Mapping[str, str]) -> str:
    if layer.settings is None:
        return f"skipped by rule {layer.rule!r}"
    for fqn, reason in leaves.items():
        if layer.fqn == fqn or fqn == "" or layer.fqn.startswith(fqn + "."):
            return f"inside leaf-wrapped {fqn or 'model'} ({reason})"
    weight = model.get_submodule(layer.fqn)._parameters.get("weight")
    if weight is not None and weight.dtype != torch.float32:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}; only float32 is quantized (model.float())"
    operators = operators_of(graph.graph, layer.fqn)
    if not operators:
        return "not called on the tracing inputs"
    return f"no int8 form of {', '.join(operators[:3])}"
