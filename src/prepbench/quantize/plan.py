"""Decide which values of a graph are quantized, from the settings of each layer and the placement of the target."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from prepbench._torchao_compat import pt2e
from prepbench.quantize.layer_nodes import ACTIVATIONS, ADDITIONS, LayerNode, layer_nodes, parameter_of
from prepbench.quantize.placement import LayerCall, Placement
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import QuantizationSettings
from prepbench.settings.numbers import INT8, format_of_bits

Edge = tuple[str, str]


@dataclass(frozen=True)
class QuantizationPoint:
    """A point of the graph at which activations are quantized, and the layers that require it.

    Attributes:
        because: FQNs; as long as one of them is quantized, so are these activations.
        settings: their bits, their symmetry and their observer.
        inputs: (user, source) of each activation that is quantized on its way into a node.
        output: the node whose result is quantized for all its readers, or None.
    """

    because: frozenset[str]
    settings: QuantizationSettings
    inputs: tuple[Edge, ...] = ()
    output: str | None = None


@dataclass(frozen=True)
class Plan:
    """Which layers are quantized and where; by names of nodes, so that a plan survives changes of the graph.

    Attributes:
        nodes: the nodes of each layer that is quantized, by FQN; one for each of its calls.
        settings: of each quantized layer, by FQN.
        points: where activations are quantized, in execution order.
        refused: why the target cannot take a layer, by FQN.
        weights_only: why it takes the weights of a layer alone, by FQN.
        reduce_range: whether 8-bit weights leave one bit unused.
    """

    nodes: dict[str, list[LayerNode]] = field(default_factory=dict)
    settings: dict[str, QuantizationSettings] = field(default_factory=dict)
    points: list[QuantizationPoint] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    weights_only: dict[str, str] = field(default_factory=dict)
    reduce_range: bool = False

    @property
    def inputs(self) -> dict[Edge, QuantizationSettings]:
        """Return the settings of each activation that is quantized on its way into a node, by (user, source)."""
        return {edge: point.settings for point in self.points for edge in point.inputs}

    @property
    def outputs(self) -> dict[str, QuantizationSettings]:
        """Return the settings of each result that is quantized for all its readers, by node."""
        return {point.output: point.settings for point in self.points if point.output is not None}

    @property
    def weights(self) -> dict[Edge, LayerNode]:
        """Return the layer of each quantized weight, by (user, source)."""
        return {
            (layer.node.name, weight.name): layer
            for nodes in self.nodes.values()
            for layer in nodes
            for weight in layer.weights
        }

    @property
    def dynamic(self) -> list[str]:
        """Return the nodes of recurrent layers that find the range of their inputs in each call."""
        return [
            layer.node.name
            for fqn, nodes in self.nodes.items()
            for layer in nodes
            if layer.is_recurrent and not self.settings[fqn].prefer_weights_only_quantization
        ]

    def without(self, given_up: Collection[str]) -> Plan:
        """Return the plan in which these layers stay in float."""
        left = {fqn: nodes for fqn, nodes in self.nodes.items() if fqn not in given_up}
        points = [replace(point, because=point.because & left.keys()) for point in self.points]
        settings = {fqn: self.settings[fqn] for fqn in left}
        return replace(self, nodes=left, settings=settings, points=[point for point in points if point.because])


def is_dynamic(plan: Plan, node: str, scheme: WeightScheme) -> bool:
    """Return whether a layer's node finds the range of its inputs in each call when its weights have this scheme."""
    return node in plan.dynamic and not scheme.multiplies_in_float


def make_plan(graph: fx.GraphModule, settings: Mapping[str, QuantizationSettings], placement: Placement) -> Plan:
    """Plan the quantizers around the layers of a float graph of ATen operators, in one walk in execution order."""
    nodes = _planned_nodes(graph.graph, settings, placement)
    in_float = _activations_in_float(nodes, settings, placement)
    plan = Plan(weights_only=in_float, reduce_range=bool(placement.reduce_range))
    settings = {fqn: _weights_only(one) if fqn in in_float else one for fqn, one in settings.items()}
    ends: dict[fx.Node, LayerNode] = {}  # by the last node of each group whose activations are quantized
    for node in graph.graph.nodes:
        if node in nodes:
            layer = nodes[node]
            reason = _unsupported_dtype(layer) or placement.why_float(LayerCall(layer, settings, nodes))
            if reason:
                plan.refused.setdefault(layer.fqn, reason)
            else:
                _plan_layer(plan, layer, settings[layer.fqn], placement, ends)
        elif node.target in ADDITIONS:
            _plan_addition(plan, node, placement, ends)
    return plan.without(plan.refused.keys()) if plan.refused else plan  # in all its calls or in none


