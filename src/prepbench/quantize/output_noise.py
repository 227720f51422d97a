"""Estimate the noise of quantizing each layer at the model's outputs, for all layers from a few backward passes."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat import pytree
from prepbench.capture.sizes.recurrent import WITH_GRADIENTS
from prepbench.inputs import Sample
from prepbench.jobs import check_cancelled
from prepbench.objects.compare import Powers, powers
from prepbench.quantize.floors import Score
from prepbench.quantize.layer_nodes import LOOKUPS, WEIGHTED, LayerNode, nodes_reached
from prepbench.quantize.observed import observed_value, observer_of, set_mode
from prepbench.quantize.plan import Plan, is_dynamic
from prepbench.quantize.simulate import as_tuple, changed_result, first_states, rounded_weights
from prepbench.quantize.statistics import Statistics, preserved_buffers
from prepbench.quantize.weights import WeightScheme

# how many draws (rows times random vectors) an estimate averages, and how many vectors at most
_DRAWS = 32
_VECTORS = 16
# bytes of results of one sample that may be kept for the way back
_MEMORY = 3 * 2**30
_SEED = 2**20


@dataclass(frozen=True)
class Effect:
    """The effect of rounding one weight, or one activation.

    Attributes:
        on_outputs: the noise that it causes at the outputs, in the unit of :class:`OutputNoise`; None where no gradient
            leads there.
        own: signal and noise at the place itself.
    """

    on_outputs: float | None
    own: Powers

    @property
    def noise(self) -> float:
        """Return the noise at the outputs; at the place itself where that is unknown."""
        return self.own.noise_to_signal if self.on_outputs is None else self.on_outputs


@dataclass
class OutputNoise:
    """The noise that each quantizer of a graph alone adds to the outputs.

    Noise of several quantizers adds up, as long as all of it is small: rounding errors are hardly correlated.

    Attributes:
        in_nats: whether noise is a divergence of predictions in nats; otherwise it is relative to the signal, added
            over all floating-point outputs (0.01 is an SQNR of 20 dB).
        weights: the noise of rounding the weights of a layer, by FQN and scheme.
        values: the noise of rounding an activation, by name of its observer's node.
        needed_by: the layers because of which such a value is rounded.
        quantizers: an identity of the value and its rounding: equal ones are rounded only once.
    """

    in_nats: bool
    weights: dict[str, dict[WeightScheme, float]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    needed_by: dict[str, frozenset[str]] = field(default_factory=dict)
    quantizers: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def total(self, schemes: Mapping[str, WeightScheme]) -> float:
        """Return the noise when these layers are quantized, and all others in float."""
        weights = [self.weights[fqn][scheme] for fqn, scheme in schemes.items()]
        values = [noise for name, noise in self.values.items() if self.needed_by[name] & schemes.keys()]
        return math.fsum([*weights, *values])


def estimate_output_noise(
    graph: fx.GraphModule,
    plan: Plan,
    schemes: Mapping[str, Collection[WeightScheme]],
    samples: Sequence[Sample],
    outputs: Sequence[tuple[Any, ...]],
    *,
    logits: Collection[int] = (),
    corrected: bool = True,
    statistics: Statistics | None = None,
) -> OutputNoise:
    """Estimate what each quantizer of a graph adds to the outputs, with everything else in float.

    A random vector ``v`` of independent normal numbers at the outputs has the gradient ``g = v J`` at a place
    inside, where ``J`` is the Jacobian; the mean of ``(g . e)^2`` over such vectors is ``|J e|^2``, the power at the
    outputs of an error ``e`` at that place (Hutchinson, "A stochastic estimator of the trace of the influence
    matrix", 1989). So one backward pass serves all places. Where outputs are logits, ``v`` has the covariance
    ``diag(p) - p p^T`` of Fisher's information, and half the mean is the divergence of the predictions to second
    order (Martens, "New insights and perspectives on the natural gradient method", 2020). That the second order
    decides the loss of layers was shown by Dong, Yao, Gholami, Mahoney and Keutzer, "HAWQ: Hessian AWare
    Quantization of Neural Networks with Mixed-Precision", 2019; here the errors are those of the samples themselves.
    Rows of a sample that do not depend on each other share a vector and give an estimate each.

    Where no gradient leads to the outputs (leaves, operators without a derivative, writes in place), or the saved
    tensors take too much memory, the noise at the place itself is taken, relative to the signal there.

    Args:
        graph: observed and calibrated; its observers pass values on afterwards.
        plan: of its observers.
        schemes: the candidates for each layer's weight, by FQN.
        samples: calls of the graph.
        outputs: the results of the graph in float for each sample.
        logits: the outputs that predict tokens, to estimate a divergence; all floating-point outputs if there are none.
        corrected: whether biases remove the mean error of each channel from rounding a weight.
        statistics: the calibration cache of the same float graph and samples; new entries are added.

    Example:
        >>> noise = estimate_output_noise(graph, plan, schemes, samples, outputs)  # doctest: +SKIP
        >>> noise.total({"head": WeightScheme(INT8)})  # doctest: +SKIP
        2.3e-05
    """
    statistics = Statistics() if statistics is None else statistics
    # Errors are those of each place alone, so all other quantizers must be off.
    set_mode(graph, "pass")
    places = _places(graph, plan, schemes)
    # Effects are cached for a graph and its samples; what they are measured in is part of the key.
    judged = (tuple(logits), corrected)
    if any((*key, judged) not in statistics.effects for key in places):
        with preserved_buffers(graph):
            found = _Estimate(graph, places.values(), plan, corrected).effects(samples, OutputVectors(outputs, logits))
        statistics.effects.update({(*key, judged): found[place.key] for key, place in places.items()})
    effects = {key: statistics.effects[(*key, judged)] for key in places}
    result = OutputNoise(bool(logits))
    for key, place in places.items():
        effect: Effect = effects[key]
        if place.scheme is not None:
            (fqn,) = place.because
            of_layer = result.weights.setdefault(fqn, {})
            of_layer[place.scheme] = of_layer.get(place.scheme, 0.0) + effect.noise
        else:
            result.values[place.node.name] = effect.noise
            result.needed_by[place.node.name] = place.because
            source, _, *numbers = key
            result.quantizers[place.node.name] = (source, *numbers)
    return result


@dataclass(frozen=True)
class _Place:
    """A place of rounding: a layer's weights with one scheme, or a value at an observer."""

    node: fx.Node
    because: frozenset[str]
    layer: LayerNode | None = None
    scheme: WeightScheme | None = None
    is_corrected: bool = False

    @property
    def key(self) -> tuple[str, WeightScheme | None]:
        return self.node.name, self.scheme


def _places(
    graph: fx.GraphModule, plan: Plan, schemes: Mapping[str, Collection[WeightScheme]]
) -> dict[tuple[Any, ...], _Place]:
    """Return all places, by what their effects depend on besides the float graph and the samples."""
    by_name = {node.name: node for node in graph.graph.nodes}
    result: dict[tuple[Any, ...], _Place] = {}
    for fqn, layers in plan.nodes.items():
        for layer, scheme in itertools.product(layers, schemes[fqn]):
            node = by_name[layer.node.name]
            # Correcting needs a bias of one call: a layer that is called twice has one bias and two shifts.
            has_bias = layer.bias_index is not None and len(node.args) > layer.bias_index
            corrected = has_bias and len(layers) == 1 and plan.settings[fqn].bias_correction
            place = _Place(node, frozenset([fqn]), layer, scheme, corrected)
            # The scheme's error also depends on the mode of a recurrent layer, and its effect on the bias correction.
            result[node.name, scheme, is_dynamic(plan, node.name, scheme), plan.settings[fqn].bias_correction] = place
    because: dict[str, set[str]] = {}
    edges: dict[tuple[str, str], set[str]] = {}
    for point in plan.points:
        if point.output is not None:
            because.setdefault(point.output, set()).update(point.because)
        for edge in point.inputs:
            edges.setdefault(edge, set()).update(point.because)
    for node in graph.graph.nodes:
        observer = observer_of(graph, node)
        if observer is None or not hasattr(observer, "forget"):
            continue
        source = observed_value(graph, node).name
        users = tuple(user.name for user in node.users)
        layers_of = because.get(source, set()).union(*(edges.get((user, source), set()) for user in users))
        if layers_of and observer.finite:
            scale, zero_point = (float(value) for value in observer.calculate_qparams())
            # By value and not by observer: another plan with the same range rounds this value in the same way.
            key = (source, users, scale, zero_point, observer.quant_min, observer.quant_max)
            result[key] = _Place(node, frozenset(layers_of))
    return result


class _Sums:
    """The sums for one place."""

    def __init__(self) -> None:
        self.own = Powers()
        self.squares = 0.0
        self.means: list[tuple[int, torch.Tensor, torch.Tensor]] = []  # products by row, gradients by row and channel
        self.shift: torch.Tensor | None = None
        self.count = 0


class _Estimate(fx.Interpreter):
    """Runs the graph, keeps the error of each place, and multiplies it with gradients in the backward pass."""

    def __init__(self, graph: fx.GraphModule, places: Iterable[_Place], plan: Plan, corrected: bool) -> None:
        super().__init__(graph)
        self._by_node: dict[fx.Node, list[_Place]] = {}
        for place in places:
            self._by_node.setdefault(place.node, []).append(place)
        self._plan = plan
        self._corrected = corrected
        self._sums = {place.key: _Sums() for each in self._by_node.values() for place in each}
        self._blocked: set[fx.Node] = set()
        self._lost: set[fx.Node] = set()
        self._wanted: set[fx.Node] = set()
        self._keeps = True
        self._kept = 0
        self._rows = 1
        self._vectors = 1

    def effects(
        self, samples: Sequence[Sample], outputs: OutputVectors
    ) -> dict[tuple[str, WeightScheme | None], Effect]:
        """Return the effects of all places, over all samples."""
        counts = [_first_size(sample) for sample in samples]
        graph = self.module.graph
        assert isinstance(graph, fx.Graph)
        self._wanted = outputs.ancestors(graph)
        # Each row with each vector is one draw of Hutchinson's estimator, so many rows need few vectors.
        self._vectors = min(_VECTORS, math.ceil(_DRAWS / max(1, sum(counts))))
        for number, sample in enumerate(samples):
            self._kept = 0
            with torch.enable_grad():
                found = as_tuple(self.run(*sample.args, enable_io_processing=False))
                if self._keeps:
                    # If outputs have another number of rows (pooled over the batch, say), rows may depend on each
                    # other: one draw.
                    self._rows = counts[number] if outputs.rows(found) == counts[number] else 1
                    self._go_back(outputs, found, number)
            del found
        # Also where some paths have a gradient: what is lost on the other path is unknown, so the estimate would be too
        # low.
        unknown = _dependencies(self._blocked) | self._lost
        result = {}
        for places in self._by_node.values():
            for place in places:
                sums = self._sums[place.key]
                known = self._keeps and place.node not in unknown
                result[place.key] = Effect(self._mean(place, sums) if known else None, sums.own)
        return result

    def run_node(self, n: fx.Node) -> Any:
        check_cancelled()
        if n.op == "get_attr":
            value = super().run_node(n)
            # Only activations need gradients; with those of parameters, a backward pass costs about twice as much.
            return value.detach() if isinstance(value, torch.Tensor) else value
        output = self._run(n)
        if n in self._by_node and _is_float(first_states(output)) and first_states(output).numel():
            output = self._with_errors(n, output)
        return output

    def _run(self, node: fx.Node) -> Any:
        if node.op != "call_function":
            return super().run_node(node)
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        if node.target is torch.ops.aten.detach.default:
            return args[0]  # values pass, and so must gradients
        target: Any = WITH_GRADIENTS.get(node.target, node.target)
        # Our operators (leaves, loops, recurrent layers without a form for gradients) have no derivative, and some run
        # a user's code: no graph is recorded for them.
        is_leaf = str(getattr(target, "namespace", "aten")).startswith("prepbench")
        with torch.set_grad_enabled(self._keeps and not is_leaf):
            output = target(*args, **kwargs)
        if self._keeps:
            self._count(output)
            is_lost = _needs_gradient((args, kwargs)) and not _needs_gradient(output)
            if is_lost and node in self._wanted and _is_cut(node, output):
                # A gradient ends here although the values go on, so nothing in front of it has a known effect on the
                # outputs.
                self._blocked.add(node)
        return output

    def _count(self, output: Any) -> None:
        """Count the memory of results; where it is too much, continue without gradients."""
        self._kept += sum(leaf.nbytes for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor))
        if self._kept > _MEMORY:
            self._keeps = False

    def _with_errors(self, node: fx.Node, output: Any) -> Any:
        """Return the output with a hook that multiplies its gradients with the errors of all places here."""
        right: torch.Tensor = first_states(output)
        errors = []
        with torch.no_grad():
            for place, got in self._rounded(node, right):
                error = got - right
                sums = self._sums[place.key]
                sums.own += powers(right, got)
                if place.is_corrected and self._corrected and place.layer is not None:
                    axis = place.layer.channels % right.ndim
                    shift = error.sum([other for other in range(right.ndim) if other != axis]).double()
                    sums.shift = shift if sums.shift is None else sums.shift + shift
                    sums.count += error.numel() // max(1, error.shape[axis])
                if self._keeps:
                    errors.append((place, error))
        if not self._keeps:
            return output
        # a copy where the way back ends, because what follows may write to it
        followed = right.view_as(right) if right.requires_grad else right.detach().requires_grad_().clone()
        # The hook gets the gradient of the random vector at this place; the errors are kept until then.
        followed.register_hook(lambda gradient: self._multiply(node, gradient, errors))
        return (followed, *output[1:]) if isinstance(output, tuple) else followed

    def _rounded(self, node: fx.Node, right: torch.Tensor) -> Iterable[tuple[_Place, torch.Tensor]]:
        places = self._by_node[node]
        layer = places[0].layer
        if layer is None:
            yield places[0], observer_of(self.module, node).simulate(right)
            return
        for place in places:
            assert place.scheme is not None
            changes = rounded_weights(
                self.module, layer, node, place.scheme, is_dynamic=is_dynamic(self._plan, node.name, place.scheme)
            )
            yield place, changed_result(node, self.env, changes)

    def _go_back(self, outputs: OutputVectors, found: Sequence[Any], number: int) -> None:
        for vector in range(self._vectors):
            check_cancelled()
            pairs = outputs.vectors(found, number * _SEED + vector)
            if not pairs:
                return
            try:
                torch.autograd.backward(
                    [output for output, _ in pairs],
                    [at_output for _, at_output in pairs],
                    # The last pass frees what was saved as it goes.
                    retain_graph=vector + 1 < self._vectors,
                )
            except RuntimeError:  # an operator without a derivative, or a value that was written to meanwhile
                self._keeps = False
                return

    def _multiply(
        self, node: fx.Node, gradient: torch.Tensor | None, errors: Sequence[tuple[_Place, torch.Tensor]]
    ) -> None:
        if gradient is None:  # a user's operator between here and the outputs has no derivative
            self._lost.add(node)
            return
        gradient = gradient.detach().nan_to_num(0.0, 0.0, 0.0)  # SQNR leaves out outputs that are not finite, too
        for place, error in errors:
            sums = self._sums[place.key]
            by_row = self._of_rows(gradient * error).sum(1).double()
            if sums.shift is not None and place.layer is not None:
                # The bias takes off the mean error of each channel over all samples, which is known only at the end. So
                # keep g . e by row and the sums of g by channel: (g . (e - mean)) = g . e - (sum of g) . mean.
                channels = self._of_rows(gradient.movedim(place.layer.channels, -1), keep=True).sum(1).double()
                sums.means.append((len(by_row), by_row, channels))
            else:
                sums.squares += float(by_row.square().sum())

    def _of_rows(self, values: torch.Tensor, keep: bool = False) -> torch.Tensor:
        """Return the values of each row of the sample, of shape (rows, values); with ``keep`` (rows, values, last
        size).
        """
        splits = values.ndim > 1 and values.shape[0] % self._rows == 0
        return values.reshape(self._rows if splits else 1, -1, *(values.shape[-1:] if keep else ()))

    def _mean(self, place: _Place, sums: _Sums) -> float:
        """Return the noise at the outputs, averaged over the random vectors, after the bias correction."""
        squares = sums.squares
        for _, by_row, channels in sums.means:
            assert sums.shift is not None
            squares += float((by_row - channels @ (sums.shift / max(1, sums.count))).square().sum())
        return squares / self._vectors


