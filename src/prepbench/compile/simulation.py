"""``Simulation``: run a model in PyTorch as it would be quantized, with separate settings for each layer."""

from __future__ import annotations

import difflib
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from prepbench.adapt.cuts import Cut, Cuts
from prepbench.checks import check_progress, check_type, described
from prepbench.compile.float_program import FloatProgram, LayerFacts, captured_in_float
from prepbench.compile.request import CompileRequest, check_weights
from prepbench.compile.samples import as_call
from prepbench.document.model import SourceLine
from prepbench.errors import InputError, SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.objects.compare import Powers
from prepbench.quantize import Placement, Score, Statistics, calibrate
from prepbench.quantize.algorithms import settings_of_scales
from prepbench.quantize.input_hessians import fitting_schemes
from prepbench.quantize.insert import EQUALISED, change_weights, float_graph, observed_with, smooths_unasked
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.layer_noise import ROWS, chosen_samples, rows_of
from prepbench.quantize.layer_values import LayerValues, layer_values
from prepbench.quantize.mixed_graph import MixedGraph, Mixture
from prepbench.quantize.output_noise import OutputNoise, estimate_output_noise
from prepbench.quantize.plan import Plan, following_layers, make_plan, tied_layers
from prepbench.quantize.predictions import ScoreSum
from prepbench.quantize.weights import WeightScheme
from prepbench.running.check_inputs import check_traced
from prepbench.running.source_lines import line_in_stack_trace
from prepbench.running.tracing import tracing
from prepbench.running.unchanged import numbers_kept
from prepbench.settings import (
    PruningSettings,
    QuantizationSettings,
)
from prepbench.targets import target_for
from prepbench.targets.base import supported, unsupported

Assignment = Mapping[str, QuantizationSettings | None]
"""The settings of layers by FQN; None, and layers that are not in it, are float."""

# graphs with weights changed by algorithms, by quantized layers
_GRAPHS = 2


