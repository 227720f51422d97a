"""The values of one layer: histograms and ranges of weights and activations, their grids, and the error of its output.

The layer is measured in the one simulator, with everything before it in float up to the layer's own quantizers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench.jobs import ProgressCallback
from prepbench.objects.compare import Powers
from prepbench.quantize.layer_nodes import LayerNode, parameter_of
from prepbench.quantize.layer_noise import LayerNoise, bounded_decibels
from prepbench.quantize.mixed_graph import MixedGraph
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.simulate import Changes, first_states
from prepbench.quantize.weights import WeightScheme, rows_of
from prepbench.settings import QuantizationSettings
from prepbench.settings.numbers import NumberFormat, format_of_bits

# bins of a histogram that is counted in one pass, at most
_BINS = 160
# what is shown as points, and what is added to half a step, so that the last value of a range never counts as clipped
_POINTS, _TOLERANCE = 400, 1e-3


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each of several intervals of one width, from :attr:`start` on.

    Attributes:
        start: where the first interval begins, a whole multiple of the width.
        width: of each interval, a power of two; 0 where there are no values.
        counts: how many values lie in each interval, which begins at its lower end and ends before the next one.
    """

    start: float = 0.0
    width: float = 0.0
    counts: tuple[int, ...] = ()

    @property
    def edges(self) -> tuple[float, ...]:
        """The ends of the intervals, one more than there are intervals."""
        return tuple(self.start + place * self.width for place in range(len(self.counts) + 1)) if self.counts else ()


@dataclass(frozen=True)
class Grid:
    """The numbers that quantized values can be, and which share of the values lies beyond them.

    Attributes:
        format: the name of the number format, such as ``"int8"``.
        levels: how many numbers there are.
        step: the smallest and the largest distance between two of them; they differ where channels have own scales.
        range: the smallest and the largest number, over all channels.
        clipped: the share of values that are more than half a step beyond the range of their own channel, 0 to 1.
        clipped_by_channel: the same for each channel; empty where it isn't known.
        range_by_channel: the range of each channel; empty where all have one.
        used: how many values become each number, from the smallest to the largest; empty where it isn't known.
    """

    format: str
    levels: int
    step: tuple[float, float]
    range: tuple[float, float]
    clipped: float = 0.0
    clipped_by_channel: tuple[float, ...] = ()
    range_by_channel: tuple[tuple[float, float], ...] = ()
    used: tuple[int, ...] = ()


@dataclass(frozen=True)
class TensorValues:
    """The values of one tensor in float: a histogram, ranges, and the grid that they are quantized to.

    Attributes:
        count: how many values were seen; values that are not finite are left out of everything.
        range: the smallest and the largest value.
        histogram: of all values.
        range_by_channel: the smallest and the largest value of each channel.
        grid: the numbers that the values are quantized to; None where they stay in float.
        note: why there are no values, or why they are others than the model's own; empty for neither.
    """

    count: int = 0
    range: tuple[float, float] = (0.0, 0.0)
    histogram: Histogram = field(default_factory=Histogram)
    range_by_channel: tuple[tuple[float, float], ...] = ()
    grid: Grid | None = None
    note: str = ""


@dataclass(frozen=True)
class LayerError:
    """The output of a layer, quantized against float, on a few samples.

    Attributes:
        sqnr: in dB, limited to 300.
        sqnr_by_channel: the same for each output channel.
        shift_by_channel: the mean error of each output channel.
        reference: outputs in float, spread over everything that was computed.
        quantized: the same outputs with the layer quantized.
        channels: the output channel of each of these.
    """

    sqnr: float
    sqnr_by_channel: tuple[float, ...]
    shift_by_channel: tuple[float, ...]
    reference: tuple[float, ...]
    quantized: tuple[float, ...]
    channels: tuple[int, ...]


