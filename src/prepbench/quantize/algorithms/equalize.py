"""Cross-layer equalization of an ATen graph: give the channels of activations and weights similar ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.algorithms.channel_groups import (
    ChannelGroup,
    ChannelStatistics,
    channel_groups,
    float_weight,
    input_axis,
    measure_channels,
)
from prepbench.quantize.algorithms.constants import Constants, bias_of
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.settings import QuantizationSettings, activation_format, weight_formats

# A layer is in two groups, so what is best for one changes with the other.
_ROUNDS = 2
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Channels that were never active, or that no weight reads, count as this fraction of the largest one.
_FLOOR = 2.0**-6
# By how much the estimated noise power must fall.
_WORTH_IT = 1.05


@torch.no_grad()
def equalize(
    graph: fx.GraphModule,
    layers: Sequence[LayerNode],
    settings: Mapping[str, QuantizationSettings],
    samples: Sequence[Sample],
    progress: ProgressCallback = report_nothing,
    known: MutableMapping[tuple[Any, ...], ChannelStatistics | None] | None = None,
) -> list[str]:
    """Divide channels by scales where they are made, and multiply them where they are read, so that ranges agree.

    One range serves all channels of an activation, so small channels lose most. The scales of a group of channels
    (see :func:`prepbench.quantize.algorithms.channel_groups.channel_groups`; that can be a whole residual stream)
    are ``max|x| ** p / max|w| ** q``, with the range ``x`` of the channel on samples, the weights ``w`` that read
    it, and the ``p`` and ``q`` from 0 to 1 of least estimated noise in the layers that read the group. Where it
    falls by less than 5 %, nothing changes.

    Args:
        graph: batch norms are folded already; it is changed in place, the tensors that it shares with others are not.
        layers: the layers that may change, from :func:`prepbench.quantize.layer_nodes.layer_nodes`.
        settings: of each layer, by FQN, from :func:`settings_of_scales`. A group of channels is scaled where all
            layers that make or read it have settings that want it.
        samples: calls of the graph, each run once.
        progress: called after each sample; may raise to cancel, and the graph is then as it was.
        known: the statistics of channels, as for :func:`measure_channels`.

    Returns:
        The layers whose weights changed, in execution order.

    Example:
        >>> equalize(graph, layer_nodes(graph.graph, settings), settings, samples)  # doctest: +SKIP
        ['stem.conv', 'block.depthwise']

    Source: Nagel, van Baalen, Blankevoort, Welling, "Data-Free Quantization Through Weight Equalization and Bias
    Correction", 2019, section 4.1, with the ranges of activations weighed against those of weights as in Xiao, Lin,
    Seznec, Wu, Demouth, Han, "SmoothQuant", 2023, equation 4.
    """
    wanted = {fqn for fqn, given in settings.items() if given.cross_layer_equalization}
    groups = [
        group
        for group in channel_groups(graph, layers)
        if wanted.issuperset(layer.fqn for layer in (*group.producers, *group.consumers))
    ]
    if not groups:
        return []
    axes: dict[fx.Node, int] = {}
    weights: dict[fx.Node, ScaledWeight] = {}
    for layer in itertools.chain.from_iterable((*group.producers, *group.consumers) for group in groups):
        axes[layer.input] = input_axis(layer)
        weights.setdefault(layer.node, ScaledWeight.of(graph, layer))
    seen = measure_channels(graph, axes, samples, "equalise", progress, known)
    found = _Equalizer(weights, seen, settings)
    for _, group in itertools.product(range(_ROUNDS), groups):
        found.scale(group)
    order = {layer.node: layer.fqn for layer in layers}
    constants = Constants(graph)
    changed = {node for node, weight in weights.items() if weight.write(constants)}
    graph.recompile()
    return list(dict.fromkeys(fqn for node, fqn in order.items() if node in changed))


def settings_of_scales(
    settings: Mapping[str, QuantizationSettings], layers: Iterable[str], everywhere: bool = False
) -> dict[str, QuantizationSettings]:
    """Return the settings for which the scales of channels are chosen; empty where no layer uses equalization.

    Float layers count as if they had the settings of the first layer that uses equalization, because scales do not
    affect them. So a layer has the same scales whether it is quantized alone or with others.
    """
    if everywhere:
        settings = {fqn: replace(given, cross_layer_equalization=True) for fqn, given in settings.items()}
    order = list(layers)
    wanting = (settings[fqn] for fqn in order if fqn in settings and settings[fqn].cross_layer_equalization)
    first = next(wanting, None)
    return {} if first is None else {fqn: settings.get(fqn, first) for fqn in order}


class _Equalizer:
    """Finds the scales of groups one after the other, each with the current scales of the others."""

    def __init__(
        self,
        weights: Mapping[fx.Node, ScaledWeight],
        seen: dict[fx.Node, ChannelStatistics | None],
        settings: Mapping[str, QuantizationSettings],
    ) -> None:
        self._weights = weights
        self._seen = seen
        self._settings = settings

    def scale(self, group: ChannelGroup) -> None:
        """Scale one group, if that helps."""
        least, best = self._noise(group, torch.ones(())) / _WORTH_IT, None
        for scale in self._scales(group):
            noise = self._noise(group, scale)
            if noise < least:
                least, best = noise, scale
        if best is None:
            return
        for layer in group.producers:
            weight = self._weights[layer.node]
            weight.outputs = weight.outputs * best
        for layer in group.consumers:
            weight = self._weights[layer.node]
            weight.inputs = weight.inputs * best
        for node in group.axes:
            one = self._seen.get(node)
            if one is not None:
                self._seen[node] = ChannelStatistics(one.low / best, one.high / best, one.power / best.square())

    def _scales(self, group: ChannelGroup) -> Iterator[torch.Tensor]:
        """Yield candidate scales; none where values or weights are not finite, or all are zero."""
        ranges = [None if one is None else one.largest for one in self._inputs(group)]
        columns = [self._weights[layer.node].columns() for layer in group.consumers]
        shares = [None if one is None or not float(one.max()) > 0 else one / one.max() for one in (*ranges, *columns)]
        known = [share for share in shares if share is not None and bool(share.isfinite().all())]
        if len(known) < len(shares):
            return
        x, w = (torch.stack(half).amax(0).clamp_min(_FLOOR) for half in (known[: len(ranges)], known[len(ranges) :]))
        for p, q in itertools.product(_POWERS, _POWERS):
            scale = x**p / w**q
            yield scale / scale.log().mean().exp()

    def _inputs(self, group: ChannelGroup) -> list[ChannelStatistics | None]:
        return [self._seen[layer.input] for layer in group.consumers]

    def _noise(self, group: ChannelGroup, scale: torch.Tensor) -> float:
        """Return the estimated noise in the layers that read a group, each relative to its signal, summed.

        Rounding errors are assumed to be uniform and independent, and so are the channels.
        """
        scale = scale.expand(group.count)
        made = sum((self._made(layer, scale) for layer in group.producers), torch.zeros_like(scale))
        total = 0.0
        for layer, x in zip(group.consumers, self._inputs(group), strict=True):
            weight, settings = self._weights[layer.node], self._settings.get(layer.fqn)
            if x is None:
                continue
            energy = weight.energy()
            noise, signal = float((energy * made).sum()), float((energy * x.power).sum())
            if settings is not None:
                step = _step(x, scale, settings)
                rows = weight.rows(settings, scale)
                noise += step**2 / 12 * float((energy * scale.square()).sum())
                noise += float((rows.square() / 12 * weight.reach(x.power / scale.square())).sum())
            total += noise / signal if signal > 0 else 0.0
        return total

    def _made(self, layer: LayerNode, scale: torch.Tensor) -> torch.Tensor:
        """Return the noise of rounded weights in a layer's outputs; 0 where scaling the outputs does not change it."""
        settings, x = self._settings.get(layer.fqn), self._seen[layer.input]
        if settings is None or settings.per_channel or x is None:
            return torch.zeros_like(scale)
        weight = self._weights[layer.node]
        rows = (weight.largest * weight.factor).amax(2)
        steps = steps_of((rows.flatten() / scale).view_as(rows), settings)
        return (steps.square() / 12 * weight.reach(x.power)).flatten() * scale.square()


