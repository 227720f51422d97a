"""The PT2E stages as functions from value to value: insert observers, calibrate, convert."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat import pytree
from prepbench.errors import CalibrationError, SettingsError, sentence
from prepbench.inputs import Sample, named_leaves
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.quantize._torchao import pt2e
from prepbench.quantize.algorithms import equalize, smooth
from prepbench.quantize.annotate import annotate
from prepbench.quantize.biases import fit_biases
from prepbench.quantize.decide import Decisions, decide
from prepbench.quantize.layers import layer_calls, operators_of
from prepbench.quantize.measure import all_observers, decibels, first_not_finite, observer_of, set_mode
from prepbench.quantize.observers import replace_by_blocks
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan, make_plan
from prepbench.quantize.report import LayerReport
from prepbench.quantize.skips import skipped_downstream
from prepbench.settings import CompileOptions, ExplainedLayer


@dataclass(frozen=True)
class Observed:
    """A graph with observers in it, and what will become of each layer.

    Attributes:
        graph: the graph, which the stages change.
        layers: what becomes of each layer.
        plan: which values the observers stand for.
        options: algorithms and floors.
        model_sqnr: SQNR of the outputs on calibration samples in dB, once it has been measured.
    """

    graph: fx.GraphModule
    layers: tuple[LayerReport, ...]
    plan: Plan = field(default_factory=Plan)
    options: CompileOptions = field(default_factory=CompileOptions)
    model_sqnr: float | None = None


def insert_observers(
    program: torch.export.ExportedProgram,
    model: nn.Module,
    explained: Sequence[ExplainedLayer],
    placement: Placement,
    leaves: Mapping[str, str] | None = None,
    *,
    options: CompileOptions | None = None,
    samples: Sequence[Sample] = (),
    progress: ProgressCallback = report_nothing,
) -> Observed:
    """Fold batch norms, apply the algorithms that change weights, and put observers where settings and target want.

    Args:
        program: the captured model; it is not changed.
        model: the model it was captured from, for parameter counts.
        explained: the decision for each layer, from :func:`prepbench.settings.explain_settings`.
        placement: the target's wishes.
        leaves: leaf-wrapped modules and why, by FQN: what is inside them cannot be quantized.
        options: which algorithms.
        samples: calibration inputs, for the algorithms that need some.
        progress: called after each sample; may raise to cancel.

    Raises:
        SettingsError: nothing would be quantized under these settings.
    """
    options = options or CompileOptions()
    graph = program.module(check_guards=False)
    if options.fold_batch_norm:
        pt2e().fuse_conv_bn(graph)
        pt2e().fuse_linear_bn(graph)
    behind = skipped_downstream(graph.graph, explained)
    settings = {row.fqn: row.settings for row in explained if row.settings is not None and row.fqn not in behind}
    notes = _transform(graph, settings, options, samples, progress)
    plan = make_plan(graph, settings, placement)
    rows = tuple(_row(layer, model, plan, graph, leaves or {}, behind, notes) for layer in explained)
    if not any(row.quantized for row in rows):
        reasons = "; ".join(f"{row.fqn or 'the model'}: {row.reason}" for row in rows[:6])
        raise SettingsError(
            f"Nothing would be quantized: {reasons or 'the model has no layer with a weight matrix'}. "
            "Change layer_quantization_settings, or compile in float with quantization_settings=None."
        )
    annotate(graph, plan, placement, options.percentile)
    observed = pt2e().prepare(graph, pt2e().scopes(graph), is_qat=False)
    return Observed(observed, rows, plan, options)


def _transform(
    graph: fx.GraphModule,
    settings: Mapping[str, object],
    options: CompileOptions,
    samples: Sequence[Sample],
    progress: ProgressCallback,
) -> dict[str, str]:
    """Apply the algorithms that change weights without changing what is computed; returns notes by FQN."""
    notes: dict[str, list[str]] = {}
    if options.cross_layer_equalization:
        for fqn in equalize(graph, layer_calls(graph.graph, settings)):
            notes.setdefault(fqn, []).append("weights equalised")
    if options.smooth_quant:
        calls = layer_calls(graph.graph, settings)
        for fqn in smooth(graph, calls, samples, progress, options.smooth_quant_strength):
            notes.setdefault(fqn, []).append("smoothed")
    return {fqn: ", ".join(texts) for fqn, texts in notes.items()}


def calibrate(observed: Observed, samples: Sequence[Sample], progress: ProgressCallback = report_nothing) -> Observed:
    """Run the samples through the observers; each learns the range of what passes it.

    Args:
        observed: from :func:`insert_observers`; its observers start afresh, so a cancelled call can be repeated.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.

    Raises:
        CalibrationError: a sample on which the graph cannot run, or on which values are NaN or infinite.
    """
    learning = [observer for observer in all_observers(observed.graph) if hasattr(observer, "forget")]
    for observer in learning:
        observer.forget()
    set_mode(observed.graph, "observe")
    progress(Progress("calibrate", 0, len(samples)))
    for done, sample in enumerate(samples, start=1):
        _observe(observed.graph, sample)
        if not all(observer.finite or observer.low > observer.high for observer in learning):
            raise _not_finite(observed.graph, sample)
        progress(Progress("calibrate", done, len(samples)))
    set_mode(observed.graph, "pass")
    fit_biases(observed.graph)
    return observed


def choose_forms(
    observed: Observed, samples: Sequence[Sample], progress: ProgressCallback = report_nothing
) -> Observed:
    """Measure each layer on a few samples, choose among candidates, correct biases, and give up what would be ruined.

    Args:
        observed: calibrated.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.
    """
    decisions = decide(observed.graph, observed.plan, observed.options, samples, progress)
    fit_biases(observed.graph)
    rows = tuple(_decided(row, observed, decisions) for row in observed.layers)
    return replace(
        observed,
        layers=rows,
        plan=observed.plan.without(decisions.given_up.keys()),
        model_sqnr=decisions.model_sqnr,
    )


def _decided(row: LayerReport, observed: Observed, decisions: Decisions) -> LayerReport:
    """The row of a layer with what was measured and chosen."""
    if row.fqn not in observed.plan.calls:
        return row
    sqnr = decibels(decisions.ratios[row.fqn]) if row.fqn in decisions.ratios else None
    if row.fqn in decisions.given_up:
        return replace(
            row, weights_bits=32, activations_bits=32, block_size=0, observer="", sqnr=sqnr,
            reason=decisions.given_up[row.fqn],
        )  # fmt: skip
    call, form = observed.plan.calls[row.fqn][0], decisions.forms[row.fqn]
    node = next(node for node in observed.graph.graph.nodes if node.name == call.node.name)
    weight, activation = (observer_of(observed.graph, node.args[i]) for i in (call.weight_index, call.input_index))
    scales = weight.calculate_qparams()[0]
    notes = [text for text in (row.note, decisions.notes.get(row.fqn, "")) if text]
    return replace(
        row,
        weights_bits=form.bits,
        block_size=form.block_size,
        sqnr=sqnr,
        scale_range=(float(scales.min()), float(scales.max())),
        input_range=None if activation is None else activation.represented(),
        note=", ".join(notes),
    )


def _not_finite(graph: fx.GraphModule, sample: Sample) -> CalibrationError:
    """The error for a sample on which values are NaN or infinite: which, and where they appear first."""
    leaves = zip(_names(graph), pytree.tree_leaves((sample.args, sample.kwargs)), strict=False)
    given = [
        name
        for name, leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and not bool(leaf.isfinite().all())
    ]
    if given:
        return CalibrationError(
            f"calibration_inputs[{sample.index}]: {', '.join(given)} holds infinite values, so no scale fits what is "
            "computed from it. Repair or remove the sample; or keep the layers that read it in float "
            "(LayerQuantizationSettings(skip_quantization=True))."
        )
    first = first_not_finite(graph, sample)
    where = f"They appear first in {_place(first)}" if first is not None else "They cannot be traced to one operator"
    return CalibrationError(
        f"calibration_inputs[{sample.index}] gives NaN or infinite values, although the input is finite. {where}. "
        "Check the model on this sample; or keep the layers behind it in float "
        "(LayerQuantizationSettings(skip_quantization=True))."
    )


def _observe(graph: fx.GraphModule, sample: Sample) -> None:
    try:
        with torch.no_grad():
            sample.call(graph)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        leaves = zip(_names(graph), pytree.tree_leaves((sample.args, sample.kwargs)), strict=False)
        shapes = ", ".join(f"{name} {tuple(leaf.shape)}" for name, leaf in leaves if isinstance(leaf, torch.Tensor))
        raise CalibrationError(
            f"The captured graph cannot run on calibration_inputs[{sample.index}] ({shapes}): {sentence(error)} "
            "Give calibration inputs of the form of the tracing inputs; sizes may differ along dynamic axes only."
        ) from error


def _names(graph: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]


def convert(observed: Observed) -> fx.GraphModule:
    """Replace observers by quantize and dequantize operators with the learned scales; weights become int8 constants."""
    for observer in all_observers(observed.graph):
        if getattr(observer, "form", None) is not None and observer.form.block_size:
            observer.convert = functools.partial(_convert_blocks, observer)
    converted = pt2e().convert_pt2e(observed.graph)
    assert isinstance(converted, fx.GraphModule)
    _forget_unused(converted)
    return converted.requires_grad_(False)


def _convert_blocks(observer: Any, graph: fx.GraphModule, node: fx.Node) -> None:
    replace_by_blocks(graph, node, observer)


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


def _place(node: Any) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    where = stack[-1][0] if stack and stack[-1][0] else "the model"
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    line = f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""
    return f"{node.name} in {where}{line}"


def _row(
    layer: ExplainedLayer,
    model: nn.Module,
    plan: Plan,
    graph: fx.GraphModule,
    leaves: Mapping[str, str],
    behind: Mapping[str, str],
    notes: Mapping[str, str],
) -> LayerReport:
    parameters = sum(p.numel() for p in model.get_submodule(layer.fqn).parameters())
    if layer.settings is None or layer.fqn not in plan.calls:
        reason = plan.refused.get(layer.fqn) or behind.get(layer.fqn) or _why_not(layer, graph, leaves)
        return LayerReport(layer.fqn, layer.type, parameters, rule=layer.rule, reason=reason)
    form = next(layer.settings.candidates())
    only_weights = layer.settings.prefer_weights_only_quantization
    assert isinstance(form.weights_num_bits, int)
    assert isinstance(form.weights_only_quantization_block_size, int)
    return LayerReport(
        layer.fqn,
        layer.type,
        parameters,
        weights_bits=form.weights_num_bits,
        activations_bits=32 if only_weights else layer.settings.activations_num_bits,
        rule=layer.rule,
        reason="weights only, by the settings" if only_weights else "",
        block_size=form.weights_only_quantization_block_size if only_weights else 0,
        observer="" if only_weights else layer.settings.observer,
        note=notes.get(layer.fqn, ""),
    )


def _why_not(layer: ExplainedLayer, graph: fx.GraphModule, leaves: Mapping[str, str]) -> str:
    if layer.settings is None:
        return f"skipped by rule {layer.rule!r}"
    for fqn, reason in leaves.items():
        if layer.fqn == fqn or fqn == "" or layer.fqn.startswith(fqn + "."):
            return f"inside leaf-wrapped {fqn or 'model'} ({reason})"
    operators = operators_of(graph.graph, layer.fqn)
    if not operators:
        return "not called on the tracing inputs"
    return f"no int8 form of {', '.join(operators[:3])}"
