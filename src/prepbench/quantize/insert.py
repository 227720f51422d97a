"""The first stage: fold batch norms, apply the algorithms that change weights, and insert observers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from prepbench._torch_compat.fake_tensors import symbolic_kernels
from prepbench._torch_compat.scans import scans_in, steps_of
from prepbench._torchao_compat import pt2e
from prepbench.capture.aten.constant_nodes import ConstantNodes
from prepbench.document.model import Failure
from prepbench.errors import CalibrationError, SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize.algorithms import (
    BY_DEFAULT,
    WHEN_REQUESTED,
    SmoothingGain,
    equalize,
    fold_batch_norms,
    settings_of_scales,
    smooth,
)
from prepbench.quantize.layer_nodes import (
    LOOKUPS,
    SELECTS_MATRICES,
    SOURCES,
    TIED,
    WEIGHTED,
    layer_nodes,
    nodes_reached,
    parameter_of,
    sources_of,
)
from prepbench.quantize.layer_reports import LayerReporter
from prepbench.quantize.observed import Observed
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan, annotate, make_plan
from prepbench.quantize.repeatable import make_repeatable
from prepbench.quantize.report import LayerReport
from prepbench.quantize.statistics import Statistics, own_written_buffers, written_names
from prepbench.settings import CompileOptions, ExplainedLayer, QuantizationSettings, is_within, weight_formats
from prepbench.settings.numbers import INT8


def insert_observers(
    program: torch.export.ExportedProgram,
    model: nn.Module,
    explained: Sequence[ExplainedLayer],
    placement: Placement,
    leaves: Sequence[Failure] = (),
    *,
    options: CompileOptions | None = None,
    samples: Sequence[Sample] = (),
    progress: ProgressCallback = report_nothing,
    statistics: Statistics | None = None,
    plain_weights: bool = True,
) -> Observed:
    """Fold batch norms, apply the algorithms that change weights, and insert observers where settings and target ask
    for them.

    Args:
        program: the captured model; it is not changed.
        model: the model it was captured from, for parameter counts.
        explained: the decision for each layer, from :func:`prepbench.settings.explain_settings`.
        placement: where the target wants quantizers.
        leaves: leaf modules and lines, and why they are leaves: layers inside them cannot be quantized.
        options: which algorithms.
        samples: calibration inputs, for the algorithms that need some.
        progress: called after each sample; may raise to cancel.
        statistics: the calibration cache of the program on these samples; new entries are added.
        plain_weights: see :func:`float_graph`.

    Raises:
        NothingQuantizedError: nothing would be quantized under these settings.
    """
    options = options or CompileOptions()
    graph, before = float_graph(program, options, plain_weights=plain_weights)
    behind = skipped_downstream(graph.graph, explained)
    settings = {row.fqn: row.settings for row in explained if row.settings is not None and row.fqn not in behind}
    layers = [row.fqn for row in explained]
    _check_weights(graph, settings)
    notes = change_weights(graph, settings, layers, options, samples, progress, statistics)
    plan = make_plan(graph, settings, placement)
    told = {fqn: note for fqn, note in notes.items() if fqn in settings}
    reporter = LayerReporter(model, graph, plan, leaves, behind, told)
    rows = tuple(reporter.report(layer) for layer in explained if not layer.is_assumed or reporter.is_layer(layer.fqn))
    _check_not_empty(rows)
    return replace(observed_with(graph, plan, placement, options, before), layers=rows, scaled=frozenset(notes))


class NothingQuantizedError(SettingsError):
    """No layer of a graph is quantized under these settings."""


def observed_with(
    graph: fx.GraphModule,
    plan: Plan,
    placement: Placement,
    options: CompileOptions,
    written: dict[str, torch.Tensor],
) -> Observed:
    """Return a float graph with a plan's observers; ``graph`` is changed, ``written`` is kept."""
    annotate(graph, plan, placement, options.percentile)
    _mark_loop_bodies_observed(graph)
    observed = pt2e().prepare(graph, pt2e().scopes(graph), is_qat=False)
    return Observed(observed, (), plan, options, written=written)