# operators whose results do not depend on the values that they are given
_FORMS = ("_like", "new_", "empty")


def _is_cut(node: fx.Node, output: Any) -> bool:
    """Return whether a node's result depends on its inputs, but has no gradient."""
    name = str(getattr(node.target, "__name__", node.target))
    return any(map(_is_float, pytree.tree_leaves(output))) and not any(form in name for form in _FORMS)


def _needs_gradient(values: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(values))


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _first_size(sample: Sample) -> int:
    sizes = [leaf.shape[0] for leaf in sample.args if isinstance(leaf, torch.Tensor) and leaf.ndim]
    return max(1, sizes[0]) if sizes else 1


# Random vectors at the outputs of a model, by which backward passes measure noise there.


class OutputVectors:
    """Random vectors at the outputs of a graph; the mean square of their products with an error there is its noise.

    Args:
        outputs: the results in float for each sample.
        logits: the outputs that predict tokens, to measure a divergence; all floating-point outputs if there are none.
    """

    def __init__(self, outputs: Sequence[tuple[Any, ...]], logits: Collection[int]) -> None:
        self.in_nats = bool(logits)
        self._scale: dict[int, float] = {}
        for index in range(len(outputs[0]) if outputs else 0):
            each = [one[index] for one in outputs]
            if (index in logits or not logits) and isinstance(each[0], torch.Tensor) and each[0].is_floating_point():
                # Divided by the number of predictions (a mean of divergences in nats; one half from the second-order
                # term) or by the power of the signal (noise relative to it). The square root, because the product is
                # squared later.
                total = (
                    float(sum(one.numel() // max(1, one.shape[-1]) for one in each))
                    if logits
                    else sum(powers(one, one).signal for one in each)
                )
                self._scale[index] = math.sqrt((0.5 if logits else 1.0) / total) if total else 0.0

    def ancestors(self, graph: fx.Graph) -> set[fx.Node]:
        """Return the nodes of a graph that the outputs which count depend on, with these."""
        (output,) = graph.find_nodes(op="output")
        results = output.args[0] if isinstance(output.args[0], tuple | list) else output.args
        counted = [results[index] for index in self._scale if isinstance(results[index], fx.Node)]
        return nodes_reached(counted)

    def rows(self, outputs: Sequence[Any]) -> int:
        """Return the common number of rows of all outputs that count; 1 where they differ."""
        rows = {outputs[index].shape[0] if outputs[index].ndim else 1 for index in self._scale}
        return rows.pop() if len(rows) == 1 else 1

    def vectors(self, outputs: Sequence[Any], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the outputs that have a gradient, with a random vector for each."""
        generator = torch.Generator().manual_seed(seed)
        pairs = []
        for index, scale in self._scale.items():
            output = outputs[index]
            # Drawn also for outputs without a gradient, so that the others get the same numbers in any graph.
            vector = torch.randn(output.shape, generator=generator).to(output)
            if self.in_nats:
                likely = output.detach().softmax(-1)
                # A vector of covariance diag(p) - p p^T: sqrt(p) v - p (sqrt(p) . v).
                root = likely.sqrt()
                vector = root * vector - likely * (root * vector).sum(-1, keepdim=True)
            if output.requires_grad:
                pairs.append((output, vector * scale))
        return pairs


# Find the values by which a model is judged that chooses rows by their numbers: detectors, retrieval, `argmax`.


_aten = torch.ops.aten
_CHOICES = frozenset(
    (
        _aten.topk, _aten.sort, _aten.argsort, _aten.argmax, _aten.argmin, _aten.nonzero, _aten.nonzero_static,
        _aten.masked_select, _aten.msort, _aten.kthvalue, _aten.unique_dim, _aten._unique2,
    )
)  # fmt: skip
_WITH_INDICES = frozenset((_aten.max, _aten.min))
_SUMS = frozenset((_aten.add, _aten.sub))
# what may follow the sum: each number of the result is one of the sum's, or a limit
_LIMITS_AND_MOVES = frozenset(
    (
        _aten.clamp, _aten.clamp_min, _aten.clamp_max, _aten.hardtanh, _aten.relu, _aten.view, _aten.reshape,
        _aten.permute, _aten.transpose, _aten.unsqueeze, _aten.squeeze, _aten.slice, _aten.clone, _aten._to_copy,
    )
)  # fmt: skip
_OWN = "prepbench"


# `topk`, `sort`, `nonzero` and non-maximum suppression order their rows by scores. A rounding error, however small, may
# exchange two rows of nearly the same score, and then a comparison of outputs row by row says nothing. So such outputs
# are judged by the floating-point values in front of the last choice.
#
# A network that removes noise, or adds details to an enlarged image, ends with a sum of its input and what it computes.
# The input makes the output large, and hides that the little which is computed is mostly noise. So what is added to
# the input is judged, too.


@dataclass(frozen=True)
class Judged:
    """The values by which a graph is judged.

    Attributes:
        outputs: how many outputs the graph has of its own.
        chosen: which of these come from a choice of rows, and are not judged themselves.
        frontier: the floating-point values in front of the last choices.
        choices: the names of the operators that choose.
        corrections: what is computed and added to something that no layer has computed, which makes an output.
    """

    outputs: int
    chosen: frozenset[int] = frozenset()
    frontier: tuple[fx.Node, ...] = ()
    choices: tuple[str, ...] = ()
    corrections: tuple[fx.Node, ...] = ()

    @property
    def further(self) -> tuple[fx.Node, ...]:
        """The values that are judged and are no outputs."""
        return tuple(dict.fromkeys((*self.frontier, *self.corrections)))

    @property
    def corrected(self) -> frozenset[int]:
        """The places of :attr:`corrections` among all judged values."""
        end = self.outputs + len(self.further)
        return frozenset(range(self.outputs + len(self.frontier), end))

    @property
    def remark(self) -> str:
        """How the model was judged, where that is not by its outputs; else empty."""
        if not self.frontier:
            return ""
        one = len(self.frontier) == 1
        return (
            f"exactness was measured at the {'value' if one else f'{len(self.frontier)} values'} in front of "
            f"{', '.join(self.choices)}, because outputs whose rows are chosen by their numbers cannot be compared row "
            "by row"
        )

    def told(self, score: Score) -> Score:
        """Return a score as reports tell it: of the outputs, with a remark on what else was judged."""
        added = [sqnr for place, sqnr in score.outputs if place in self.corrected]
        others = [sqnr for place, sqnr in score.outputs if place not in self.corrected]
        remarks = [self.remark] if self.remark else []
        if added:
            remarks.append(
                f"what the model adds to its input is at {min(added):.1f} dB; the floor for the model holds "
                "for it, too, because it is all that layers compute"
            )
        return replace(score, sqnr=min(others, default=score.sqnr), remark="; ".join(remarks))

    def judge(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of a run with None in place of those that are not judged."""
        return tuple(None if index in self.chosen else value for index, value in enumerate(outputs))


def judged_values(graph: fx.Graph) -> Judged:
    """Return by which values a graph is judged.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def forward(self, x, weight):
        ...         return torch.nn.functional.linear(x, weight).topk(2).values
        >>> found = judged_values(torch.export.export(Model(), (torch.ones(3, 4), torch.ones(5, 4))).graph)
        >>> found.chosen, [node.name for node in found.frontier], found.choices
        (frozenset({0}), ['linear'], ('topk',))
    """
    (output,) = graph.find_nodes(op="output")
    results = _results(output)
    layers = [node for node in graph.nodes if _is_layer(node)]
    before, after = _dependencies(layers), _followers(layers)
    roots = [node for node in graph.nodes if node not in before and node in after and _chooses(node)]
    chosen = _followers(roots)
    indices = frozenset(index for index, one in enumerate(results) if one in chosen)
    frontier = _frontier((node for node in graph.nodes if node in chosen and node is not output), chosen, after)
    corrections = tuple(filter(None, (_correction(one, after) for one in results if one not in chosen)))
    if not indices or not frontier:
        return Judged(len(results), corrections=corrections)
    return Judged(len(results), indices, frontier, tuple(dict.fromkeys(map(_name, roots))), corrections)


@contextmanager
def judged_outputs(graph: fx.GraphModule) -> Iterator[Judged]:
    """Yield by which values a graph is judged, which it returns during the block, behind its own outputs.

    The graph then has more results than its structure of results says: run it with ``enable_io_processing=False``.
    """
    judged = judged_values(graph.graph)
    (output,) = graph.graph.find_nodes(op="output")
    try:
        if judged.further:
            output.args = ((*_results(output), *judged.further),)
            graph.recompile()
        yield judged
    finally:
        if judged.further:
            output.args = (_results(output)[: judged.outputs],)
            graph.recompile()


def _results(output: fx.Node) -> tuple[Any, ...]:
    found = output.args[0]
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def _is_layer(node: fx.Node) -> bool:
    """Return whether a node is a layer, or one of our operators, which hold loops and recurrent layers."""
    return node.target in WEIGHTED or node.target in LOOKUPS or _namespace(node) == _OWN


def _namespace(node: fx.Node) -> str:
    return str(getattr(node.target, "namespace", "")) if node.op == "call_function" else ""


def _chooses(node: fx.Node) -> bool:
    """Return whether a node chooses or orders rows by numbers.

    Of operators that are not PyTorch's that is told by what they return: positions or classes, or as many rows as there
    happen to be.
    """
    if node.op != "call_function":
        return False
    if _packet(node) in _CHOICES:
        return True
    if node.target is operator.getitem:
        return _packet(node.args[0]) in _WITH_INDICES and bool(node.args[1] == 1)
    sizes = _data_sizes(node) - {size for one in node.all_input_nodes for size in _data_sizes(one)}
    is_foreign = _namespace(node) not in ("", "aten", "prims", "quantized_decomposed", "torchao")
    return bool(sizes) or (is_foreign and any(_is_integer(leaf) for leaf in _values(node)))


def _correction(result: Any, after: set[fx.Node]) -> fx.Node | None:
    """Return what layers compute of an output that is the sum of it and of something that only the inputs decide."""
    node = result
    while isinstance(node, fx.Node) and (node.op == "call_module" or _packet(node) in _LIMITS_AND_MOVES):
        node = node.args[0]  # of an observer, too
    if _packet(node) not in _SUMS:
        return None
    terms = [term for term in node.args[:2] if isinstance(term, fx.Node)]
    computed = [term for term in terms if term in after]
    if len(terms) != 2 or len(computed) != 1:
        return None
    (given,) = (term for term in terms if term not in after)
    is_of_input = any(one.op == "placeholder" for one in nodes_reached([given]))
    value = _value(computed[0])
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return computed[0] if is_of_input and is_float else None


def _packet(node: Any) -> Any:
    return getattr(getattr(node, "target", None), "overloadpacket", None)


def _frontier(nodes: Iterable[fx.Node], chosen: set[fx.Node], after: set[fx.Node]) -> tuple[fx.Node, ...]:
    """Return the floating-point values that these nodes read, also through masks and positions made of them."""
    found: dict[fx.Node, None] = {}
    seen: set[fx.Node] = set()
    left = [source for node in nodes for source in node.all_input_nodes]
    while left:
        source = left.pop(0)
        if source in seen or source in chosen or source not in after:
            continue
        seen.add(source)
        value = _value(source)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            found.setdefault(source)
        else:
            left.extend(source.all_input_nodes)
    return tuple(found)


def _followers(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return these nodes, and all that depend on them."""
    return nodes_reached(nodes, lambda node: node.users)


def _dependencies(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return all nodes that these depend on."""
    return nodes_reached(source for node in nodes for source in node.all_input_nodes)


def _value(node: fx.Node) -> Any:
    value = node.meta.get("val")
    if value is None and node.op == "call_module" and node.all_input_nodes:
        return _value(node.all_input_nodes[0])  # an observer
    return value


def _values(node: fx.Node) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(_value(node)) if isinstance(leaf, torch.Tensor)]


def _is_integer(leaf: torch.Tensor) -> bool:
    return not leaf.is_floating_point() and not leaf.is_complex()


def _data_sizes(node: fx.Node) -> set[str]:
    """Return the sizes of a node's results that are known only when the data is."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return {str(symbol) for leaf in _values(node) for symbol in free_unbacked_symbols(leaf)}


def _name(node: fx.Node) -> str:
    source = node.args[0] if node.target is operator.getitem else node
    assert isinstance(source, fx.Node)
    packet = getattr(source.target, "overloadpacket", source.target)
    return str(packet).removeprefix("aten.").removeprefix("_")