class Simulation:
    """A model captured once for one target, run in PyTorch as it would be quantized, with any settings for each layer.

    The first score of a layer with new settings learns the ranges of its activations and rounds its weights. After
    that a score takes one run of the graph on a few samples. Several threads may use one simulation. The model itself
    is not changed; its weights are shared, so they must not be trained meanwhile.

    Args:
        source: the captured model, from :meth:`of`, or from another process.

    Attributes:
        layers: FQNs of the layers that can be quantized on this target, in execution order.
        types: the class name of each of them.
        parameters: the number of trainable numbers of each.

    Example:
        >>> model, samples = nn.Sequential(nn.Linear(4, 2)), [torch.randn(n, 4) for n in (2, 3)]
        >>> simulation = Simulation.of(model, samples, deployment_settings=pb.OnnxRuntimeDeployment())
        >>> simulation.score({"0": pb.QuantizationSettings(weights_num_bits=4)}).sqnr > 0
        True
    """

    def __init__(self, source: FloatProgram) -> None:
        self.source = source
        self._target = target_for(source.settings)
        self._graphs: OrderedDict[Any, MixedGraph] = OrderedDict()
        self._statistics = Statistics()
        self._changes = WeightChanges(source)
        self._lock = threading.RLock()
        found = self._nodes
        self.layers: tuple[str, ...] = tuple(found)
        self.types: Mapping[str, str] = {fqn: source.layers[fqn].type for fqn in found}
        self.parameters: Mapping[str, int] = {fqn: source.layers[fqn].parameters for fqn in found}

    @classmethod
    def of(
        cls,
        model: Callable[..., Any],
        calibration_inputs: Iterable[Any],
        *,
        progress: ProgressCallback = report_nothing,
        **arguments: Any,
    ) -> Simulation:
        """Return :meth:`captured` for arguments of :func:`prepbench.compile_model`."""
        return cls.captured(CompileRequest(model=model, calibration_inputs=calibration_inputs, **arguments), progress)

    @classmethod
    def captured(cls, request: CompileRequest, progress: ProgressCallback) -> Simulation:
        """Capture a model.

        Raises:
            SettingsError: an argument is of another type.
            InputError: the samples do not fit the model or each other.
            CalibrationError: a sample holds NaN.
            CaptureError: the model cannot be captured as one graph.
        """
        check_traced("model", request.model)
        check_progress(progress)
        request = replace(request, deployment_settings=request.settings, quantization_settings=QuantizationSettings())
        request.check()
        check_weights(request.model)
        return cls(captured_in_float(request, progress))

    @property
    def target(self) -> str:
        """The name of the deployment target as shown to users."""
        return self._target.display_name

    @property
    def predicts_tokens(self) -> bool:
        """Whether outputs are token logits, so that scores have a KL divergence."""
        return bool(self._float.logits)

    @property
    def placement(self) -> Placement:
        """The target's constraints: the nodes to quantize, and supported bits."""
        return self._target.placement

    def refusal(self, fqn: str, settings: QuantizationSettings) -> str:
        """Return why the target cannot take a layer with these settings, whatever the other layers have; empty if it
        can.

        Raises:
            InputError: there is no such layer; with the nearest names.
            SettingsError: the settings name several bits or block sizes.
        """
        check_layer(fqn, self.layers)
        check_settings(fqn, settings)
        lacking = unsupported(settings, self.placement)
        if lacking:
            return f"{self._target.display_name} does not support {lacking}; it supports {supported(self.placement)}"
        if self.source.layers[fqn].is_table and not settings.prefer_weights_only_quantization:
            return "an embedding reads no activations; its weights alone can be quantized"
        return self._plan_of_all(settings).refused.get(fqn, "")

    def groups(self, settings: Assignment) -> tuple[frozenset[str], ...]:
        """Return groups of two or more quantized layers with shared weights, which take the same settings."""
        mixture = self._mixture(settings)
        graph = self._graph(mixture)
        return tied_layers(graph.graph, graph.plan(mixture))

    @functools.cached_property
    def neighbours(self) -> tuple[tuple[str, str, int], ...]:
        """Tuples (layer, next layer, bytes between them in float for the first calibration sample), in execution order.

        Operators that are no layers may lie between the two.
        """
        found = following_layers(self._nodes)
        sizes = self._float.values(sorted({value for _, _, value in found}))
        return tuple((one, other, float_bytes(sizes.get(value))) for one, other, value in found)

    @functools.cached_property
    def multiplications(self) -> Mapping[str, int]:
        """The multiplications of each layer for the first calibration sample; 0 for an embedding table."""
        nodes = [layer for layers in self._nodes.values() for layer in layers]
        names = {layer.input.name if layer.is_transposed else layer.node.name for layer in nodes}
        values = self._float.values(sorted(names))
        return {fqn: sum(multiplications_of(layer, values) for layer in layers) for fqn, layers in self._nodes.items()}

    def outputs(self, settings: Assignment, samples: Iterable[Any], *, even_alone: bool = False) -> Iterator[Any]:
        """Yield the model's results for samples, one after the other, in its own structure and types.

        Raises:
            InputError: a sample has another form than those that the model was captured with; there is no such layer.
            SettingsError: the target lacks what settings ask for.
        """
        call = self.function(settings, even_alone=even_alone)
        for sample in samples:
            one = sample if isinstance(sample, Sample) else as_call(sample)
            yield call(*one.args, **one.kwargs)

    def function(self, settings: Assignment, *, even_alone: bool = False) -> Callable[..., Any]:
        """Return the model with these settings as a function that is called like it; arguments as in :meth:`score`.

        Raises:
            InputError: there is no such layer.
            SettingsError: the target lacks what settings ask for.
            CalibrationError: values become NaN or infinite on a calibration sample.
        """
        source, mixture = self.source, self._mixture(settings)
        with numbers_kept():
            graph = self._graph(mixture)
            changes = graph.changes(mixture, even_alone=even_alone)

        def call(*args: Any, **kwargs: Any) -> Any:
            leaves = source.call_spec.flatten(args, kwargs)
            tensors = source.call_spec.checked(leaves)
            with numbers_kept():
                [found] = graph.outputs(changes, [Sample(tuple(tensors))])
            return source.call_spec.result(found, source.out_spec)

        return call

    def score(
        self, settings: Assignment, progress: ProgressCallback = report_nothing, *, even_alone: bool = False
    ) -> Score:
        """Return the distance of the model with these settings from float, on a few calibration samples.

        Args:
            settings: of each layer.
            progress: called after each sample; may raise to cancel.
            even_alone: quantize also layers that the target quantizes only beside others, which are otherwise left in
                float where these are, as in a compile.

        Raises:
            InputError: there is no such layer.
            SettingsError: the target lacks what settings ask for.
            CalibrationError: values become NaN or infinite on a calibration sample.
        """
        mixture = self._mixture(settings)
        with numbers_kept():
            graph = self._graph(mixture)
            return graph.score(graph.changes(mixture, progress, even_alone=even_alone))

    def learn(
        self, candidates: Mapping[str, QuantizationSettings], progress: ProgressCallback = report_nothing
    ) -> None:
        """Learn the ranges of activations for these settings of all layers, in one run over the samples.

        Scores learn missing ranges themselves: one layer after the other, each in a separate run.
        """
        graphs: dict[MixedGraph, list[Mixture]] = {}
        with numbers_kept():
            for settings in candidates.values():
                mixture = self._all(settings)
                if not self._changes.are_own(mixture):  # else single layers have graphs of their own
                    graphs.setdefault(self._graph(mixture), []).append(mixture)
            for graph, mixtures in graphs.items():
                graph.learn(mixtures, progress)

    def noise(
        self, candidates: Mapping[str, QuantizationSettings], progress: ProgressCallback = report_nothing
    ) -> dict[tuple[str, str], Powers]:
        """Return the noise that quantizing a layer adds to its own output, by (FQN, name of the candidate)."""
        graphs: dict[MixedGraph, dict[str, Mixture]] = {}
        found: dict[tuple[str, str], Powers] = {}
        with numbers_kept():
            for name, settings in candidates.items():
                mixture = self._all(settings)
                graphs.setdefault(self._graph(mixture), {})[name] = mixture
            for graph, mixtures in graphs.items():
                noises = graph.noise(list(mixtures.values()), progress)
                for name, powers in zip(mixtures, noises, strict=True):
                    found.update({(fqn, name): value for fqn, value in powers.items()})
        return found

    def layer_noise(
        self, fqn: str, candidates: Mapping[str, QuantizationSettings], progress: ProgressCallback = report_nothing
    ) -> dict[str, Powers]:
        """Return the noise that quantizing one layer adds to its own output, by name of the candidate."""
        found: dict[str, Powers] = {}
        with numbers_kept():
            for name, settings in candidates.items():
                mixture = self._mixture({fqn: settings})
                [powers] = self._graph(mixture).noise([mixture], progress)
                found[name] = powers[fqn]
        return found

    def layer_values(
        self, fqn: str, settings: QuantizationSettings, progress: ProgressCallback = report_nothing
    ) -> LayerValues:
        """Return the weights and activations of a layer, their grids, and the error of its output."""
        mixture = self._mixture({fqn: settings})
        with numbers_kept():
            return layer_values(self._graph(mixture), fqn, settings, progress)

    def place(self, fqn: str) -> SourceLine | None:
        """Return the line of the model's source that calls a layer; None where it isn't known."""
        places = (line_in_stack_trace(layer.node.meta.get("stack_trace")) for layer in self._nodes[fqn])
        return next(filter(None, places), None)

    def estimate(
        self, candidates: Mapping[str, QuantizationSettings], progress: ProgressCallback = report_nothing
    ) -> dict[tuple[str, str], float]:
        """Return second-order estimates of each layer's effect on the outputs, by (FQN, name of the candidate).

        It is noise relative to the signal, added over all outputs (0.01 is 20 dB), or where these predict tokens the
        divergence in nats: see ``estimate_output_noise``. A few backward passes give it for all layers at once.
        """
        effects = self.effects(candidates, progress)
        return {(fqn, name): one.alone(fqn) for name, one in effects.items() for fqn in one.weights}

    def effects(
        self, candidates: Mapping[str, QuantizationSettings], progress: ProgressCallback = report_nothing
    ) -> dict[str, LayerEffects]:
        """Return the terms of :meth:`estimate`: values between layers are rounded once for all layers that need it."""
        found = {}
        with numbers_kept():
            for name, settings in candidates.items():
                mixture = self._all(settings)
                weights = self._changes.key(mixture)
                known = Statistics() if weights else self._statistics
                one = layer_effects(self.source, self._float, mixture, known, self._statistics, progress)
                found[name] = one.with_weights(weights) if weights else one
        return found

    def equalised(self, settings: QuantizationSettings) -> tuple[str, ...]:
        """Return the layers whose weights change if all layers have these settings and these scale channels."""
        mixture = {fqn: given for fqn, given in self._all(settings).items() if not self.refusal(fqn, given)}
        with numbers_kept():
            return tuple(fqn for fqn, said in self._graph(mixture).changed.items() if EQUALISED in said)

    def weight_bytes(self, fqn: str, settings: QuantizationSettings | None) -> int:
        """Return the bytes of a layer's weights: integers, scales and zero points, or float32 in float."""
        check_layer(fqn, self.layers)
        layers = self._nodes[fqn]
        weights = {weight.name: weight.meta["val"] for layer in layers for weight in layer.weights}
        if settings is None:
            return sum(4 * int(weight.numel()) for weight in weights.values())
        check_settings(fqn, settings)
        plan = Plan({fqn: layers}, {fqn: settings}, reduce_range=bool(self.placement.reduce_range))
        scheme = fitting_schemes(plan, fqn)[0][0]
        bits = self.placement.stored_bits(scheme.bits, weights_only=settings.prefer_weights_only_quantization)
        return sum(stored_bytes(weight, layers[0].axis, scheme, bits) for weight in weights.values())

    @functools.cached_property
    def _nodes(self) -> Mapping[str, list[LayerNode]]:
        """The nodes of each layer with at least one way of quantization, in execution order."""
        return quantizable_nodes(self._float, self.source.layers)

    @functools.cached_property
    def _float(self) -> MixedGraph:
        """The graph with unchanged weights, apart from folded batch norms."""
        with tracing():
            return self._new_graph({})

    @functools.lru_cache(maxsize=32)  # noqa: B019 (a simulation lives as long as its plans)
    def _plan_of_all(self, settings: QuantizationSettings) -> Plan:
        """Return the plan if all layers have these settings."""
        return self._float.plan(self._all(settings))

    def _all(self, settings: QuantizationSettings) -> dict[str, QuantizationSettings]:
        only_weights = settings.prefer_weights_only_quantization
        return {fqn: settings for fqn in self.layers if only_weights or not self.source.layers[fqn].is_table}

    def _mixture(self, settings: Assignment) -> dict[str, QuantizationSettings]:
        """Return the checked settings of the quantized layers."""
        check_type("settings", settings, Mapping, "Give the settings of layers by FQN.")
        given: dict[str, QuantizationSettings] = {}
        for fqn, value in settings.items():
            check_layer(fqn, self.layers)
            if value is not None:
                if refusal := self.refusal(fqn, value):
                    raise SettingsError(f"{fqn!r} cannot be quantized so: {refusal}. Give None for float.")
                given[fqn] = value
        return given

    def _graph(self, mixture: Mixture) -> MixedGraph:
        """Return the graph for the quantized layers: one for all, unless algorithms change weights."""
        key = self._changes.key(mixture)
        if not key:
            return self._float
        with self._lock, tracing():
            if key not in self._graphs:
                self._graphs[key] = self._new_graph(mixture)
            self._graphs.move_to_end(key)
            while len(self._graphs) > _GRAPHS:
                self._graphs.popitem(last=False)
            return self._graphs[key]

    def _new_graph(self, mixture: Mixture) -> MixedGraph:
        source = self.source
        graph, written = float_graph(source.program, source.options)
        given = (source.layers, source.options, source.samples, report_nothing, self._statistics)
        changed = change_weights(graph, mixture, *given) if mixture else None
        return MixedGraph(graph, self.placement, source.options, source.samples, written, source.scored, changed)