def _mark_loop_bodies_observed(graph: fx.GraphModule) -> None:
    """Mark the graphs of loop bodies as observed, so that torchao converts them too; they have no observers."""
    for node in scans_in(graph.graph):
        name, steps = steps_of(graph, node)
        setattr(graph, name, pt2e().prepare(steps, pt2e().scopes(steps), is_qat=False))


def _check_weights(graph: fx.GraphModule, settings: Mapping[str, QuantizationSettings]) -> None:
    """Raise ``CalibrationError`` for weights with NaN or infinity, which integers lack: the result would be finite."""
    layers = layer_nodes(graph.graph, settings, lookups=True, recurrent=True)
    reads = (parameter_of(weight) for layer in layers for weight in layer.weights)
    for read in dict.fromkeys(read for read in reads if read is not None):
        tensor = operator.attrgetter(str(read.target))(graph)
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        low, high = (tensor.float() if tensor.itemsize == 1 else tensor).detach().aminmax()
        if not bool(low.isfinite() & high.isfinite()):
            raise CalibrationError(
                f"{', '.join(sources_of(read))} holds NaN or infinite values ({int((~tensor.isfinite()).sum())} of "
                f"{tensor.numel()}), and integers have neither. Repair the weights, or keep the layer in float "
                "(LayerQuantizationSettings(skip_quantization=True))."
            )


def _check_not_empty(rows: Sequence[LayerReport]) -> None:
    if any(row.quantized for row in rows):
        return
    reasons = "; ".join(f"{row.fqn or 'the model'}: {row.reason}" for row in rows[:6])
    raise NothingQuantizedError(
        f"Nothing would be quantized: {reasons or 'the model has no layer with a weight matrix'}. "
        "Change layer_quantization_settings, or compile in float with quantization_settings=None."
    )


def float_graph(
    program: torch.export.ExportedProgram, options: CompileOptions, *, plain_weights: bool = True
) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """Return the graph of a program, repeatable and with batch norms folded, and the initial values of the buffers
    that it writes to.

    With ``plain_weights``, weights that are computed from constants are computed now; training computes them in each
    step, because their parts learn.
    """
    graph = program.module(check_guards=False)
    names: dict[int, list[str]] = {}
    for name, tensor in program.state_dict.items():
        names.setdefault(id(tensor), []).append(name)
    tied = {name: tuple(other for other in same if other != name) for same in names.values() for name in same}
    for node in graph.graph.find_nodes(op="get_attr"):
        node.meta[SOURCES] = (str(node.target),)
        node.meta[TIED] = tied.get(str(node.target), ())
    before = own_written_buffers(graph)
    make_repeatable(graph, same_draws=plain_weights)
    if plain_weights:
        make_weights_plain(graph)
    if options.fold_batch_norm:
        fold_batch_norms(graph)
    return graph, before


# Weights that a graph computes from constants, or multiplies by in other ways than layers do, made those of layers.


aten = torch.ops.aten

_TRANSPOSES = frozenset(
    [aten.numpy_T.default, aten.t.default, aten.transpose.int, aten.permute.default, aten.mT.default]
)
_PRODUCTS = frozenset([aten.matmul.default, aten.mm.default])
_STACKED = frozenset([aten.matmul.default, aten.bmm.default])
_SELECTIONS = frozenset([aten.index.Tensor, aten.index_select.default])
# matrices of one product that become layers of their own
_MOST_STACKED = 256


