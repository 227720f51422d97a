"""The stage after calibration, which chooses weight schemes, and the report of each layer: planned, then decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx, nn

from prepbench.document.model import Failure
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.decide import Decisions, decide
from prepbench.quantize.layer_nodes import (
    LayerNode,
    layer_nodes,
    operators_of,
    parameter_of,
    runs_in_steps,
    sources_of,
)
from prepbench.quantize.layer_noise import bounded_decibels
from prepbench.quantize.observed import Observed, fit_biases, observer_of
from prepbench.quantize.plan import Plan
from prepbench.quantize.report import NOT_CALLED, LayerReport
from prepbench.quantize.statistics import Statistics
from prepbench.settings import (
    ExplainedLayer,
    activation_format,
    is_within,
    module_of_layer,
    tensors_of_layer,
    weight_formats,
)
from prepbench.settings.numbers import FLOAT32

_TOO_INEXACT = "with activations in integers, too, its output or the model's would be below the floor"
_IN_EACH_CALL = "ranges of activations are found in each call"


@dataclass(frozen=True)
class LayerReporter:
    """Reports the plan of each layer.

    Attributes:
        model: for parameter counts.
        graph: the float graph of the model.
        plan: the quantized layers.
        leaves: leaf modules and lines, and why they are leaves.
        behind: why layers stay in float that a skipped layer's output reaches, by FQN.
        notes: remarks, by FQN.
    """

    model: nn.Module
    graph: fx.GraphModule
    plan: Plan
    leaves: Sequence[Failure]
    behind: Mapping[str, str]
    notes: Mapping[str, str]

    def is_layer(self, fqn: str) -> bool:
        """Return whether the graph multiplies by it."""
        return bool(layer_nodes(self.graph.graph, {fqn: None}, lookups=True))

    def report(self, layer: ExplainedLayer) -> LayerReport:
        """Return the report of one layer."""
        parameters = sum(tensor.numel() for tensor in tensors_of_layer(self.model, layer.fqn))
        settings = self.plan.settings.get(layer.fqn)
        if settings is None:
            reason = self._why_float(layer)
            return LayerReport(layer.fqn, layer.type, parameters, rule=layer.rule, reason=reason)
        first = next(settings.candidates())
        only_weights = settings.prefer_weights_only_quantization
        is_dynamic = not only_weights and self.plan.nodes[layer.fqn][0].is_recurrent
        (weights,) = weight_formats(first)
        assert isinstance(first.weights_only_quantization_block_size, int)
        return LayerReport(
            layer.fqn,
            layer.type,
            parameters,
            weights_bits=weights.bits,
            weights_format=weights.name_beside_bits,
            activations_bits=activation_format(settings).bits,
            rule=layer.rule,
            reason=self._why_weights_only(layer) if only_weights else "",
            block_size=first.weights_only_quantization_block_size if only_weights else 0,
            observer="" if only_weights or is_dynamic else settings.observer,
            note=", ".join(
                filter(
                    None,
                    (
                        layer.note,
                        layer.adapter,
                        _IN_EACH_CALL if is_dynamic else "",
                        _how_computed(self.plan.nodes[layer.fqn]),
                        self.notes.get(layer.fqn),
                    ),
                )
            ),
        )

    def _why_weights_only(self, layer: ExplainedLayer) -> str:
        if layer.settings is not None and layer.settings.prefer_weights_only_quantization:
            return "weights only, by the settings"
        return f"weights only: {self.plan.weights_only[layer.fqn]}"

    def _why_float(self, layer: ExplainedLayer) -> str:
        if known := self.plan.refused.get(layer.fqn) or self.behind.get(layer.fqn):
            return known
        if layer.settings is None:
            return f"skipped by rule {layer.rule!r}"
        around = [leaf for leaf in self.leaves if is_within(layer.fqn, leaf.fqn)]
        for leaf in around:
            if leaf.lines is None:
                return f"inside the leaf module {leaf.fqn or 'model'} ({leaf.kind})"
        path = module_of_layer(self.model, layer.fqn)
        operators = operators_of(self.graph.graph, path)
        if not operators and runs_in_steps(self.graph.graph, path):
            return "computed in each step of a loop, which stays in float"
        if not operators and around:
            return f"not called on the tracing inputs, or only by {around[0].part}, a leaf ({around[0].kind})"
        if not operators:
            return NOT_CALLED
        return f"no int8 form of {', '.join(operators[:3])}"


def _how_computed(nodes: Sequence[LayerNode]) -> str:
    """Return a note on weights that are no tensors of the model; empty where they are."""
    reads = [parameter_of(weight) for layer in nodes for weight in layer.weights]
    sources = {read.target: sources_of(read) for read in reads if read is not None}
    several = next((names for names in sources.values() if len(names) > 1), None)
    if several is not None:
        return f"its weight is computed once, from {', '.join(several[:3])}"
    names = Counter(names[0] for names in sources.values())
    return ", ".join(f"{count} matrices of {name}" for name, count in names.items() if count > 1)


def _multiplying_in_float(row: LayerReport) -> LayerReport:
    """Return the report of a layer whose activations stay in float, because rounding them costs too much."""
    notes = [text for text in row.note.split(", ") if text != _IN_EACH_CALL]
    return replace(row, activations_bits=FLOAT32.bits, reason=f"weights only: {_TOO_INEXACT}", note=", ".join(notes))


def decided_report(row: LayerReport, observed: Observed, decisions: Decisions) -> LayerReport:
    """Return the report of a layer after measuring and deciding."""
    if row.fqn not in observed.plan.nodes:
        return row
    sqnr = bounded_decibels(decisions.noise[row.fqn]) if row.fqn in decisions.noise else None
    if row.fqn in decisions.left_in_float:
        return replace(
            row, weights_bits=FLOAT32.bits, weights_format="", activations_bits=FLOAT32.bits, block_size=0, observer="",
            sqnr=sqnr, reason=decisions.left_in_float[row.fqn],
        )  # fmt: skip
    layer, scheme = observed.plan.nodes[row.fqn][0], decisions.schemes[row.fqn]
    node = next(node for node in observed.graph.graph.nodes if node.name == layer.node.name)
    activation = observer_of(observed.graph, node.args[layer.input_index])
    weights = [observer_of(observed.graph, operand) for operand in layer.weight_operands(node.args)]
    scales = torch.cat([weight.calculate_qparams()[0].flatten() for weight in weights])
    if scheme.multiplies_in_float:
        row = _multiplying_in_float(row)
    notes = [text for text in (row.note, decisions.notes.get(row.fqn, "")) if text]
    return replace(
        row,
        weights_bits=scheme.bits,
        weights_format=scheme.format.name_beside_bits,
        block_size=scheme.block_size,
        sqnr=sqnr,
        scale_range=(float(scales.min()), float(scales.max())),
        input_range=None if activation is None else activation.represented(),
        note=", ".join(notes),
    )


def choose_weight_schemes(
    observed: Observed,
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    statistics: Statistics | None = None,
) -> Observed:
    """Measure each layer on a few samples and choose its weight scheme among the candidates of the settings.

    Biases are corrected, and layers that quantization would ruin stay in float, as ``observed.options`` says.

    Args:
        observed: calibrated; its graph is changed.
        samples: the calibration inputs, as calls of the captured program.
        progress: called after each sample; may raise to cancel.
        statistics: the calibration cache of the same float graph and samples; new entries are added.
    """
    decisions = decide(observed.graph, observed.plan, observed.options, samples, progress, statistics)
    fit_biases(observed.graph)
    return replace(
        observed,
        layers=tuple(decided_report(row, observed, decisions) for row in observed.layers),
        plan=observed.plan.without(decisions.left_in_float.keys()),
        score=decisions.score,
        in_float=decisions.in_float,
        reused=(*observed.reused, *decisions.reused),
    )