def _planned_nodes(
    graph: fx.Graph, settings: Mapping[str, QuantizationSettings], placement: Placement
) -> dict[fx.Node, LayerNode]:
    """Return the nodes of layers; tables that a layer shares only where they are looked up in its integers."""
    nodes = {layer.node: layer for layer in layer_nodes(graph, settings, lookups=True, recurrent=True)}
    multiplying = {layer.fqn for layer in nodes.values() if not layer.is_lookup}
    shared = (layer for layer in nodes.values() if layer.is_lookup and layer.fqn in multiplying)
    left_out = {layer.node for layer in shared if placement.why_float(LayerCall(layer, settings, nodes))}
    return {node: layer for node, layer in nodes.items() if node not in left_out}


def _activations_in_float(
    nodes: Mapping[fx.Node, LayerNode], settings: Mapping[str, QuantizationSettings], placement: Placement
) -> dict[str, str]:
    """Return why the target takes the weights of layers alone, by FQN: in all calls, if it does in one."""
    found: dict[str, str] = {}
    for layer in nodes.values():
        if reason := placement.why_float(LayerCall(layer, settings, nodes), of_activations=True):
            found.setdefault(layer.fqn, reason)
    return found


def _weights_only(settings: QuantizationSettings) -> QuantizationSettings:
    return replace(settings, prefer_weights_only_quantization=True, weights_only_quantization_block_size=0)


def _plan_layer(
    plan: Plan, layer: LayerNode, settings: QuantizationSettings, placement: Placement, ends: dict[fx.Node, LayerNode]
) -> None:
    plan.nodes.setdefault(layer.fqn, []).append(layer)
    plan.settings[layer.fqn] = settings
    if settings.prefer_weights_only_quantization or layer.is_recurrent:
        return
    end = layer.end()
    ends[end] = layer
    ends_in_integers = placement.conv_outputs if layer.is_convolution else placement.linear_outputs
    edges = ((layer.node.name, layer.input.name),)
    plan.points.append(
        QuantizationPoint(frozenset([layer.fqn]), settings, edges, end.name if ends_in_integers else None)
    )


def _plan_addition(plan: Plan, node: fx.Node, placement: Placement, ends: dict[fx.Node, LayerNode]) -> None:
    """Plan an addition of two activations, together with the activation function that alone follows it."""
    operands = _float_activations(node)
    known = [ends[operand] for operand in operands if operand in ends]
    # the kernel of a convolution that nothing else reads can add
    ends_branch = any(ends[o].is_convolution and len(o.users) == 1 for o in operands if o in ends)
    if len(operands) < 2 or not known or not (placement.additions or (placement.conv_additions and ends_branch)):
        return
    # no kernel adds integers of fewer bits, and what runtimes fuse in its place rounds otherwise (OpenVINO)
    if plan.settings[known[0].fqn].activations_num_bits < INT8.bits:
        return
    # residual branches have one shape; kernels for others are rare, and OpenVINO's are wrong at other batch sizes
    if len({str(operand.meta["val"].shape) for operand in operands}) > 1:
        return
    users = list(node.users)
    end = users[0] if len(users) == 1 and users[0].target in ACTIVATIONS else node
    because = frozenset(layer.fqn for layer in known)
    # the kernel of the last convolution that nothing else reads computes the addition
    own = [operand for operand in operands if operand in ends and len(operand.users) == 1]
    convolutions = [operand for operand in own if ends[operand].node is operand and ends[operand].is_convolution]
    both = placement.fuses_convolution_sums and len(convolutions) == len(operands)
    fused = max(convolutions, default=None) if placement.fuses_additions or both else None
    edges = tuple((node.name, operand.name) for operand in operands if operand is not fused)
    plan.points.append(QuantizationPoint(because, plan.settings[known[0].fqn], edges, None if fused else end.name))


def _float_activations(node: fx.Node) -> list[fx.Node]:
    """Return the two operands that are float32 and no parameters."""
    return [a for a in node.args[:2] if isinstance(a, fx.Node) and parameter_of(a) is None and _holds_float32(a)]


def _holds_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _unsupported_dtype(layer: LayerNode) -> str:
    """Return why a layer's weight cannot be quantized; empty if it is in float32."""
    dtype = layer.weight.meta["val"].dtype
    if dtype == torch.float32:
        return ""
    return f"its weight is {str(dtype).removeprefix('torch.')}; only float32 is quantized (model.float())"


# The relations between layers of a graph: which follow each other, and which must be quantized together.


def following_layers(nodes: Mapping[str, Iterable[LayerNode]]) -> list[tuple[str, str, str]]:
    """Return the layers that read a layer's output through operators that are no layers, in execution order.

    Returns:
        (layer, next layer, name of the node that the next one reads), each pair of layers once for each such node.
    """
    owners = {layer.node: layer for layers in nodes.values() for layer in layers}
    found: dict[tuple[str, str, str], None] = {}
    for node, layer in owners.items():
        seen: set[fx.Node] = set()
        rest = list(node.users)
        while rest:
            user = rest.pop(0)
            if user in seen:
                continue
            seen.add(user)
            reader = owners.get(user)
            if reader is None:
                rest += user.users
            elif reader.fqn != layer.fqn:
                found[layer.fqn, reader.fqn, reader.input.name] = None
    return list(found)


