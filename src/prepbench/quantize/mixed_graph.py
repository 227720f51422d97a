"""Simulate mixed precision: a float graph that runs as if it was quantized, with settings of its own for each layer.

Ranges, integers of weights and noise are learned once for each value, weight and scheme, so a further mixture costs
one run of the graph. No node is inserted into the graph.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback, report_nothing
from prepbench.objects.compare import Powers
from prepbench.quantize.calibration import learn
from prepbench.quantize.dynamic_lstm import OPERATOR
from prepbench.quantize.floors import Score
from prepbench.quantize.input_hessians import fitting_schemes, round_by_inputs
from prepbench.quantize.layer_nodes import LayerNode, parameter_of
from prepbench.quantize.layer_noise import LayerNoise, chosen_samples
from prepbench.quantize.observed import LARGEST_BIAS
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan, activation_spec, make_plan
from prepbench.quantize.predictions import ScoreSum, logits_of
from prepbench.quantize.rounding import NEEDS_MOMENTS, CachedRows
from prepbench.quantize.rows import QuantizedRows
from prepbench.quantize.simulate import Changes, Measuring, QuantizedRun, Trial, Watching, as_tuple
from prepbench.quantize.statistics import restore_buffers
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import CompileOptions, QuantizationSettings

Mixture = Mapping[str, QuantizationSettings]
"""The settings of each layer that is quantized, by FQN; others are in float."""

# bytes of rounded weights that are kept from one sample to the next
_KEPT_WEIGHTS = 2**28


class MixedGraph:
    """A float graph with a cache of its ranges, integers and noise. Several threads may use one.

    Args:
        graph: in float, with batch norms folded; runs, and is not changed.
        placement: where the target wants quantizers.
        options: how biases are corrected and ranges learned.
        samples: the calibration inputs, as calls of the graph.
        written: the initial values of the buffers that the graph writes to, by name.
        scored: calls that scores are measured on; :attr:`chosen` where there are none.
        changed: the changes that algorithms made to weights, by FQN.

    Attributes:
        chosen: the few calibration inputs that the noise of layers is measured on.
        scored: the calls that scores are measured on.
        logits: the outputs that predict tokens.
        counted: values of nodes in float that were counted on all samples, kept by :mod:`layer_values`.
    """

    def __init__(
        self,
        graph: fx.GraphModule,
        placement: Placement,
        options: CompileOptions,
        samples: Sequence[Sample],
        written: dict[str, torch.Tensor],
        scored: Sequence[Sample] = (),
        changed: Mapping[str, str] | None = None,
    ) -> None:
        self.changed: Mapping[str, str] = changed or {}
        self.graph = graph
        self.placement = placement
        self.chosen = chosen_samples(samples)
        self.scored = list(scored) or self.chosen
        self._options = options
        self._samples = samples
        self._written = written
        self.logits = logits_of(graph.graph)
        self._nodes = {node.name: node for node in graph.graph.nodes}
        self._quantizers: dict[tuple[Any, ...], Any] = {}
        self._rows: dict[str, CachedRows] = {}
        self._rounded: set[tuple[str, WeightScheme]] = set()
        self._noise: dict[tuple[Any, ...], LayerNoise] = {}
        self._expected: list[tuple[Any, ...]] | None = None
        self.counted: dict[tuple[str, ...], Any] = {}
        # Two locks, always taken in this order: `_learning` guards these caches, `_writing` the runs of a graph that
        # writes to its own buffers. Runs of other graphs take neither, so that threads score mixtures side by side.
        self._learning = threading.RLock()
        self._writing = threading.RLock()

    def plan(self, mixture: Mixture, *, even_alone: bool = False) -> Plan:
        """Return which values are quantized; ``even_alone``, also layers only worth quantizing beside others."""
        placement = self.placement.of_single_layers() if even_alone else self.placement
        return make_plan(self.graph, mixture, placement)

    def outputs(self, changes: Changes, samples: Sequence[Sample]) -> Iterator[tuple[Any, ...]]:
        """Yield the outputs of the graph with these changes, for each sample."""
        for sample in samples:
            with torch.no_grad():
                yield as_tuple(self._alone(QuantizedRun(self.graph, changes).run, *sample.args))

    def score(self, changes: Changes) -> Score:
        """Return how far the outputs are from float on :attr:`scored`."""
        total = ScoreSum(self.logits)
        for right, got in zip(self.expected(), self.outputs(changes, self.scored), strict=True):
            total.add(right, got)
        return total.score

    def expected(self) -> list[tuple[Any, ...]]:
        """Return the outputs in float on :attr:`scored`."""
        with self._learning:
            if self._expected is None:
                self._expected = list(self.outputs(Changes(), self.scored))
            return self._expected

    def changes(
        self, mixture: Mixture, progress: ProgressCallback = report_nothing, *, even_alone: bool = False
    ) -> Changes:
        """Return the changes to the float graph that simulate this mixture; learn what is missing for it.

        Raises:
            CalibrationError: values are NaN or infinite on a sample.
        """
        plan = self.plan(mixture, even_alone=even_alone)
        # A mixture names one scheme for each layer; only the compile itself searches among several candidates.
        schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
        with self._learning:
            changes = self._quantized(plan, schemes, progress)
            if self._options.bias_correction:
                noise = self._layer_noise([(plan, schemes, changes)], progress)
                self._correct_biases(plan, schemes, changes, noise)
            return changes

    def noise(
        self, mixtures: Sequence[Mixture], progress: ProgressCallback = report_nothing
    ) -> list[dict[str, Powers]]:
        """Return for each mixture the noise of each quantized layer in its own output, by FQN."""
        with self._learning:
            trials = []
            for mixture in mixtures:
                # Without bias correction: the noise is that of rounding alone, and its mean shift is what the
                # correction needs.
                trials.append(self.quantized(mixture, progress))
            found = self._layer_noise(trials, progress)
            return [
                {
                    fqn: sum((found[_key(layer, schemes[fqn], changes)].powers for layer in nodes), Powers())
                    for fqn, nodes in plan.nodes.items()
                }
                for plan, schemes, changes in trials
            ]

    def quantized(
        self, mixture: Mixture, progress: ProgressCallback = report_nothing
    ) -> tuple[Plan, dict[str, WeightScheme], Changes]:
        """Return what a mixture quantizes, how it rounds weights, and the changes to the graph before biases are
        corrected; learn what is missing for it.
        """
        with self._learning:
            plan = self.plan(mixture, even_alone=True)
            schemes = {fqn: fitting_schemes(plan, fqn)[0][0] for fqn in plan.nodes}
            return plan, schemes, self._quantized(plan, schemes, progress)

    def watch(
        self, observers: Mapping[str, Sequence[Callable[[Any], Any]]], progress: ProgressCallback = report_nothing
    ) -> None:
        """Run all samples in float, as far as needed, and pass results to observers, by name of the node."""
        progress(Progress("watch", 0, len(self._samples)))
        with torch.no_grad():
            watching = Watching(self.graph, observers, ends_early=True)
            for done, sample in enumerate(self._samples, start=1):
                self._alone(watching.run, *sample.args)
                progress(Progress("watch", done, len(self._samples)))

    def compare(
        self,
        nodes: Sequence[LayerNode],
        changes: Changes,
        compare: Callable[[torch.Tensor, torch.Tensor], object],
        progress: ProgressCallback = report_nothing,
    ) -> None:
        """Call ``compare`` with the outputs of a layer on :attr:`chosen`: in float, and with its own changes alone."""
        self._measure({layer.node.name: [(_read(layer, changes), compare)] for layer in nodes}, progress)

    def integers(self, layer: LayerNode, weight: fx.Node, scheme: WeightScheme, changes: Changes) -> QuantizedRows:
        """Return a weight of a layer in the integers that :meth:`quantized` gave it."""
        with self._learning:
            rows: QuantizedRows = self._weight_observer(layer, weight, scheme, changes).rows()
        return rows

    def learn(self, mixtures: Sequence[Mixture], progress: ProgressCallback = report_nothing) -> None:
        """Learn the ranges of all values of these mixtures together, in one run over the samples."""
        with self._learning:
            for mixture in mixtures:
                self._quantizing(self.plan(mixture, even_alone=True))
            self._learn(progress)

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the results of nodes in float on the first sample, by name; nodes that did not run are missing."""
        found: dict[str, Any] = {}

        def keeps(name: str) -> Callable[[Any], Any]:
            return lambda value: found.setdefault(name, value)

        with torch.no_grad():
            watching = Watching(self.graph, {name: [keeps(name)] for name in names})
            self._alone(watching.run, *self.chosen[0].args)
        return found

    def _alone(self, run: Callable[..., Any], *args: Any) -> Any:
        """Run the graph; if it writes to buffers, only one run at a time, from their initial values."""
        if not self._written:
            return run(*args)
        with self._writing:
            restore_buffers(self.graph, self._written)
            try:
                return run(*args)
            finally:
                restore_buffers(self.graph, self._written)

    def _quantizing(self, plan: Plan) -> Changes:
        """Return changes with the quantizers of values between layers, which may still have to learn."""
        linears = {layer.node.name for nodes in plan.nodes.values() for layer in nodes if not layer.is_convolution}
        changes = Changes(operators=dict.fromkeys(plan.dynamic, OPERATOR))
        for point in plan.points:
            for user, source in point.inputs:
                # Some kernels of linear layers need the zero point in the middle of the integers; convolutions do not.
                in_middle = self.placement.middle_zero_points and user in linears
                changes.operands[user, source] = self._quantizer(source, point.settings, in_middle)
            if point.output is not None:
                changes.results[point.output] = self._quantizer(point.output, point.settings, False)
        return changes

    def _quantized(self, plan: Plan, schemes: Mapping[str, WeightScheme], progress: ProgressCallback) -> Changes:
        changes = self._quantizing(plan)
        # Order matters: the scale of a layer's input decides whether its bias fits into int32, and so how far the
        # scales of its weights are widened. Rounding by Hessians runs the float graph, so it needs no ranges.
        self._learn(progress)
        self._round(plan, schemes, progress)
        # Rounded weights are float32 copies. A small model keeps them between samples; a large one rounds again in each
        # run, from integers that are cached and packed.
        keeps = sum(4 * layer.weight.meta["val"].numel() for nodes in plan.nodes.values() for layer in nodes)
        for fqn, nodes in plan.nodes.items():
            for layer in nodes:
                for weight in layer.weights:
                    rounded = self._weight_observer(layer, weight, schemes[fqn], changes).simulate
                    kept = _once(rounded) if keeps <= _KEPT_WEIGHTS else rounded
                    changes.constants[layer.node.name, weight.name] = kept
        return changes

    def _quantizer(self, source: str, settings: QuantizationSettings, in_middle: bool) -> Any:
        """Return the quantizer of a value; all readers with the same settings share it."""
        kind = (settings.activations_num_bits, settings.activations_symmetric, settings.observer, in_middle)
        if (source, *kind) not in self._quantizers:
            spec = activation_spec(settings, self.placement, self._options.percentile, in_middle)
            made = spec.observer_or_fake_quant_ctr(
                dtype=spec.dtype, quant_min=spec.quant_min, quant_max=spec.quant_max, qscheme=spec.qscheme
            )
            made.source, made.kind = source, kind
            self._quantizers[source, *kind] = made
        return self._quantizers[source, *kind]

    def _learn(self, progress: ProgressCallback) -> None:
        """Run the samples for the quantizers that are new."""
        # A fresh observer is in the mode "observe" until it has learned, so this also finds those of a run that was
        # cancelled; they begin anew.
        new = [one for one in self._quantizers.values() if one.mode == "observe"]
        watched: dict[str, list[Any]] = {}
        for one in new:
            one.forget()
            watched.setdefault(one.source, []).append(one)
        if new:
            watching = Watching(self.graph, watched)
            learn(self.graph, functools.partial(self._alone, watching.run), new, self._samples, progress)
        for one in new:
            # Computes and caches scale and zero point, so that threads only read them later.
            one.calculate_qparams()
            one.mode = "pass"

    def _round(self, plan: Plan, schemes: Mapping[str, WeightScheme], progress: ProgressCallback) -> None:
        """Round weights by their inputs, where the algorithm needs that and it is not done yet."""
        known = {
            fqn
            for fqn, nodes in plan.nodes.items()
            if schemes[fqn].algorithm not in NEEDS_MOMENTS or (_weight_name(nodes[0]), schemes[fqn]) in self._rounded
        }
        # The Hessian is that of inputs in float, whatever the mixture, so integers hold for all mixtures.
        left = plan.without(known)
        if left.nodes:
            self._alone(round_by_inputs, self.graph, left, self._samples, progress, self._rows_of)
            self._rounded |= {(_weight_name(nodes[0]), schemes[fqn]) for fqn, nodes in left.nodes.items()}

    def _rows_of(self, layer: LayerNode) -> CachedRows:
        return self._found(_weight_name(layer))

    def _found(self, name: str) -> CachedRows:
        if name not in self._rows:
            self._rows[name] = CachedRows()
            self._rows[name].weight = operator.attrgetter(name)(self.graph).detach()
        return self._rows[name]

    def _weight_observer(self, layer: LayerNode, weight: fx.Node, scheme: WeightScheme, changes: Changes) -> Any:
        """Return an observer that rounds a weight as kernels need it beside the layer's input."""
        from prepbench.quantize.observers import WeightObserver  # loads torchao

        parameter = parameter_of(weight)
        assert parameter is not None
        observer = WeightObserver(scheme=scheme, ch_axis=layer.axis)
        observer.found = self._found(str(parameter.target))
        bias, quantizer = _bias(layer), changes.operands.get((layer.node.name, layer.input.name))
        if bias is not None and quantizer is not None:
            value = operator.attrgetter(str(bias.target))(self.graph).detach().abs()
            # Integer kernels add the bias as int32 of scale input x weight, see fit_biases: here the same is done
            # without changing the graph.
            observer.widen(value / (float(quantizer.calculate_qparams()[0]) * LARGEST_BIAS))
        return observer

    def _layer_noise(
        self, trials: Sequence[tuple[Plan, Mapping[str, WeightScheme], Changes]], progress: ProgressCallback
    ) -> dict[tuple[Any, ...], LayerNoise]:
        """Return the noise in the outputs of layers, by :func:`_key`; measure what is missing."""
        wanted: dict[str, list[Trial]] = {}
        new: dict[tuple[Any, ...], LayerNoise] = {}
        for plan, schemes, changes in trials:
            for fqn, nodes in plan.nodes.items():
                for layer in nodes:
                    key = _key(layer, schemes[fqn], changes)
                    if key not in self._noise and key not in new:
                        new[key] = LayerNoise()
                        add = functools.partial(new[key].add, channels=layer.channels)
                        wanted.setdefault(layer.node.name, []).append((_read(layer, changes), add))
        if new:
            self._measure(wanted, progress)
            self._noise.update(new)
        return self._noise

    def _measure(self, wanted: Mapping[str, Sequence[Trial]], progress: ProgressCallback) -> None:
        """Run :attr:`chosen` in float, and layers a second time with changes."""
        progress(Progress("measure", 0, len(self.chosen)))
        measuring = Measuring(self.graph, wanted)
        with torch.no_grad():
            for done, sample in enumerate(self.chosen, start=1):
                self._alone(measuring.run, *sample.args)
                progress(Progress("measure", done, len(self.chosen)))

    def _correct_biases(
        self,
        plan: Plan,
        schemes: Mapping[str, WeightScheme],
        changes: Changes,
        noise: Mapping[tuple[Any, ...], LayerNoise],
    ) -> None:
        """Subtract the mean shift of each output channel from biases, as ``correct_biases`` does."""
        for fqn, nodes in plan.nodes.items():
            bias = _bias(nodes[0])
            shift = noise[_key(nodes[0], schemes[fqn], changes)].mean_shift
            # One bias serves all calls of a layer, and each call has its own shift.
            if len(nodes) > 1 or bias is None or shift is None or not bool(shift.isfinite().all()):
                continue
            if not plan.settings[fqn].bias_correction:
                continue
            # A bias of another shape is broadcast, so no single element of it belongs to a channel.
            if operator.attrgetter(str(bias.target))(self.graph).shape == shift.shape:
                changes.constants[nodes[0].node.name, bias.name] = functools.partial(_less, shift)


