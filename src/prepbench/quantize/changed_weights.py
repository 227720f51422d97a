"""Apply the algorithms of the options that change weights but not the results of the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.quantize.algorithms import (
    BY_DEFAULT,
    WHEN_REQUESTED,
    SmoothingGain,
    equalize,
    settings_of_scales,
    smooth,
)
from prepbench.quantize.layer_nodes import layer_nodes
from prepbench.quantize.statistics import Statistics
from prepbench.settings import CompileOptions, QuantizationSettings

EQUALISED = "channels equalised"
"""The note of a layer whose channels were scaled."""

# bits
_ROOM_FOR_OUTLIERS = 8


def change_weights(
    graph: fx.GraphModule,
    settings: Mapping[str, QuantizationSettings],
    layers: Collection[str],
    options: CompileOptions,
    samples: Sequence[Sample],
    progress: ProgressCallback,
    statistics: Statistics | None = None,
) -> dict[str, str]:
    """Apply the algorithms in place; return what changed by layer.

    Args:
        graph: in float; its tensors that others share stay as they are.
        settings: of the layers that are quantized, by FQN.
        layers: the FQNs of all.
        options: which algorithms.
        samples: calls of the graph.
        progress: called after each sample; may raise to cancel.
        statistics: the calibration cache of the graph; new entries are added.

    Returns:
        What was done to layers whose weights changed, by FQN.
    """
    notes: dict[str, list[str]] = {}
    scaled = settings_of_scales(settings, layers, options.cross_layer_equalization)
    if scaled:
        known = None if statistics is None else statistics.channels
        changed = equalize(graph, layer_nodes(graph.graph, scaled), scaled, samples, progress, known)
        for fqn in (fqn for fqn in changed if fqn in settings):
            notes.setdefault(fqn, []).append(EQUALISED)
    smoothed, min_gain = _smoothing(settings, layers, options)
    if smoothed and samples:
        nodes = layer_nodes(graph.graph, smoothed)
        for fqn in smooth(graph, nodes, samples, progress, options.smooth_quant_strength, min_gain):
            notes.setdefault(fqn, []).append("smoothed")
    return {fqn: ", ".join(texts) for fqn, texts in notes.items()}


def smooths_unasked(options: CompileOptions, settings: Mapping[str, QuantizationSettings]) -> bool:
    """Return whether outliers are smoothed by default: where activations are quantized beside 8-bit weights.

    Weights of fewer bits, or of one scale for all channels, have no room for them. All layers take part, also float
    ones, whose results stay the same but for rounding. So the weights of a graph do not depend on which of its
    layers are quantized.
    """
    both = [one for one in settings.values() if not one.prefer_weights_only_quantization]
    bits = {each.weights_num_bits for one in both for each in one.candidates()}
    has_room = bits == {_ROOM_FOR_OUTLIERS} and all(one.per_channel for one in both)
    return options.smooth_quant is None and has_room


def _smoothing(
    settings: Mapping[str, QuantizationSettings], layers: Collection[str], options: CompileOptions
) -> tuple[Mapping[str, object], SmoothingGain]:
    """Return the layers that may be smoothed, and the minimal gain."""
    if options.smooth_quant:
        return settings, WHEN_REQUESTED
    return dict.fromkeys(layers) if smooths_unasked(options, settings) else {}, BY_DEFAULT
