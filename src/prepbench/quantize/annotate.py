"""Telling torchao's PT2E what to quantize: from resolved settings and a target's placement to annotations on nodes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from prepbench.quantize._torchao import pt2e
from prepbench.quantize.layers import ACTIVATIONS, ADDITIONS, LayerCall, layer_calls
from prepbench.quantize.placement import Placement
from prepbench.settings import QuantizationSettings

# A range of nothing but zeros still needs a scale above zero; a larger bound would round small weights away.
_EPSILON = 2**-40
_KEY = "quantization_annotation"


def make_quantizer(settings: Mapping[str, QuantizationSettings], placement: Placement) -> Any:
    """A torchao ``Quantizer`` that annotates every call of the given layers.

    Weights are int8, symmetric, -127 to 127, per output channel (or per tensor); activations uint8, affine, per tensor.

    Args:
        settings: what applies to each layer that is quantized, by FQN.
        placement: what the target wants quantized around the layers.

    Returns:
        The quantizer; after use its ``quantized`` holds the FQNs that were found and annotated, and ``refused`` the
        reasons for those that the target cannot take.
    """

    class LayerQuantizer(pt2e().Quantizer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.quantized: set[str] = set()
            self.refused: dict[str, str] = {}

        def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
            group_ends = []
            for call in layer_calls(model.graph, settings):
                if not is_float32(model, call.weight):
                    continue
                refusal = _refusal(call, settings[call.fqn], placement)
                if refusal:
                    self.refused[call.fqn] = refusal
                    continue
                _annotate_layer(call, settings[call.fqn], placement)
                self.quantized.add(call.fqn)
                if call.is_convolution and not settings[call.fqn].prefer_weights_only_quantization:
                    group_ends.append(call.end())
            if placement.conv_additions:
                for end in group_ends:
                    for user in end.users:
                        _annotate_addition(user)
            return model

        def validate(self, model: fx.GraphModule) -> None:
            """Everything annotated was found in the graph, so there is nothing left to check."""

    return LayerQuantizer()


def _refusal(call: LayerCall, settings: QuantizationSettings, placement: Placement) -> str:
    """Why the target cannot take this call in int8; empty if it can."""
    if placement.single_channel_convs or settings.prefer_weights_only_quantization or not call.is_convolution:
        return ""
    channels = call.input.meta["val"].shape[call.weight.meta["val"].ndim * -1 + 1]
    return "int8 convolutions of one input channel are wrong on this target" if channels == 1 else ""


def is_float32(model: fx.GraphModule, weight: fx.Node) -> bool:
    """Whether the weight that a ``get_attr`` node reads is float32."""
    return bool(operator.attrgetter(str(weight.target))(model).dtype == torch.float32)


def activation_spec() -> Any:
    """uint8, affine, per tensor, from the smallest and largest value seen."""
    return pt2e().QuantizationSpec(
        dtype=torch.uint8,
        quant_min=0,
        quant_max=255,
        qscheme=torch.per_tensor_affine,
        observer_or_fake_quant_ctr=pt2e().MinMaxObserver.with_args(eps=_EPSILON),
    )


def weight_spec(axis: int, per_channel: bool) -> Any:
    """int8, symmetric without -128, per output channel or per tensor."""
    observer = pt2e().PerChannelMinMaxObserver if per_channel else pt2e().MinMaxObserver
    return pt2e().QuantizationSpec(
        dtype=torch.int8,
        quant_min=-127,
        quant_max=127,
        qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
        ch_axis=axis if per_channel else None,
        observer_or_fake_quant_ctr=observer.with_args(eps=_EPSILON),
    )


def _annotate_layer(call: LayerCall, settings: QuantizationSettings, placement: Placement) -> None:
    inputs = {call.weight: weight_spec(call.axis, settings.per_channel)}
    quantize_output = False
    if not settings.prefer_weights_only_quantization:
        inputs[call.input] = activation_spec()
        quantize_output = placement.conv_outputs and call.is_convolution
    end = call.end()
    call.node.meta[_KEY] = _annotation(inputs, output=quantize_output and end is call.node)
    if quantize_output and end is not call.node:
        end.meta[_KEY] = _annotation({}, output=True)


def _annotate_addition(node: fx.Node) -> None:
    """Quantize an addition of two activations, together with the activation function that alone follows it."""
    operands = [a for a in node.args[:2] if isinstance(a, fx.Node) and a.op != "get_attr"]
    if node.target not in ADDITIONS or len(operands) < 2 or _KEY in node.meta or not all(map(_holds_float32, operands)):
        return
    users = list(node.users)
    end = users[0] if len(users) == 1 and users[0].target in ACTIVATIONS else node
    node.meta[_KEY] = _annotation({a: activation_spec() for a in operands}, output=end is node)
    if end is not node:
        end.meta[_KEY] = _annotation({}, output=True)


def _holds_float32(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _annotation(inputs: dict[fx.Node, Any], *, output: bool) -> Any:
    return pt2e().QuantizationAnnotation(
        input_qspec_map=inputs, output_qspec=activation_spec() if output else None, _annotated=True
    )
