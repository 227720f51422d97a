"""Which values of a graph are quantized, given what applies to each layer and what the target wants."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from prepbench.quantize.layers import ADDITIONS, PRODUCTS, LayerCall, layer_calls
from prepbench.quantize.placement import Placement
from prepbench.settings import QuantizationSettings

Edge = tuple[str, str]


@dataclass(frozen=True)
class Place:
    """Where activations are quantized, and because of which layers.

    Attributes:
        because: FQNs; as long as one of them is quantized, so are these activations.
        settings: their form.
        inputs: (user, source) of each activation that is quantized on its way into a node.
        output: the node whose result is quantized for whoever reads it, or None.
    """

    because: frozenset[str]
    settings: QuantizationSettings
    inputs: tuple[Edge, ...] = ()
    output: str | None = None


@dataclass(frozen=True)
class Plan:
    """Which layers are quantized and where; by names of nodes, so that a plan outlives changes of the graph.

    Attributes:
        calls: the calls of each layer that is quantized, by FQN.
        settings: what applies to it, by FQN.
        places: where activations are quantized, in execution order.
        refused: why the target cannot take a layer, by FQN.
    """

    calls: dict[str, list[LayerCall]] = field(default_factory=dict)
    settings: dict[str, QuantizationSettings] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[Edge, QuantizationSettings]:
        """The form of each activation that is quantized on its way into a node, by (user, source)."""
        return {edge: place.settings for place in self.places for edge in place.inputs}

    @property
    def outputs(self) -> dict[str, QuantizationSettings]:
        """The form of each result that is quantized for whoever reads it, by node."""
        return {place.output: place.settings for place in self.places if place.output is not None}

    @property
    def weights(self) -> dict[Edge, LayerCall]:
        """The layer's call for each weight that is quantized, by (user, source)."""
        return {(call.node.name, call.weight.name): call for calls in self.calls.values() for call in calls}

    def without(self, given_up: Collection[str]) -> Plan:
        """The plan when these layers stay in float."""
        left = {fqn: calls for fqn, calls in self.calls.items() if fqn not in given_up}
        places = [replace(place, because=place.because & left.keys()) for place in self.places]
        settings = {fqn: self.settings[fqn] for fqn in left}
        return Plan(left, settings, [place for place in places if place.because], self.refused)


def make_plan(graph: fx.GraphModule, settings: Mapping[str, QuantizationSettings], placement: Placement) -> Plan:
    """Walk the graph once, in execution order.

    Args:
        graph: a float graph of ATen operators; not changed.
        settings: what applies to each layer that is quantized, by FQN.
        placement: what the target wants quantized around the layers.
    """
    plan = Plan()
    calls = {call.node: call for call in layer_calls(graph.graph, settings)}
    ends: dict[fx.Node, LayerCall] = {}  # by the last node of each group whose activations are quantized
    for node in graph.graph.nodes:
        if node in calls:
            call = calls[node]
            refusal = _refusal(graph, call, settings, placement, calls)
            if refusal:
                plan.refused.setdefault(call.fqn, refusal)
            else:
                _plan_layer(plan, call, settings[call.fqn], placement, ends)
        elif node.target in ADDITIONS:
            _plan_addition(plan, node, placement, ends)
        elif node.target in PRODUCTS and placement.matmuls:
            _plan_product(plan, node, ends)
    return plan.without(plan.refused.keys()) if plan.refused else plan  # in all its calls or in none


def _plan_layer(
    plan: Plan, call: LayerCall, settings: QuantizationSettings, placement: Placement, ends: dict[fx.Node, LayerCall]
) -> None:
    plan.calls.setdefault(call.fqn, []).append(call)
    plan.settings[call.fqn] = settings
    if settings.prefer_weights_only_quantization:
        return
    end = call.end(placement.fused)
    ends[end] = call
    ends_in_integers = placement.conv_outputs if call.is_convolution else placement.linear_outputs
    edges = ((call.node.name, call.input.name),)
    plan.places.append(Place(frozenset([call.fqn]), settings, edges, end.name if ends_in_integers else None))