@torch.no_grad()
def make_weights_plain(graph: fx.GraphModule) -> None:
    """Make layers read their weights from attributes, in place; the graph's results stay the same.

    Four things are rewritten. A weight that is computed from constants alone (normalised weights, the product of
    two, one of a stack) is computed now, once. A product with a transposed matrix becomes ``aten.linear``, without a
    copy of the matrix. A product of stacks, one matrix for each entry of a batch, becomes one layer for each matrix.
    Matrices that a tensor selects from a stack, as mixtures of experts do, become the rows of a table.

    Args:
        graph: of a program; its parameters may be shared with the user's model and stay as they are.
    """
    folded = _Folded(graph)
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.einsum.default:
            _as_product(graph.graph, node, folded)
            continue
        if node.target in _SELECTIONS:
            _as_lookup(graph.graph, node, folded)
            continue
        if node.target in _STACKED:
            _unstack(graph, node, folded)
        if node.target in _PRODUCTS:
            _as_linear(node)
    folded = _Folded(graph)
    for node in list(graph.graph.nodes):
        place = {**WEIGHTED, **LOOKUPS}.get(node.target) if node.op == "call_function" else None
        if place is not None and not folded.is_constant(node):  # a constant product is a part of another weight
            folded.replace_weight(node, place[1])
    for check in graph.graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default):
        if folded.is_constant(check.args[0]):
            graph.graph.erase_node(check)  # it would keep what a weight is computed from
    graph.graph.eliminate_dead_code()
    graph.recompile()


