"""Turn a plan into torchao's PT2E annotations on nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench._torchao_compat import pt2e
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan
from prepbench.quantize.weights import WeightScheme
from prepbench.settings import QuantizationSettings

_KEY = "quantization_annotation"


def annotate(graph: fx.GraphModule, plan: Plan, placement: Placement, percentile: float) -> None:
    """Annotate the nodes that a plan names, in place.

    Weights are signed integers, per output channel or per tensor; activations are per tensor.

    Args:
        graph: the graph that the plan was made for.
        plan: the values and weights to quantize.
        placement: the dtypes of activations that the target has.
        percentile: for observers of that kind.
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
    from prepbench.quantize.activation_observer import ActivationObserver  # loads torchao

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
        observer_or_fake_quant_ctr=ActivationObserver.with_args(
            method=settings.observer, percentile=percentile, in_middle=in_middle
        ),
    )


def weight_spec(axis: int, settings: QuantizationSettings, *, reduce_range: bool = False) -> Any:
    """Return the spec of signed integers in the first candidate's scheme; candidates are compared after calibration."""
    from prepbench.quantize.weight_observer import WeightObserver  # loads torchao

    scheme = WeightScheme.of(next(settings.candidates()), reduce_range=reduce_range)
    low, high = scheme.limits
    per_channel = torch.per_channel_symmetric if scheme.symmetric else torch.per_channel_affine
    per_tensor = torch.per_tensor_symmetric if scheme.symmetric else torch.per_tensor_affine
    return pt2e().QuantizationSpec(
        dtype=torch.int8,
        quant_min=low,
        quant_max=high,
        qscheme=per_channel if scheme.per_channel else per_tensor,
        ch_axis=axis,
        # torchao hands ch_axis on only to classes with "PerChannel" in their name
        observer_or_fake_quant_ctr=WeightObserver.with_args(scheme=scheme, ch_axis=axis),
    )