def _plan_addition(plan: Plan, node: fx.Node, placement: Placement, ends: dict[fx.Node, LayerCall]) -> None:
    """An addition of two activations, together with the activation function that alone follows it."""
    operands = _float_activations(node)
    known = [ends[operand] for operand in operands if operand in ends]
    # the kernel of a convolution that nothing else reads can add
    ends_branch = any(ends[o].is_convolution and len(o.users) == 1 for o in operands if o in ends)
    if len(operands) < 2 or not known or not (placement.additions or (placement.conv_additions and ends_branch)):
        return
    # residual branches have one shape; kernels for others are rare, and OpenVINO's are wrong at other batch sizes
    if len({str(operand.meta["val"].shape) for operand in operands}) > 1:
        return
    users = list(node.users)
    end = users[0] if len(users) == 1 and users[0].target in placement.fused else node
    because = frozenset(call.fqn for call in known)
    fused = _fused_operand(operands, ends) if placement.fuses_additions else None
    edges = tuple((node.name, operand.name) for operand in operands if operand is not fused)
    plan.places.append(Place(because, plan.settings[known[0].fqn], edges, None if fused else end.name))


def _fused_operand(operands: Sequence[fx.Node], ends: Mapping[fx.Node, LayerCall]) -> fx.Node | None:
    """The operand whose kernel computes the addition: the last convolution of those that nothing else reads."""
    own = [operand for operand in operands if operand in ends and len(operand.users) == 1]
    convolutions = [operand for operand in own if ends[operand].node is operand and ends[operand].is_convolution]
    return max(convolutions, default=None)


def _plan_product(plan: Plan, node: fx.Node, ends: dict[fx.Node, LayerCall]) -> None:
    """A product of two activations that comes after quantized layers, in the form of the last one."""
    operands = _float_activations(node)
    if len(operands) < 2 or not ends:
        return
    last = next(reversed(ends.values()))
    edges = tuple((node.name, operand.name) for operand in operands)
    plan.places.append(Place(frozenset([last.fqn]), plan.settings[last.fqn], edges))


def _float_activations(node: fx.Node) -> list[fx.Node]:
    """The two operands that are float32 and no parameters."""
    return [a for a in node.args[:2] if isinstance(a, fx.Node) and a.op != "get_attr" and _holds_float32(a)]


def _holds_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def is_float32(model: fx.GraphModule, weight: fx.Node) -> bool:
    """Whether the weight that a ``get_attr`` node reads is float32."""
    return bool(operator.attrgetter(str(weight.target))(model).dtype == torch.float32)


def _refusal(
    graph: fx.GraphModule,
    call: LayerCall,
    settings: Mapping[str, QuantizationSettings],
    placement: Placement,
    calls: Mapping[fx.Node, LayerCall],
) -> str:
    """Why a call stays in float; empty if it can be quantized."""
    if not is_float32(graph, call.weight):
        dtype = operator.attrgetter(str(call.weight.target))(graph).dtype
        return f"its weight is {str(dtype).removeprefix('torch.')}; only float32 is quantized (model.float())"
    if settings[call.fqn].prefer_weights_only_quantization or not call.is_convolution:
        return ""
    channels = call.input.meta["val"].shape[call.weight.meta["val"].ndim * -1 + 1]
    if channels == 1 and not placement.single_channel_convs:
        return "int8 convolutions of one input channel are wrong on this target"
    is_depthwise = channels > 1 and call.weight.meta["val"].shape[1] == 1
    if is_depthwise and not placement.lone_depthwise_convs:
        readers = [calls.get(user) for user in call.end(placement.fused).users]
        if not any(_takes_integers(reader, settings) for reader in readers):
            return "on this target, a depthwise convolution is faster in float where no layer reads its integers"
    return ""


def _takes_integers(call: LayerCall | None, settings: Mapping[str, QuantizationSettings]) -> bool:
    return call is not None and not settings[call.fqn].prefer_weights_only_quantization
