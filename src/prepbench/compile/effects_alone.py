"""What quantizing each layer alone does to the outputs, estimated for all layers at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prepbench.compile.float_program import FloatProgram
from prepbench.jobs import ProgressCallback
from prepbench.quantize import Statistics, calibrate
from prepbench.quantize.fitting import fitting_schemes
from prepbench.quantize.insert import change_weights, float_graph, observed_with
from prepbench.quantize.mixed_graph import MixedGraph
from prepbench.quantize.output_noise import estimate_output_noise
from prepbench.quantize.placement import without_lone_refusals
from prepbench.quantize.plan import make_plan
from prepbench.running.tracing import tracing
from prepbench.settings import QuantizationSettings
from prepbench.targets import target_for


def effects_alone(
    source: FloatProgram,
    mixed: MixedGraph,
    mixture: Mapping[str, QuantizationSettings],
    statistics: Statistics,
    progress: ProgressCallback,
    *,
    of_results: bool,
) -> dict[str, float]:
    """What each layer's weights and what enters it do to the outputs; or what rounding the results of layers does.

    The two are apart, because in the whole graph one quantizer may be the result of a layer and what others read.

    Args:
        source: the captured model.
        mixed: its graph, which knows the outputs in float.
        mixture: the settings of all layers.
        statistics: what was learned before of a graph with these weights; what is learned now is added.
        progress: called after each sample; may raise to cancel.
        of_results: whether it is the results of layers.

    Returns:
        Noise relative to the signal, or nats, by FQN.
    """
    with tracing(progress):
        graph, written = float_graph(source.program, source.options)
        change_weights(graph, mixture, source.layers, source.options, source.samples, progress)
        placement = without_lone_refusals(target_for(source.settings).placement)
        plan = make_plan(graph, mixture, placement)
        left_out: dict[str, Any] = {"inputs": ()} if of_results else {"output": None}
        points = [replace(point, **left_out) for point in plan.points if point.output is not None or not of_results]
        if of_results and not points:
            return {}
        plan = replace(plan, points=points)
        observed = observed_with(graph, plan, placement, source.options, written)
    observed = calibrate(observed, source.samples, progress, statistics)
    schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
    noise = estimate_output_noise(
        observed.graph,
        plan,
        {fqn: [scheme] for fqn, scheme in schemes.items()},
        mixed.chosen,
        mixed.expected(),
        logits=mixed.logits,
        corrected=source.options.bias_correction,
        statistics=statistics,
    )
    if not of_results:
        return {fqn: noise.total({fqn: scheme}) for fqn, scheme in schemes.items()}
    return {
        fqn: math.fsum(value for name, value in noise.values.items() if fqn in noise.needed_by[name]) for fqn in schemes
    }