def _step(x: ChannelStatistics, scale: torch.Tensor, settings: QuantizationSettings) -> float:
    """Return the step of an activation that is divided by a scale; 0 where it stays in float."""
    if settings.prefer_weights_only_quantization:
        return 0.0
    high, low = float((x.high / scale).max()), float((x.low / scale).min())
    span = 2 * max(high, -low) if settings.activations_symmetric else high - low
    return span / activation_format(settings).steps


# The scaling of a weight's outputs and inputs, for the estimate of its noise.


@dataclass
class ScaledWeight:
    """A layer's weight by group, output of the group and input of the group.

    Attributes:
        layer: whose it is.
        largest: the largest absolute value over the taps of a kernel.
        squares: the sum of the squares over them.
        taps: how many there are.
        outputs: the divisor of each output.
        inputs: the factor of each input.
    """

    layer: LayerNode
    largest: torch.Tensor
    squares: torch.Tensor
    taps: int
    outputs: torch.Tensor
    inputs: torch.Tensor

    @classmethod
    def of(cls, graph: fx.GraphModule, layer: LayerNode) -> ScaledWeight:
        weight = float_weight(graph, layer).transpose(0, layer.axis)
        parts = weight.unflatten(0, (layer.groups, -1)).flatten(3) if weight.ndim > 2 else weight[None, ..., None]
        groups, outputs, inputs, taps = parts.shape
        largest = parts.abs().amax(3)
        ones = largest.new_ones(groups * max(outputs, inputs))
        return cls(layer, largest, parts.square().sum(3), taps, ones[: groups * outputs], ones[: groups * inputs])

    @property
    def factor(self) -> torch.Tensor:
        groups = len(self.largest)
        return self.inputs.view(groups, 1, -1) / self.outputs.view(groups, -1, 1)

    def columns(self) -> torch.Tensor:
        """Return the largest weight that reads each input."""
        return (self.largest * self.factor).amax(1).flatten()

    def energy(self) -> torch.Tensor:
        """Return the sum of the squares of the weights that read each input."""
        return (self.squares * self.factor.square()).sum(1).flatten()

    def rows(self, settings: QuantizationSettings, scale: torch.Tensor) -> torch.Tensor:
        """Return the step of the weights of each output, by group, with the inputs multiplied by a further scale."""
        groups = len(self.largest)
        rows = (self.largest * (self.factor * scale.view(groups, 1, -1))).amax(2)
        return steps_of(rows, settings)

    def reach(self, power: torch.Tensor) -> torch.Tensor:
        """Return, by group, the noise of an output for an error of 1 in each weight, from the power of the inputs."""
        return power.view(len(self.largest), -1).sum(1, keepdim=True) * self.taps

    def write(self, constants: Constants) -> bool:
        """Scale the constants that the layer reads; return whether anything changed."""
        if bool((self.outputs == 1).all()) and bool((self.inputs == 1).all()):
            return False
        layer = self.layer
        shape = float_weight(constants.graph, layer).transpose(0, layer.axis).shape
        factor = self.factor.reshape(shape[0], shape[1], *(1 for _ in shape[2:]))
        bias = bias_of(constants, layer.node)
        constants.scale(layer.weight, factor.transpose(0, layer.axis), {layer.node})
        if bias is not None:
            constants.scale(bias, 1 / self.outputs, {layer.node})
        return True


def steps_of(rows: torch.Tensor, settings: QuantizationSettings) -> torch.Tensor:
    """Return the steps of weights whose largest values are ``rows``."""
    largest = rows if settings.per_channel else rows.amax().expand_as(rows)
    return largest / min(one.high for one in weight_formats(settings))
