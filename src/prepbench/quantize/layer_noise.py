"""Measure the noise of quantizing each layer: its output with and without, on real samples, before conversion."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.objects.compare import Powers, powers
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.plan import Plan, is_dynamic
from prepbench.quantize.simulate import Measuring, Trial, as_tuple, first_states, observed_inputs, rounded_weights
from prepbench.quantize.statistics import Statistics, noise_key, preserved_buffers
from prepbench.quantize.weights import WeightScheme

# rows (first dims) of samples that are measured; more hardly change a mean over all their positions
ROWS = 8
# reports are saved as JSON, which has no infinity
_NO_NOISE = 300.0


def bounded_decibels(measured: Powers) -> float:
    """Return an SQNR in dB for reports, limited to ±300: 300 stands for no noise at all."""
    return max(-_NO_NOISE, min(_NO_NOISE, measured.decibels))


@dataclass
class LayerNoise:
    """The noise that quantization adds to the output of one node, summed over all samples.

    Attributes:
        powers: of the output in float, and of the noise of quantization.
        shift: the error of each output channel, summed.
        count: how many values of each channel were summed.
    """

    powers: Powers = field(default_factory=Powers)
    shift: torch.Tensor | None = None
    count: int = 0

    def add(self, right: torch.Tensor, got: torch.Tensor, channels: int) -> None:
        """Add one output: ``right`` in float, ``got`` quantized, with output channels along the axis ``channels``."""
        self.powers += powers(right, got)
        difference = got - right
        others = [axis for axis in range(right.ndim) if axis != channels % right.ndim]
        total = difference.sum(others).double() if others else difference.double()
        self.shift = total if self.shift is None else self.shift + total
        self.count += difference.numel() // max(1, difference.shape[channels])

    @property
    def mean_shift(self) -> torch.Tensor | None:
        """Return the shift of the mean of each channel by quantization."""
        return None if self.shift is None or not self.count else (self.shift / self.count).float()


@dataclass
class MeasuredLayers:
    """The results of one pass over samples.

    Attributes:
        noise: by name of a layer's node, for each scheme of its weight.
        outputs: the results of the whole model in float, for each sample.
        multiplications: by name of a layer's node, how many it needs on all samples.
        measured: how many layers were measured now, and not taken from statistics.
    """

    noise: dict[str, dict[WeightScheme, LayerNoise]] = field(default_factory=dict)
    outputs: list[tuple[Any, ...]] = field(default_factory=list)
    multiplications: dict[str, int] = field(default_factory=dict)
    measured: int = 0

    def powers_of(self, nodes: Iterable[LayerNode], scheme: WeightScheme) -> Powers:
        """Return the noise of a layer with one scheme, over all its nodes; 0 where a node never ran."""
        found = (self.noise.get(layer.node.name, {}).get(scheme) for layer in nodes)
        return sum((noise.powers for noise in found if noise is not None), Powers())

    def mean_shifts(self, plan: Plan, schemes: Mapping[str, WeightScheme]) -> dict[str, torch.Tensor]:
        """Return the mean shift of each output channel with a layer's scheme, by name of its node.

        A layer that is called several times has one bias for all its calls, so it is left out.
        """
        result: dict[str, torch.Tensor] = {}
        for fqn, nodes in plan.nodes.items():
            if len(nodes) == 1 and fqn in schemes:
                noise = self.noise.get(nodes[0].node.name, {}).get(schemes[fqn])
                if noise is not None and noise.mean_shift is not None:
                    result[nodes[0].node.name] = noise.mean_shift
        return result


def rows_of(sample: Sample) -> int:
    """Return how many rows (first dims) the call of a graph has."""
    return max([1, *(leaf.shape[0] for leaf in sample.args if isinstance(leaf, torch.Tensor) and leaf.ndim)])


def chosen_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return a few samples from all over the list: as many as have some :data:`ROWS` rows together."""
    count = max(1, ROWS // rows_of(samples[0]))
    return list(samples[:: max(1, len(samples) // count)][:count])


def measured_rows(samples: Sequence[Sample]) -> str:
    """Return which rows of the calibration samples are measured, in words.

    Example:
        >>> measured_rows([Sample((torch.ones(4, 2),), {}, index) for index in range(12)])
        '8 of 48 rows (calibration samples 0 and 6)'
    """
    chosen = chosen_samples(samples)
    rows = sum(map(_first_size, samples))
    if len(chosen) == len(samples):
        return f"all {rows} rows of the calibration samples" if rows > 1 else "the calibration sample"
    *others, last = (str(sample.index) for sample in chosen)
    names = f"samples {', '.join(others)} and {last}" if others else f"sample {last}"
    return f"{sum(map(_first_size, chosen))} of {rows} rows (calibration {names})"


def _first_size(sample: Sample) -> int:
    """Return the batch size of a sample as ``compare`` counts it: the first size of the first tensor that has one."""
    sizes = (leaf.shape[0] for leaf in sample.args if isinstance(leaf, torch.Tensor) and leaf.ndim)
    return next(sizes, 1)


def measure_layers(
    graph: fx.GraphModule,
    plan: Plan,
    schemes: Mapping[str, Sequence[WeightScheme]],
    samples: Sequence[Sample],
    progress: ProgressCallback,
    statistics: Statistics | None = None,
) -> MeasuredLayers:
    """Run samples through a graph with calibrated observers, and each quantized layer a second time with integers."""
    statistics = Statistics() if statistics is None else statistics
    nodes = {node.name: node for node in graph.graph.nodes}
    layers = {layer.node.name: (layer, schemes[fqn]) for fqn, found in plan.nodes.items() for layer in found}
    keys = {
        (name, scheme): (*noise_key(graph, layer, nodes[name], scheme), is_dynamic(plan, name, scheme))
        for name, (layer, wanted) in layers.items()
        for scheme in wanted
    }
    result = MeasuredLayers()
    for (name, scheme), key in keys.items():
        if key in statistics.noise:
            result.noise.setdefault(name, {})[scheme] = statistics.noise[key]
    missing = {
        name: (layer, left)
        for name, (layer, wanted) in layers.items()
        if (left := [scheme for scheme in wanted if keys[name, scheme] not in statistics.noise])
    }
    result.measured = len({layer.fqn for layer, _ in missing.values()})
    if missing or statistics.outputs is None:
        _run(graph, missing, result, samples, progress, plan)
        statistics.outputs = tuple(result.outputs)
        for name, (_, left) in missing.items():
            found = result.noise.get(name, {})
            statistics.noise.update({keys[name, scheme]: found[scheme] for scheme in left if scheme in found})
        statistics.multiplications.update(result.multiplications)
    else:
        progress(Progress("measure", len(samples), len(samples)))
    result.outputs = list(statistics.outputs)
    result.multiplications = {name: statistics.multiplications.get(name, 0) for name in layers}
    return result


def _run(
    graph: fx.GraphModule,
    candidates: Mapping[str, tuple[LayerNode, Sequence[WeightScheme]]],
    result: MeasuredLayers,
    samples: Sequence[Sample],
    progress: ProgressCallback,
    plan: Plan,
) -> None:
    trials: dict[str, list[Trial]] = {}
    nodes = {node.name: node for node in graph.graph.nodes if node.name in candidates}
    for name, (layer, schemes) in candidates.items():
        inputs = observed_inputs(graph, layer, nodes[name])
        for scheme in schemes:
            rounded = rounded_weights(graph, layer, nodes[name], scheme, is_dynamic=is_dynamic(plan, name, scheme))
            noise = result.noise.setdefault(name, {}).setdefault(scheme, LayerNoise())
            add = functools.partial(noise.add, channels=layer.channels)
            trials.setdefault(name, []).append((replace(rounded, operands=inputs), add))
    progress(Progress("measure", 0, len(samples)))
    with torch.no_grad(), preserved_buffers(graph):
        runner = _Counting(graph, trials, {name: layer for name, (layer, _) in candidates.items()}, result)
        for done, sample in enumerate(samples, start=1):
            result.outputs.append(as_tuple(runner.run(*sample.args, enable_io_processing=False)))
            progress(Progress("measure", done, len(samples)))


class _Counting(Measuring):
    """Measures layers, and counts their multiplications."""

    def __init__(
        self,
        graph: fx.GraphModule,
        trials: Mapping[str, Sequence[Trial]],
        layers: Mapping[str, LayerNode],
        result: MeasuredLayers,
    ) -> None:
        super().__init__(graph, trials)
        self._layers = layers
        self._result = result

    def run_node(self, n: fx.Node) -> Any:
        output = super().run_node(n)
        layer, right = self._layers.get(n.name), first_states(output)
        if layer is not None and isinstance(right, torch.Tensor) and right.numel():
            operands, _ = self.fetch_args_kwargs_from_env(n)
            places = operands[layer.input_index] if layer.is_transposed else right
            each = sum(weight.numel() for weight in layer.weight_operands(operands))
            if layer.is_lookup:  # each number of a selected matrix is multiplied at least once
                work = right.numel() if layer.selects_matrices else 0
            else:
                work = places.numel() // max(1, places.shape[layer.channels]) * each
            self._result.multiplications[n.name] = self._result.multiplications.get(n.name, 0) + work
        return output