@dataclass(frozen=True)
class LayerValues:
    """The values of a layer with some settings, and its error; see :func:`layer_values`."""

    weight: TensorValues
    input: TensorValues
    output: TensorValues
    error: LayerError | None
    calls: int


def layer_values(
    mixed: MixedGraph,
    fqn: str,
    settings: QuantizationSettings,
    progress: ProgressCallback,
) -> LayerValues:
    """Return the values of a layer with these settings, on all calibration samples, and its error, on a few of them.

    Args:
        mixed: the float graph.
        fqn: a layer of it that can be quantized with these settings.
        settings: of the layer, which name one number of bits and one block size.
        progress: called after each sample; may raise to cancel.
    """
    plan, schemes, changes = mixed.quantized({fqn: settings}, progress)
    nodes, scheme = plan.nodes[fqn], schemes[fqn]
    weight = _weight_values(mixed, nodes, scheme, changes)
    given, results = _activations(mixed, nodes, changes, settings, progress)
    note = mixed.changed.get(fqn, "")
    weight = replace(weight, note=f"{note}: these are the changed weights" if note else "")
    return LayerValues(weight, given, results, _error(mixed, nodes, changes, progress), len(nodes))


# Histograms in one pass: intervals are powers of two wide, so that wider ones are sums of narrower ones.