def _read(layer: LayerNode, changes: Changes) -> Changes:
    """Return the changes to a layer's own operands: what it reads when all layers before it are in float."""
    name, sources = layer.node.name, [source.name for source in layer.node.all_input_nodes]
    operands = {
        (name, source): quantizer
        for source in sources
        if (quantizer := changes.operands.get((name, source)) or changes.results.get(source)) is not None
    }
    constants = {edge: make for edge, make in changes.constants.items() if edge[0] == name}
    operators = {name: changes.operators[name]} if name in changes.operators else {}
    return Changes(operands=operands, constants=constants, operators=operators)


def _key(layer: LayerNode, scheme: WeightScheme, changes: Changes) -> tuple[Any, ...]:
    """Return what the noise of a node depends on."""
    read = _read(layer, changes)
    # Not by the other layers of the mixture: a layer is measured with float inputs up to its own quantizers. So noise
    # is shared by all mixtures in which these agree.
    kinds = [(source, *quantizer.kind) for (_, source), quantizer in read.operands.items()]
    return layer.node.name, scheme, bool(read.operators), tuple(kinds)


def _less(shift: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return bias - shift.to(bias)


def _once(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the same function of one weight, with a cache of its result."""
    kept: list[torch.Tensor] = []

    def made(weight: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(make(weight))
        return kept[0]

    return made


def _bias(layer: LayerNode) -> fx.Node | None:
    index = layer.bias_index
    bias = layer.node.args[index] if index is not None and len(layer.node.args) > index else None
    return bias if isinstance(bias, fx.Node) and bias.op == "get_attr" else None


def _weight_name(layer: LayerNode) -> str:
    parameter = parameter_of(layer.weight)
    assert parameter is not None
    return str(parameter.target)
