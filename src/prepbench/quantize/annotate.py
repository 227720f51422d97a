"""Turn a plan into torchao's PT2E annotations on nodes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from prepbench._torchao_compat import pt2e
from prepbench.jobs import check_cancelled
from prepbench.quantize.placement import Placement
from prepbench.quantize.plan import Plan
from prepbench.quantize.weights import EPSILON, WeightScheme
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
            layer.axis, plan.settings[layer.fqn], spare_bit=plan.spare_bit
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


def weight_spec(axis: int, settings: QuantizationSettings, *, spare_bit: bool = False) -> Any:
    """Return the spec of signed integers in the first candidate's scheme; candidates are compared after calibration."""
    from prepbench.quantize.weight_observer import WeightObserver  # loads torchao

    scheme = WeightScheme.of(next(settings.candidates()), spare_bit=spare_bit)
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


# The observer of activations. Importing this module loads torchao, so it is imported where it is first needed.


# how many values of one batch are kept for observers that need more than the extremes, and how many of all batches
_KEPT_OF_A_BATCH = 2**13
_KEPT = 2**15
# Ends of ranges are what many values are (backgrounds, what was clamped), and often lie in the middle between two
# integers, where runtimes round one way or the other. With few integers that is a large difference.
_OFF_HALVES = 1 + 2.0**-10


class ActivationObserver(pt2e().UniformQuantizationObserverBase):  # type: ignore[misc]
    """Learns the range of the values that pass through, and gives one scale and zero point for all of them.

    Its ``mode`` decides the effect on a value: ``"observe"`` learns from it, ``"pass"`` does nothing, ``"simulate"``
    quantizes and dequantizes it.

    Args:
        method: ``"minmax"``, ``"percentile"`` or ``"mse"``.
        percentile: for ``"percentile"``, how much of the values stays within the range, in percent.
        in_middle: the zero point is the middle of the integers unless no value is negative.
    """

    def __init__(
        self, method: str = "minmax", percentile: float = 99.99, in_middle: bool = False, **keywords: Any
    ) -> None:
        super().__init__(eps=EPSILON, **keywords)
        self.method = method
        self.percentile = percentile
        self.in_middle = in_middle
        self.mode = "observe"
        self.forget()

    def forget(self) -> None:
        """Reset the learned range."""
        self.low, self.high = math.inf, -math.inf
        self._kept: list[torch.Tensor] = []
        self._qparams: tuple[torch.Tensor, torch.Tensor] | None = None

    def learned(self) -> tuple[float, float, tuple[torch.Tensor, ...]]:
        """Return the learned state, for :meth:`recall`."""
        return self.low, self.high, tuple(self._kept)

    def recall(self, learned: tuple[float, float, tuple[torch.Tensor, ...]]) -> None:
        """Adopt the state that another observer learned from the same values."""
        self.forget()
        self.low, self.high, self._kept = learned[0], learned[1], list(learned[2])

    def fix(self, low: float, high: float) -> None:
        """Set a range that was learned elsewhere, whatever the method."""
        self.forget()
        self.low, self.high = low, high
        self._qparams = self._of_range(low, high)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        check_cancelled()
        if self.mode == "simulate":
            return self.simulate(x)
        if self.mode == "observe" and x.numel():
            self._observe(x.detach())
        return x

    def _observe(self, x: torch.Tensor) -> None:
        low, high = (float(value) for value in torch.aminmax(x))
        # NaN is kept, so that it is found
        self.low = low if math.isnan(low) else min(self.low, low)
        self.high = high if math.isnan(high) else max(self.high, high)
        self._qparams = None
        if self.method != "minmax":
            # in the order of memory, which copies nothing; any order will do for statistics
            flat = x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).flatten()
            self._kept.append(flat[:: _step(x)].float().clone())
            if sum(map(len, self._kept)) > _KEPT:
                self._kept = [torch.cat(self._kept)[::2]]

    @property
    def finite(self) -> bool:
        """Whether values were seen, and all of them finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def simulate(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize ``x``."""
        if not self.finite:
            return x
        scale, zero_point = self.calculate_qparams()
        return torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), self.quant_min, self.quant_max)

    def calculate_qparams(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and zero point, tensors of one element."""
        if not self.finite:  # nothing ever passed: a branch that calibration did not take
            return torch.ones(1), torch.zeros(1, dtype=torch.int64)
        if self._qparams is None:
            self._qparams = self._of_range(*self._range())
        return self._qparams

    def represented(self) -> tuple[float, float]:
        """Return the smallest and the largest value that the integers represent."""
        scale, zero_point = (float(value) for value in self.calculate_qparams())
        return (self.quant_min - zero_point) * scale, (self.quant_max - zero_point) * scale

    def _of_range(self, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = self._in_steps(low, high)
        is_coarse = self.quant_max - self.quant_min < 255
        return scale * _OFF_HALVES if is_coarse else scale, zero_point

    def _in_steps(self, low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
        if self.in_middle and low < 0:
            below = (self.quant_max - self.quant_min + 1) // 2
            scale = max(-low / below, high / (below - 1), EPSILON)
            return torch.tensor([scale]), torch.tensor([self.quant_min + below])
        result: tuple[torch.Tensor, torch.Tensor] = self._calculate_qparams(torch.tensor(low), torch.tensor(high))
        return result

    def _range(self) -> tuple[float, float]:
        if self.method == "minmax":
            return self.low, self.high
        values = torch.cat(self._kept)
        if self.method == "percentile":
            tail = (1 - self.percentile / 100) / 2
            low, high = torch.quantile(values, torch.tensor([tail, 1 - tail])).tolist()
            return low, high
        return self._least_error(values)

    def _least_error(self, values: torch.Tensor) -> tuple[float, float]:
        best, chosen = math.inf, (self.low, self.high)
        for step in range(40):
            clip = 1 - step / 50
            low, high = self.low * clip, self.high * clip
            scale, zero_point = self._of_range(low, high)
            fake = torch.fake_quantize_per_tensor_affine(
                values, float(scale), int(zero_point), self.quant_min, self.quant_max
            )
            error = float((fake - values).square().mean())
            if error < best:
                best, chosen = error, (low, high)
        return chosen


def _step(x: torch.Tensor) -> int:
    """Return n, where every n-th value of ``x`` is kept: coprime to its sizes, so that every channel is sampled."""
    step = max(1, math.ceil(x.numel() / _KEPT_OF_A_BATCH))
    while any(math.gcd(step, size) > 1 for size in x.shape):
        step += 1
    return step