# The costs of layers: bytes of values and weights, multiplications.


def float_bytes(value: Any) -> int:
    """Return the bytes of a value in float32, the type of values between float layers."""
    return 4 * value.numel() if isinstance(value, torch.Tensor) else 0


def multiplications_of(layer: LayerNode, values: Mapping[str, Any]) -> int:
    """Return the multiplications of one call of a layer, from the nodes' recorded values."""
    places = values.get(layer.input.name if layer.is_transposed else layer.node.name)
    places = places[0] if isinstance(places, tuple) else places
    if layer.is_lookup or not isinstance(places, torch.Tensor):
        return 0
    each = sum(int(weight.meta["val"].numel()) for weight in layer.weights)
    return int(places.numel() // max(1, places.shape[layer.channels]) * each)


def stored_bytes(weight: torch.Tensor, axis: int, scheme: WeightScheme, bits: int) -> int:
    """Return the bytes of integers, scales and zero points of one weight, whose integers are stored in ``bits``."""
    numbers = int(weight.numel())
    rows = int(weight.shape[axis]) if scheme.per_channel or scheme.block_size else 1
    scales = numbers // scheme.block_size if scheme.block_size else rows
    return numbers * bits // 8 + scales * (4 if scheme.symmetric else 5)


# The effect of quantizing each layer on the outputs, estimated for all layers at once.


@dataclass(frozen=True)
class Rounded:
    """A value that is rounded once as soon as one of several layers is quantized.

    Attributes:
        quantizer: which value, how it is rounded, and for whom; equal where it is the same.
        noise: the effect of rounding it on the outputs.
        needed_by: FQNs of the layers.
    """

    quantizer: tuple[Any, ...]
    noise: float
    needed_by: frozenset[str]


@dataclass(frozen=True)
class LayerEffects:
    """The effects of layers' weights, by FQN, and of values between them on the outputs: relative noise, or nats."""

    weights: Mapping[str, float]
    values: Sequence[Rounded]

    def alone(self, fqn: str) -> float:
        """Return the effect of one layer while all others are in float."""
        return math.fsum([self.weights[fqn], *(value.noise for value in self.values if fqn in value.needed_by)])

    def with_weights(self, weights: Hashable) -> LayerEffects:
        """Return the effects under a key for graphs with other weights, whose values differ."""
        return replace(self, values=[replace(one, quantizer=(*one.quantizer, weights)) for one in self.values])


def layer_effects(
    source: FloatProgram,
    mixed: MixedGraph,
    mixture: Mapping[str, QuantizationSettings],
    statistics: Statistics,
    unchanged: Statistics,
    progress: ProgressCallback,
) -> LayerEffects:
    """Return the effects of layers' weights and of the values around them on the outputs, each in isolation.

    A value between two quantized layers is rounded once, for both. Inputs and results of layers are estimated
    separately, because a layer that quantizes its result rounds it for all readers, and one that quantizes its input
    for itself only.

    Args:
        source: the captured model.
        mixed: its graph, which knows the outputs in float.
        mixture: the settings of all layers.
        statistics: the known statistics of a graph with these weights; new ones are added.
        unchanged: the same of the graph before algorithms changed weights.
        progress: called after each sample; may raise to cancel.
    """
    read = _noise(source, mixed, mixture, statistics, unchanged, progress, of_results=False)
    given = _noise(source, mixed, mixture, statistics, unchanged, progress, of_results=True)
    weights = {fqn: next(iter(schemes.values())) for fqn, schemes in read.weights.items()}
    givers = {given.quantizers[name]: layers for name, layers in given.needed_by.items()}
    values, rest = [], {given.quantizers[name]: noise for name, noise in given.values.items()}
    for number, (name, noise) in enumerate(read.values.items()):
        quantizer = read.quantizers[name]
        needed_by = read.needed_by[name] | givers.get(quantizer, frozenset())
        values.append(Rounded((*quantizer, number), noise, needed_by))
        if quantizer in rest:
            rest[quantizer] -= noise
    values += [
        Rounded((*quantizer, "rest"), noise, givers[quantizer]) for quantizer, noise in rest.items() if noise > 0
    ]
    return LayerEffects(weights, values)


def _noise(
    source: FloatProgram,
    mixed: MixedGraph,
    mixture: Mapping[str, QuantizationSettings],
    statistics: Statistics,
    unchanged: Statistics,
    progress: ProgressCallback,
    *,
    of_results: bool,
) -> OutputNoise:
    """Return the noise of weights and layer inputs, or that of rounding layer results."""
    with tracing(progress):
        graph, written = float_graph(source.program, source.options)
        change_weights(graph, mixture, source.layers, source.options, source.samples, progress, unchanged)
        placement = target_for(source.settings).placement.of_single_layers()
        plan = make_plan(graph, mixture, placement)
        left_out: dict[str, Any] = {"inputs": ()} if of_results else {"output": None}
        points = [replace(point, **left_out) for point in plan.points if point.output is not None or not of_results]
        if of_results and not points:
            return OutputNoise(bool(mixed.logits))
        plan = replace(plan, points=points)
        observed = observed_with(graph, plan, placement, source.options, written)
    observed = calibrate(observed, source.samples, progress, statistics)
    schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
    return estimate_output_noise(
        observed.graph,
        plan,
        {fqn: [scheme] for fqn, scheme in schemes.items()},
        mixed.scored,
        mixed.expected(),
        logits=mixed.logits,
        corrected=source.options.bias_correction,
        statistics=statistics,
    )


# Checks of a simulation's arguments: known layers, each with settings of one candidate.


_ONLY_WEIGHTS = QuantizationSettings(prefer_weights_only_quantization=True)
_SINGLE = ("weights_num_bits", "weights_only_quantization_block_size")


def check_layer(fqn: object, layers: Sequence[str]) -> None:
    """Raise ``InputError``, with the nearest names, unless there is such a layer."""
    if fqn in layers:
        return
    near = difflib.get_close_matches(str(fqn), layers, 3, 0.4)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See simulation.layers."
    raise InputError(f"There is no layer {described(fqn)} that this target can quantize. {hint}")


def check_settings(fqn: str, settings: object) -> None:
    """Raise ``SettingsError`` unless these are settings that name one number of bits and one block size."""
    check_type(f"settings[{fqn!r}]", settings, QuantizationSettings, "Give pb.QuantizationSettings(), or None.")
    assert isinstance(settings, QuantizationSettings)
    several = [field for field in _SINGLE if not isinstance(getattr(settings, field), int)]
    if several:
        raise SettingsError(
            f"settings[{fqn!r}].{several[0]} names several values, {getattr(settings, several[0])}, and a layer is "
            "simulated with one. Give one of them; settings.candidates() lists what they stand for."
        )


def quantizable_nodes(graph: MixedGraph, layers: Mapping[str, LayerFacts]) -> dict[str, list[LayerNode]]:
    """Return the nodes of each layer with at least one way of quantization, in execution order."""
    nodes = dict(graph.plan(dict.fromkeys(layers, _ONLY_WEIGHTS)).nodes)
    known = [fqn for fqn, facts in layers.items() if not facts.is_table]
    nodes = {**graph.plan(dict.fromkeys(known, QuantizationSettings())).nodes, **nodes}
    order = {node: place for place, node in enumerate(graph.graph.graph.nodes)}
    return dict(sorted(nodes.items(), key=lambda item: order[item[1][0].node]))


# The mixed-precision settings for which algorithms change the graph's weights, and so its ranges.


class WeightChanges:
    """The changes of weights by a captured model's options."""

    def __init__(self, source: FloatProgram) -> None:
        self._source = source

    def key(self, mixture: Mapping[str, QuantizationSettings]) -> tuple[frozenset[Any], ...]:
        """Return the key of the weights for these settings of layers; empty if no algorithm changes any."""
        options = self._source.options
        scaled = settings_of_scales(mixture, self._source.layers, options.cross_layer_equalization)
        smoothed = mixture if options.smooth_quant else self._unasked(mixture)
        return (frozenset(scaled.items()), frozenset(smoothed)) if scaled or smoothed else ()

    def are_own(self, mixture: Mapping[str, QuantizationSettings]) -> bool:
        """Return whether settings of layers may lead to different weights."""
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


# The samples on which mixed-precision settings are scored: spread over the data, within a budget.


# the multiplications of a score, and the most rows
_MULTIPLICATIONS, _MOST_ROWS = 2e9, 256


def scored_on(simulation: Simulation, samples: Iterable[Sample]) -> Simulation:
    """Return the simulation with scores measured on other samples than the calibration inputs.

    They are spread over all samples, and the smaller the model, the more are used.

    Raises:
        InputError: a sample has another form than those that the model was captured with.
    """
    source = simulation.source
    calls, learned_from = source.call_spec, chosen_samples(source.samples)
    rows = rows_to_score(sum(simulation.multiplications.values()) / rows_of(learned_from[0]))
    flat = (Sample(tuple(calls.checked(calls.flatten(one.args, one.kwargs)))) for one in samples)
    return Simulation(replace(source, scored=tuple(spread_samples(flat, rows))))


def rows_to_score(multiplications: float) -> int:
    """Return the number of rows that a score is measured on.

    Example:
        >>> rows_to_score(3e8), rows_to_score(1e7), rows_to_score(0)
        (8, 200, 256)
    """
    return min(max(ROWS, int(_MULTIPLICATIONS / max(multiplications, 1.0))), _MOST_ROWS)


def spread_samples(samples: Iterable[Sample], rows: int) -> list[Sample]:
    """Return calls spread over the iterable, which is read once, with so many rows (first dims of inputs) in total."""
    kept: list[Sample] = []
    most, step = 1, 1
    for place, sample in enumerate(samples):
        if not kept:
            most = max(1, rows // rows_of(sample))
        if place % step == 0:
            kept.append(sample)
        if len(kept) > 2 * most:  # every second one is dropped, so that the rest is evenly spread
            kept, step = kept[::2], 2 * step
    count = min(most, len(kept))
    return [kept[place * len(kept) // count] for place in range(count)]


# Simulations of a model with pruned layers, compared with the whole float model.


_KEPT = 4  # the number of pruned models whose ranges are cached


class PrunedSimulation(Simulation):
    """The model with zeros for pruned weights; scores measure its distance from the whole float model."""

    def __init__(self, whole: Simulation, program: torch.export.ExportedProgram) -> None:
        super().__init__(replace(whole.source, program=program))
        self._whole = whole

    def score(
        self, settings: Assignment, progress: ProgressCallback = report_nothing, *, even_alone: bool = False
    ) -> Score:
        """Return the distance of the pruned model with these settings from the whole float model."""
        exact, mixture = self._whole._float, self._mixture(settings)
        with numbers_kept():
            graph = self._graph(mixture)
            changes = graph.changes(mixture, progress, even_alone=even_alone)
            total = ScoreSum(exact.logits)
            for right, got in zip(exact.expected(), graph.outputs(changes, exact.scored), strict=True):
                total.add(right, got)
            return total.score


class PrunedLayers:
    """The effects of pruning layers, alone or together with quantization."""

    def __init__(self, simulation: Simulation) -> None:
        source = simulation.source
        layers = [(fqn, facts.type) for fqn, facts in source.layers.items() if not facts.is_table]
        self._simulation = simulation
        self._names = {fqn for fqn, _ in layers}
        self._simulations: OrderedDict[frozenset[Cut], PrunedSimulation] = OrderedDict()
        self._lock = threading.RLock()
        self.cuts = Cuts(source.program, layers, source.samples)

    def refusal(self, fqn: str, settings: PruningSettings) -> str:
        """Return why pruning would remove nothing of a layer; empty if it removes something."""
        if fqn not in self._names:
            return "an embedding is not pruned"
        with self._lock, tracing():
            return self.cuts.refusal(fqn, settings)

    def alone(self, fqn: str, settings: PruningSettings) -> PrunedSimulation:
        """Return the model with one layer pruned, and those that must lose the same channels.

        Raises:
            SettingsError: nothing would be pruned; says why.
        """
        if why := self.refusal(fqn, settings):
            raise SettingsError(why)
        return self.simulation(self.cuts.around(fqn, settings))

    def simulation(self, cuts: Sequence[Cut]) -> PrunedSimulation:
        """Return the model without some of its prunable parts."""
        key = frozenset(cuts)
        with self._lock, tracing():
            if key not in self._simulations:
                self._simulations[key] = PrunedSimulation(self._simulation, self.cuts.program(cuts))
            self._simulations.move_to_end(key)
            while len(self._simulations) > _KEPT:
                self._simulations.popitem(last=False)
            return self._simulations[key]

    def weight_bytes(
        self, pruned: PrunedSimulation, fqn: str, settings: PruningSettings, bits: QuantizationSettings | None
    ) -> int:
        """Return the bytes of a layer's remaining weights; unstructured sparsity adds one mask bit per weight."""
        whole, left = _counted(self._simulation, fqn), _counted(pruned, fqn)
        stored = self._simulation.weight_bytes(fqn, bits) * left // max(whole, 1)
        return stored if settings.mask_type == "channels" else stored + whole // 8


def _counted(simulation: Simulation, fqn: str) -> int:
    """Return the number of non-zero weights of a layer."""
    state: Mapping[str, Any] = simulation.source.program.state_dict
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in state if name.startswith(prefix) and "." not in name[len(prefix) :])
    return sum(int(state[name].count_nonzero()) for name in names if state[name].ndim > 1)