def tied_layers(graph: fx.GraphModule, plan: Plan) -> tuple[frozenset[str], ...]:
    """Return groups of two or more layers that share weights, by a plan that quantizes all layers."""
    groups: dict[int, set[str]] = {}
    for fqn, nodes in plan.nodes.items():
        for weight in (weight for layer in nodes for weight in layer.weights):
            parameter = parameter_of(weight)
            assert parameter is not None
            groups.setdefault(id(operator.attrgetter(str(parameter.target))(graph)), set()).add(fqn)
    found = {frozenset(group): None for group in groups.values() if len(group) > 1}
    return tuple(found)


# Turn a plan into torchao's PT2E annotations on nodes.


_KEY = "quantization_annotation"


def annotate(graph: fx.GraphModule, plan: Plan, placement: Placement, percentile: float) -> None:
    """Annotate the nodes that a plan names, in place.

    Weights are signed integers, per output channel or per tensor; activations are per tensor.
    """
    nodes = {node.name: node for node in graph.graph.nodes}
    linears = {layer.node.name for layers in plan.nodes.values() for layer in layers if not layer.is_convolution}
    specs = _ActivationSpecs(placement, percentile)
    inputs: dict[fx.Node, dict[fx.Node, Any]] = {}
    outputs: dict[fx.Node, Any] = {}
    for name, settings in plan.outputs.items():
        outputs[nodes[name]] = specs.spec(nodes[name], nodes[name], settings)
    for (user, source), settings in plan.inputs.items():
        in_middle = placement.middle_zero_points and user in linears
        edge = (nodes[source], nodes[user])
        inputs.setdefault(edge[1], {})[edge[0]] = specs.spec(edge[0], edge, settings, in_middle)
    for (user, source), layer in plan.weights.items():
        inputs.setdefault(nodes[user], {})[nodes[source]] = weight_spec(
            layer.axis, plan.settings[layer.fqn], reduce_range=plan.reduce_range
        )
    for node in {**inputs, **outputs}:
        node.meta[_KEY] = pt2e().QuantizationAnnotation(
            input_qspec_map=inputs.get(node, {}),
            output_qspec=outputs.get(node),
            allow_implicit_sharing=False,  # it would also join what is observed in different ways
            _annotated=True,
        )


class _ActivationSpecs:
    """Makes the specs of activations; readers that quantize a value identically share its observer."""

    def __init__(self, placement: Placement, percentile: float) -> None:
        self._placement = placement
        self._percentile = percentile
        self._first: dict[tuple[Any, ...], Any] = {}

    def spec(self, source: fx.Node, where: Any, settings: QuantizationSettings, in_middle: bool = False) -> Any:
        """Return the spec for the value of ``source``, quantized at ``where``: a node, or an edge (source, user)."""
        kind = (settings.activations_num_bits, settings.activations_symmetric, settings.observer, in_middle)
        if (source, *kind) in self._first:
            return pt2e().SharedQuantizationSpec(self._first[source, *kind])
        self._first[source, *kind] = where
        return activation_spec(settings, self._placement, self._percentile, in_middle)


def activation_spec(settings: QuantizationSettings, placement: Placement, percentile: float, in_middle: bool) -> Any:
    """Return the spec of an activation: 4, 8 or 16 bits, one scale for the whole tensor.

    The zero point is the middle of the integers for symmetric activations without sign, and with ``in_middle`` for
    all that are ever negative.
    """
    from prepbench.quantize.observers import ActivationObserver  # loads torchao

    kind = format_of_bits(settings.activations_num_bits)
    kind = kind if placement.signed_activations else kind.unsigned
    symmetric = settings.activations_symmetric or placement.symmetric_activations
    return pt2e().QuantizationSpec(
        dtype=kind.dtype,
        quant_min=kind.low,
        quant_max=kind.high,
        qscheme=torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine,
        observer_or_fake_quant_ctr=ActivationObserver.with_args(
            method=settings.observer, percentile=percentile, in_middle=in_middle
        ),
    )


def weight_spec(axis: int, settings: QuantizationSettings, *, reduce_range: bool = False) -> Any:
    """Return the spec of signed integers in the first candidate's scheme; candidates are compared after calibration."""
    from prepbench.quantize.observers import WeightObserver  # loads torchao

    scheme = WeightScheme.of(next(settings.candidates()), reduce_range=reduce_range)
    low, high = scheme.limits
    per_channel = torch.per_channel_symmetric if scheme.symmetric else torch.per_channel_affine
    per_tensor = torch.per_tensor_symmetric if scheme.symmetric else torch.per_tensor_affine
    return pt2e().QuantizationSpec(
        dtype=scheme.format.dtype,
        quant_min=low,
        quant_max=high,
        qscheme=per_channel if scheme.per_channel else per_tensor,
        ch_axis=axis,
        # torchao hands ch_axis on only to classes with "PerChannel" in their name
        observer_or_fake_quant_ctr=WeightObserver.with_args(scheme=scheme, ch_axis=axis),
    )