class _Folded:
    """Constant folding of a graph with its weights."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        self._names: dict[tuple[fx.Node, bool], str] = {}
        written = set(written_names(graph.graph))

        def read(node: fx.Node) -> torch.Tensor | None:
            if node.op != "get_attr" or str(node.target) in written:
                return None
            value = operator.attrgetter(str(node.target))(graph)
            return value if isinstance(value, torch.Tensor) else None

        self._constant = ConstantNodes(graph.graph, read)

    def is_constant(self, node: object) -> bool:
        return node in self._constant

    def value(self, node: fx.Node) -> Any:
        """Return the value of a constant node."""
        return self._constant.value(node)

    def replace_weight(self, node: fx.Node, place: int) -> None:
        """Make a layer read its computed weight from an attribute."""
        weight = node.args[place]
        if not isinstance(weight, fx.Node) or weight.op == "get_attr" or parameter_of(weight) is not None:
            return
        if not self.is_constant(weight) or not isinstance(self.value(weight), torch.Tensor):
            return
        value, val = self.value(weight), weight.meta["val"]
        if not value.is_floating_point():
            return
        if is_turned := node.target in _PRODUCTS and value.ndim == 2:
            # rows are outputs, so that blocks of inputs can have scales
            value, val, node.target = value.t(), val.t(), aten.linear.default
        key = weight, is_turned
        if key not in self._names:
            number = len([name for name, _ in self._graph.named_parameters() if name.startswith("computed_weight_")])
            self._names[key] = f"computed_weight_{number}"
            self._graph.register_parameter(self._names[key], nn.Parameter(value.contiguous(), requires_grad=False))
        with self._graph.graph.inserting_before(node):
            read = self._graph.graph.get_attr(self._names[key])
        read.meta = {"val": val, SOURCES: tuple(dict.fromkeys(_sources(weight)))}
        node.update_arg(place, read)


def _sources(node: fx.Node) -> Iterator[str]:
    """Yield the tensors that a constant is computed from, the largest first."""
    reads = [one for one in nodes_reached([node]) if one.op == "get_attr"]
    for read in sorted(sorted(reads), key=lambda read: -read.meta["val"].numel() if "val" in read.meta else 0):
        yield from sources_of(read)


def _as_linear(node: fx.Node) -> None:
    """Rewrite a product with a transposed matrix as a linear layer."""
    left, right = node.args[:2]
    if not isinstance(right, fx.Node) or right.target not in _TRANSPOSES or not isinstance(left, fx.Node):
        return
    args: tuple[Any, ...] = right.args
    matrix = args[0]
    if not isinstance(matrix, fx.Node) or parameter_of(matrix) is None or matrix.meta["val"].ndim != 2:
        return
    if right.target is aten.permute.default and [dim % 2 for dim in args[1]] != [1, 0]:
        return
    if right.target is aten.transpose.int and args[1] % 2 == args[2] % 2:
        return
    node.target, node.args = aten.linear.default, (left, matrix)


def _as_product(graph: fx.Graph, node: fx.Node, folded: _Folded) -> None:
    """Rewrite an ``einsum`` that contracts the last axes of its input with those of a constant, as a linear layer."""
    args: tuple[Any, ...] = node.args
    equation, operands = args[:2]
    if not isinstance(equation, str) or not isinstance(operands, list | tuple) or len(operands) != 2:
        return
    inputs, _, output = equation.replace(" ", "").partition("->")
    one, _, two = inputs.partition(",")
    left, right = operands
    if folded.is_constant(left):
        left, right, one, two = right, left, two, one
    if not isinstance(left, fx.Node) or not folded.is_constant(right) or folded.is_constant(left):
        return
    contracted = "".join(letter for letter in one if letter in two)
    kept = "".join(letter for letter in output if letter not in one)
    is_linear = one.endswith(contracted) and output == one[: len(one) - len(contracted)] + kept and contracted and kept
    if not is_linear or sorted(contracted + kept) != sorted(two) or len(set(one)) < len(one):
        return
    steps = _Steps(graph, node)
    order, sizes = (
        [two.index(letter) for letter in kept + contracted],
        dict(zip(two, right.meta["val"].shape, strict=True)),
    )
    if order != sorted(order) or len(two) > 2:
        right = steps.add(aten.permute.default, right, order)
        right = steps.add(aten.reshape.default, right, [math.prod(sizes[letter] for letter in kept), -1])
    if len(contracted) > 1:
        left = steps.add(aten.flatten.using_ints, left, -len(contracted), -1)
    result = steps.add(aten.linear.default, left, right)
    if len(kept) > 1:
        result = steps.add(aten.unflatten.int, result, -1, [sizes[letter] for letter in kept])
    node.replace_all_uses_with(result)
    graph.erase_node(node)


class _Steps:
    """Adds operators in front of a node, as parts of its module."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self._graph, self._node = graph, node
        self._origin: dict[str, Any] = {key: node.meta[key] for key in _ORIGIN if key in node.meta}

    def add(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """Return a new node that calls an operator."""
        given = fx.node.map_arg(args, lambda source: source.meta["val"])
        # torch 2.11 takes a linear layer of symbolic sizes apart in Python only
        with self._graph.inserting_before(self._node), self._node.meta["val"].fake_mode, symbolic_kernels():
            made = self._graph.call_function(target, args)
            made.meta = {**self._origin, "val": target(*given)}
        return made


_ORIGIN = ("nn_module_stack", "stack_trace")


def _unstack(graph: fx.GraphModule, node: fx.Node, folded: _Folded) -> None:
    """Rewrite a product with a stack of matrices as one linear layer for each of them."""
    left, right = node.args[:2]
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or not folded.is_constant(right):
        return
    if folded.is_constant(left):
        return
    one, two = left.meta["val"], right.meta["val"]
    if two.ndim != 3 or one.ndim != 3 or not 1 < two.shape[0] <= _MOST_STACKED or min(two.shape[1:]) < 2:
        return
    if one.shape[0] != two.shape[0]:
        return

    steps = _Steps(graph.graph, node)
    turned = steps.add(aten.transpose.int, right, 1, 2)
    parts = []
    for place in range(two.shape[0]):
        row, matrix = steps.add(aten.select.int, left, 0, place), steps.add(aten.select.int, turned, 0, place)
        parts.append(steps.add(aten.linear.default, row, matrix))
    stacked = steps.add(aten.stack.default, parts)
    node.replace_all_uses_with(stacked)
    graph.graph.erase_node(node)


def _as_lookup(graph: fx.Graph, node: fx.Node, folded: _Folded) -> None:
    """Rewrite the selection of matrices from a stack as an embedding of their rows, so that each row has its scale.

    A selection of vectors is left alone: it is small, and an embedding where it is not.
    """
    args: tuple[Any, ...] = node.args
    if node.target is aten.index.Tensor:
        stack, index = args[0], args[1][0] if len(args[1]) == 1 else None
    else:
        stack, index = args[0], args[2] if args[1] == 0 else None
    if not folded.is_constant(stack) or not isinstance(index, fx.Node) or folded.is_constant(index):
        return
    matrices, places = stack.meta["val"], index.meta["val"]
    if not matrices.is_floating_point() or matrices.ndim < 3 or places.dtype not in (torch.int32, torch.int64):
        return
    count, *sizes, columns = matrices.shape
    rows = math.prod(sizes)
    steps = _Steps(graph, node)
    # an embedding takes no negative indices
    place = steps.add(
        aten.where.self, steps.add(aten.lt.Scalar, index, 0), steps.add(aten.add.Tensor, index, count), index
    )
    first = steps.add(aten.unsqueeze.default, steps.add(aten.mul.Tensor, place, rows), -1)
    row = steps.add(aten.add.Tensor, first, steps.add(aten.arange.default, rows))
    table = steps.add(aten.reshape.default, stack, [count * rows, columns])
    found = steps.add(aten.embedding.default, table, row)
    found.meta[SELECTS_MATRICES] = True
    if len(sizes) > 1:
        found = steps.add(aten.unflatten.int, found, -2, sizes)
    node.replace_all_uses_with(found)
    graph.erase_node(node)


# Layers that stay in float because of what comes before them.


def skipped_downstream(graph: fx.Graph, explained: Sequence[ExplainedLayer]) -> dict[str, str]:
    """Return why layers downstream of a skipped layer stay in float, by FQN.

    Where a rule skips a layer "until" others, the layers in between stay in float, too. Where it skips "downstream",
    all layers that the output reaches do.

    Raises:
        SettingsError: a layer at which skipping ends is one that the output never reaches.
    """
    layers = layer_nodes(graph, {row.fqn: row for row in explained})
    by_layer: dict[str, list[fx.Node]] = {}
    for layer in layers:
        by_layer.setdefault(layer.fqn, []).append(layer.node)
    owner = {layer.node: layer.fqn for layer in layers}
    reasons: dict[str, str] = {}
    for row in explained:
        if not row.until and not row.downstream:
            continue
        reached, stops = _reach(by_layer.get(row.fqn, []), owner, row.until)
        for name in row.until:
            if not any(is_within(fqn, name) for fqn in stops):
                raise SettingsError(
                    f"layer_quantization_settings[{row.rule!r}].skip_quantization_until names {name!r}, which the "
                    f"output of {row.fqn!r} does not reach. It reaches "
                    f"{', '.join(sorted(reached | stops)[:6]) or 'no quantizable layer'}."
                )
        for fqn in reached - {row.fqn}:
            end = f" until {', '.join(row.until)}" if row.until else ""
            reasons.setdefault(fqn, f"behind {row.fqn}, which rule {row.rule!r} skips with what follows{end}")
    return reasons


def _reach(starts: Sequence[fx.Node], owner: dict[fx.Node, str], until: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the FQNs of the layers behind ``starts`` that are skipped, and of those at which skipping ends."""
    passed: set[str] = set()
    stops: set[str] = set()
    seen: set[fx.Node] = set()
    rest = [user for start in starts for user in start.users]
    while rest:
        node = rest.pop()
        if node in seen:
            continue
        seen.add(node)
        fqn = owner.get(node)
        if fqn is not None and any(is_within(fqn, name) for name in until):
            stops.add(fqn)
            continue
        if fqn is not None:
            passed.add(fqn)
        rest += node.users
    return passed, stops


# Apply the algorithms of the options that change weights but not the results of the graph.


EQUALISED = "channels equalised"
"""The note of a layer whose channels were scaled."""


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
    has_room = {each for one in both for each in weight_formats(one)} == {INT8} and all(one.per_channel for one in both)
    return options.smooth_quant is None and has_room


def _smoothing(
    settings: Mapping[str, QuantizationSettings], layers: Collection[str], options: CompileOptions
) -> tuple[Mapping[str, object], SmoothingGain]:
    """Return the layers that may be smoothed, and the minimal gain."""
    if options.smooth_quant:
        return settings, WHEN_REQUESTED
    return dict.fromkeys(layers) if smooths_unasked(options, settings) else {}, BY_DEFAULT