class ValueCounts:
    """Counts values: a histogram that widens as values come, and the range of each channel of ``axis``."""

    def __init__(self, axis: int) -> None:
        self._axis = axis
        self._exponent, self._first = 0, 0
        self._counts = torch.zeros(0, dtype=torch.int64)
        self.low, self.high, self.count = math.inf, -math.inf, 0
        self._lows: torch.Tensor | None = None
        self._highs: torch.Tensor | None = None
        self._clipped: torch.Tensor | None = None
        self._in_channels: torch.Tensor | None = None

    def add(self, values: torch.Tensor, is_clipped: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        """Count values, and those of them that a grid clips."""
        values = values.detach().float()
        rows = values.movedim(self._axis, 0).flatten(1) if values.ndim > 1 else values.reshape(1, -1)
        if rows.numel() == 0:
            return
        finite = rows.isfinite()
        if not bool(finite.all()):
            self._bin(rows[finite])
        else:
            self._bin(rows.flatten())
        self._range(rows, finite)
        clipped = (is_clipped(rows) & finite).sum(1) if is_clipped is not None else torch.zeros(len(rows)).long()
        self._clipped = clipped if self._clipped is None else self._clipped + clipped
        number = finite.sum(1)
        self._in_channels = number if self._in_channels is None else self._in_channels + number

    @property
    def histogram(self) -> Histogram:
        """All values so far."""
        if not len(self._counts):
            return Histogram()
        width = math.ldexp(1.0, self._exponent)
        return Histogram(self._first * width, width, tuple(self._counts.tolist()))

    @property
    def range_by_channel(self) -> tuple[tuple[float, float], ...]:
        if self._lows is None or self._highs is None:
            return ()
        pairs = zip(self._lows.tolist(), self._highs.tolist(), strict=True)
        return tuple((low, high) if low <= high else (0.0, 0.0) for low, high in pairs)

    @property
    def clipped(self) -> tuple[float, tuple[float, ...]]:
        """The share of values that the grid clips, and that of each channel."""
        if self._clipped is None or self._in_channels is None:
            return 0.0, ()
        shares = self._clipped / self._in_channels.clamp(min=1)
        return int(self._clipped.sum()) / max(1, self.count), tuple(shares.tolist())

    def values(self, grid: Grid | None) -> TensorValues:
        """Return what was counted."""
        if not self.count:
            return TensorValues(note="nothing passed through on the samples")
        clipped, by_channel = self.clipped
        found = None if grid is None else replace(grid, clipped=clipped, clipped_by_channel=by_channel)
        return TensorValues(self.count, (self.low, self.high), self.histogram, self.range_by_channel, found)

    def _bin(self, values: torch.Tensor) -> None:
        if not values.numel():
            return
        self.count += values.numel()
        low, high = (float(end) for end in torch.aminmax(values))
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._widen()
        places = (values.double() * math.ldexp(1.0, -self._exponent)).floor_().long() - self._first
        self._counts += torch.bincount(places, minlength=len(self._counts))

    def _widen(self) -> None:
        """Make room for all values from :attr:`low` to :attr:`high`."""
        size = max(self.high - self.low, max(abs(self.low), abs(self.high)) * 2.0**-20, 2.0**-120)
        exponent = math.frexp(size / (_BINS - 2))[1]  # the power of two above the quotient
        exponent = max(exponent, self._exponent) if len(self._counts) else exponent
        first, last = (math.floor(math.ldexp(end, -exponent)) for end in (self.low, self.high))
        counts = torch.zeros(last - first + 1, dtype=torch.int64)
        if len(self._counts):
            old = torch.arange(len(self._counts)) + self._first
            counts.index_add_(0, (old >> (exponent - self._exponent)) - first, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts

    def _range(self, rows: torch.Tensor, finite: torch.Tensor) -> None:
        lows = rows.masked_fill(~finite, math.inf).amin(1)
        highs = rows.masked_fill(~finite, -math.inf).amax(1)
        self._lows = lows if self._lows is None else torch.minimum(self._lows, lows)
        self._highs = highs if self._highs is None else torch.maximum(self._highs, highs)


# Weights.


def _weight_values(
    mixed: MixedGraph, nodes: Sequence[LayerNode], scheme: WeightScheme, changes: Changes
) -> TensorValues:
    """Return the values of all weights of a layer, the channels of one after those of the other."""
    first, parts = nodes[0], []
    for node in first.weights:
        parameter = parameter_of(node)
        assert parameter is not None
        weight = operator.attrgetter(str(parameter.target))(mixed.graph).detach().float()
        parts.append((weight, mixed.integers(first, node, scheme, changes)))
    counts, grids = ValueCounts(0), []
    ranges: list[tuple[float, float]] = []
    for weight, rows in parts:
        grid, clipped = weight_grid(weight, first.axis, scheme, rows)
        counted = ValueCounts(0)
        channels = weight.movedim(first.axis, 0) if weight.ndim > 1 else weight.reshape(-1, 1)
        counted.add(channels, _constantly(clipped))
        counts.add(channels.reshape(1, -1))
        share, by_channel = counted.clipped
        grids.append((replace(grid, clipped=share, clipped_by_channel=by_channel), counted.count))
        ranges += counted.range_by_channel
    return replace(counts.values(_joined(grids)), range_by_channel=tuple(ranges), grid=_joined(grids))


def _constantly(value: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda _: value


def weight_grid(
    weight: torch.Tensor, axis: int, scheme: WeightScheme, rows: QuantizedRows
) -> tuple[Grid, torch.Tensor]:
    """Return the grid of a weight, and which of its values it clips, with a row for each channel."""
    low, high = scheme.limits
    scale, zero = rows.scale.double(), rows.zero_point.double()
    ends = torch.stack([(low - zero) * scale, (high - zero) * scale], 1)
    margin = half_step(scheme.format, high) + _TOLERANCE
    places = rows_of(weight, axis, scheme).double() / scale[:, None] + zero[:, None]
    clipped = (places < low - margin) | (places > high + margin)
    channels = weight.shape[axis] if weight.ndim else 1
    if len(scale) > 1:
        of_channel = ends.reshape(channels, -1, 2)  # the widest of its blocks
        ranges = torch.stack([of_channel[..., 0].amin(1), of_channel[..., 1].amax(1)], 1).tolist()
        by_channel = tuple((float(one), float(other)) for one, other in ranges)
        clipped = clipped.reshape(channels, -1)
    else:
        by_channel = ()
        shape = weight.shape if weight.ndim > 1 else (weight.numel(), 1)
        clipped = clipped.reshape(shape).movedim(axis, 0).flatten(1)
    used: tuple[int, ...] = ()
    if not scheme.format.is_float:
        used = tuple(torch.bincount(rows.integers.flatten().long() - low, minlength=high - low + 1).tolist())
    grid = Grid(
        scheme.format.name,
        _levels(scheme.format, low, high),
        (float(scale.min()), float(scale.max())),
        (float(ends[:, 0].min()), float(ends[:, 1].max())),
        range_by_channel=by_channel,
        used=used,
    )
    return grid, clipped


def half_step(kind: NumberFormat, high: float) -> float:
    """Return half of the distance between the two largest numbers of a format, in units of the scale."""
    if not kind.is_float:
        return 0.5
    exponent = math.frexp(high)[1] - 1
    return math.ldexp(torch.finfo(kind.dtype).eps, exponent) / 2


def _levels(kind: NumberFormat, low: float, high: float) -> int:
    return int(high - low + 1) if not kind.is_float else 2**kind.bits


def _joined(grids: Sequence[tuple[Grid, int]]) -> Grid:
    """Return the grid of several tensors, of which each has so many values."""
    first, total = grids[0][0], sum(count for _, count in grids)
    if len(grids) == 1:
        return first
    every = [grid for grid, _ in grids]
    steps, ranges = [grid.step for grid in every], [grid.range for grid in every]
    return Grid(
        first.format,
        first.levels,
        (min(low for low, _ in steps), max(high for _, high in steps)),
        (min(low for low, _ in ranges), max(high for _, high in ranges)),
        sum(grid.clipped * count for grid, count in grids) / max(1, total),
        tuple(share for grid in every for share in grid.clipped_by_channel),
        tuple(one for grid in every for one in grid.range_by_channel),
        tuple(map(sum, zip(*(grid.used for grid in every), strict=True))),
    )


# Activations, on all calibration samples.


def _activations(
    mixed: MixedGraph,
    nodes: Sequence[LayerNode],
    changes: Changes,
    settings: QuantizationSettings,
    progress: ProgressCallback,
) -> tuple[TensorValues, TensorValues]:
    """Return the values of a layer's input and of its output, each over all its calls."""
    inputs = {layer.input.name: _input_quantizer(layer, changes) for layer in nodes}
    ends = [layer.end() if layer.end().name in changes.results else layer.node for layer in nodes]
    results = {end.name: changes.results.get(end.name) for end in ends}
    is_table = nodes[0].is_lookup
    kind = format_of_bits(settings.activations_num_bits)
    tensors = [("output", results), *([] if is_table else [("input", inputs)])]
    found = _counted(mixed, tensors, nodes[0].channels, progress)
    values = {
        which: found[which].values(_activation_grid([one for one in quantizers.values() if one is not None], kind))
        for which, quantizers in tensors
    }
    given = TensorValues(note="it looks rows up by integers") if is_table else values["input"]
    return given, values["output"]


def _counted(
    mixed: MixedGraph, tensors: Sequence[tuple[str, dict[str, Any]]], axis: int, progress: ProgressCallback
) -> dict[str, ValueCounts]:
    """Return counts of values, from an earlier pass over the samples if they need no other."""
    keys = {which: (which, *quantizers) for which, quantizers in tensors}
    found: dict[str, ValueCounts] = {}
    observers: dict[str, list[Callable[[Any], Any]]] = {}
    for which, quantizers in tensors:
        known = mixed.counted.get(keys[which])
        if known is not None and not any(_may_clip(known, one) for one in quantizers.values()):
            found[which] = known
            continue
        found[which] = counts = ValueCounts(axis)
        for name, quantizer in quantizers.items():
            observers.setdefault(name, []).append(_adds(counts, quantizer))
    if observers:
        mixed.watch(observers, progress)
    for which, quantizers in tensors:
        if not any(_may_clip(found[which], one) for one in quantizers.values()):
            mixed.counted[keys[which]] = found[which]  # holds for every grid that clips nothing
    return found


def _adds(counts: ValueCounts, quantizer: Any) -> Callable[[Any], None]:
    def add(output: Any) -> None:
        value = first_states(output)
        if isinstance(value, torch.Tensor):
            counts.add(value, None if quantizer is None else lambda rows: _is_clipped(rows, quantizer))

    return add


def _is_clipped(values: torch.Tensor, quantizer: Any) -> torch.Tensor:
    low, high = _ends(quantizer)
    return (values < low) | (values > high)


def _may_clip(counts: ValueCounts, quantizer: Any) -> bool:
    if quantizer is None or not counts.count:
        return False
    low, high = _ends(quantizer)
    return counts.low < low or counts.high > high


def _ends(quantizer: Any) -> tuple[float, float]:
    """Return the values beyond which an observer's integers clip by more than half a step."""
    low, high = quantizer.represented()
    margin = (0.5 + _TOLERANCE) * float(quantizer.calculate_qparams()[0])
    return low - margin, high + margin


def _input_quantizer(layer: LayerNode, changes: Changes) -> Any:
    return changes.operands.get((layer.node.name, layer.input.name)) or changes.results.get(layer.input.name)


def _activation_grid(quantizers: Sequence[Any], kind: NumberFormat) -> Grid | None:
    """Return the grid of a value, or of those of several calls; None in float."""
    known = [one for one in quantizers if one.finite]
    if not known:
        return None
    steps = [float(one.calculate_qparams()[0]) for one in known]
    ranges = [one.represented() for one in known]
    levels = known[0].quant_max - known[0].quant_min + 1
    span = min(low for low, _ in ranges), max(high for _, high in ranges)
    return Grid(kind.name, levels, (min(steps), max(steps)), span)


# The error of the output, on a few samples.


class _Errors:
    """Collects the noise of a layer's output: of all of it, and of each channel."""

    def __init__(self, channels: int) -> None:
        self._axis = channels
        self.noise = LayerNoise()
        self.signals: torch.Tensor | None = None
        self.noises: torch.Tensor | None = None
        self._pairs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def add(self, right: torch.Tensor, got: torch.Tensor) -> None:
        self.noise.add(right, got, self._axis)
        first = right.movedim(self._axis, 0).flatten(1).double()
        second = got.movedim(self._axis, 0).flatten(1).double()
        signals, noises = first.square().sum(1), (second - first).square().sum(1)
        self.signals = signals if self.signals is None else self.signals + signals
        self.noises = noises if self.noises is None else self.noises + noises
        step = max(1, math.ceil(first.numel() / _POINTS))
        while math.gcd(step, first.shape[1]) > 1:  # so that no channel is left out because of its place
            step += 1
        places = torch.arange(0, first.numel(), step)
        self._pairs.append((first.flatten()[places], second.flatten()[places], places // first.shape[1]))

    def found(self) -> LayerError | None:
        if self.signals is None or self.noises is None:
            return None
        powers = zip(self.signals.tolist(), self.noises.tolist(), strict=True)
        right, got, channels = (torch.cat(parts) for parts in zip(*self._pairs, strict=True))
        keep = torch.arange(0, len(right), max(1, math.ceil(len(right) / _POINTS)))
        shift = self.noise.mean_shift
        return LayerError(
            bounded_decibels(self.noise.powers),
            tuple(bounded_decibels(Powers(signal, noise)) for signal, noise in powers),
            () if shift is None else tuple(shift.tolist()),
            tuple(right[keep].tolist()),
            tuple(got[keep].tolist()),
            tuple(channels[keep].tolist()),
        )


def _error(
    mixed: MixedGraph, nodes: Sequence[LayerNode], changes: Changes, progress: ProgressCallback
) -> LayerError | None:
    errors = _Errors(nodes[0].channels)
    mixed.compare(nodes, changes, errors.add, progress)
    return errors.found()
