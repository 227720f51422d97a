"""For which mixtures of settings algorithms change the weights of the graph, and so its ranges."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prepbench.compile.float_program import FloatProgram
from prepbench.jobs import report_nothing
from prepbench.quantize.algorithms import settings_of_scales
from prepbench.quantize.changed_weights import change_weights, smooths_unasked
from prepbench.quantize.insert import float_graph
from prepbench.running.tracing import tracing
from prepbench.settings import QuantizationSettings


class WeightChanges:
    """What the options of a captured model do to its weights.

    Args:
        source: the captured model.
    """

    def __init__(self, source: FloatProgram) -> None:
        self._source = source

    def key(self, mixture: Mapping[str, QuantizationSettings]) -> tuple[frozenset[Any], ...]:
        """What the weights depend on with these settings of layers; empty where no algorithm changes any."""
        options = self._source.options
        scaled = settings_of_scales(mixture, self._source.layers, options.cross_layer_equalization)
        smoothed = mixture if options.smooth_quant else self._unasked(mixture)
        return (frozenset(scaled.items()), frozenset(smoothed)) if scaled or smoothed else ()

    def are_own(self, mixture: Mapping[str, QuantizationSettings]) -> bool:
        """Whether other settings of layers may lead to other weights."""
        options = self._source.options
        scaled = settings_of_scales(mixture, self._source.layers, options.cross_layer_equalization)
        return bool(scaled or options.smooth_quant)

    def _unasked(self, mixture: Mapping[str, QuantizationSettings]) -> frozenset[str]:
        return self._smoothed if smooths_unasked(self._source.options, mixture) else frozenset()

    @functools.cached_property
    def _smoothed(self) -> frozenset[str]:
        """The layers whose weights change as soon as activations are quantized."""
        source = self._source
        options = replace(source.options, cross_layer_equalization=False)
        settings = dict.fromkeys(source.layers, QuantizationSettings())
        with tracing():
            graph, _ = float_graph(source.program, options)
            return frozenset(change_weights(graph, settings, source.layers, options, source.samples, report_nothing))
