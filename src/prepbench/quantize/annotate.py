"""Telling torchao's PT2E what to quantize: from a plan to annotations on nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.quantize._torchao import pt2e
from prepbench.quantize.observers import observers
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan
from prepbench.quantize.weights import WeightForm
from prepbench.settings import QuantizationSettings

_KEY = "quantization_annotation"


def annotate(graph: fx.GraphModule, plan: Plan, placement: Placement, percentile: float) -> None:
    """Annotate the nodes that a plan names, in place.

    Weights are signed integers, per output channel or per tensor; activations are per tensor. Values that are
    quantized in the same way for several readers share one observer.

    Args:
        graph: the graph that the plan was made for.
        plan: what to quantize.
        placement: the forms of activations that the target has.
        percentile: for observers of that kind.
    """
    nodes = {node.name: node for node in graph.graph.nodes}
    inputs: dict[fx.Node, dict[fx.Node, Any]] = {}
    outputs: dict[fx.Node, Any] = {}
    shared: dict[tuple[fx.Node, Any], Any] = {}

    def activation(source: fx.Node, place: Any, settings: QuantizationSettings, in_middle: bool = False) -> Any:
        key = (source, (settings.activations_num_bits, settings.activations_symmetric, settings.observer, in_middle))
        if key in shared:
            return pt2e().SharedQuantizationSpec(shared[key])
        shared[key] = place
        return activation_spec(settings, placement, percentile, in_middle)

    linears = {call.node.name for calls in plan.calls.values() for call in calls if not call.is_convolution}

    for name, settings in plan.outputs.items():
        outputs[nodes[name]] = activation(nodes[name], nodes[name], settings)
    for (user, source), settings in plan.inputs.items():
        edge = (nodes[source], nodes[user])
        in_middle = placement.middle_zero_points and user in linears
        inputs.setdefault(edge[1], {})[edge[0]] = activation(edge[0], edge, settings, in_middle)
    for (user, source), call in plan.weights.items():
        inputs.setdefault(nodes[user], {})[nodes[source]] = weight_spec(call.axis, plan.settings[call.fqn])
    for node in {**inputs, **outputs}:
        node.meta[_KEY] = pt2e().QuantizationAnnotation(
            input_qspec_map=inputs.get(node, {}),
            output_qspec=outputs.get(node),
            allow_implicit_sharing=False,  # it would also join what is observed in different ways
            _annotated=True,
        )


def activation_spec(settings: QuantizationSettings, placement: Placement, percentile: float, in_middle: bool) -> Any:
    """8 or 16 bits for the whole tensor; symmetric ones without sign have their zero point in the middle, and with
    ``in_middle`` all that are ever negative.
    """
    bits = settings.activations_num_bits
    symmetric = settings.activations_symmetric or placement.symmetric_activations
    signed = placement.signed_activations or bits > 8
    half = 2 ** (bits - 1)
    dtype = torch.int16 if bits > 8 else torch.int8 if signed else torch.uint8
    return pt2e().QuantizationSpec(
        dtype=dtype,
        quant_min=-half if signed else 0,
        quant_max=half - 1 if signed else 2 * half - 1,
        qscheme=torch.per_tensor_symmetric if symmetric else torch.per_tensor_affine,
        observer_or_fake_quant_ctr=observers().ActivationObserver.with_args(
            method=settings.observer, percentile=percentile, in_middle=in_middle
        ),
    )


def weight_spec(axis: int, settings: QuantizationSettings) -> Any:
    """Signed integers of the first candidate's form; a decision about candidates comes later."""
    form = WeightForm.of(next(settings.candidates()))
    low, high = form.limits
    per_channel = torch.per_channel_symmetric if form.symmetric else torch.per_channel_affine
    per_tensor = torch.per_tensor_symmetric if form.symmetric else torch.per_tensor_affine
    return pt2e().QuantizationSpec(
        dtype=torch.int8,
        quant_min=low,
        quant_max=high,
        qscheme=per_channel if form.per_channel else per_tensor,
        ch_axis=axis,
        observer_or_fake_quant_ctr=observers().WeightObserver.with_args(form=form),
    )
