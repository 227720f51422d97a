"""Where a target needs quantizers so that its integer kernels connect, and what it cannot quantize."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import fx

from prepbench._torch_compat.cpu import byte_sums_saturate
from prepbench.quantize.dynamic_lstm import has_integer_kernel
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.settings import QuantizationSettings, activation_format, weight_formats
from prepbench.settings.numbers import INT4, INT8, INT16, NumberFormat


def why_reduce_range() -> str:
    """Return the reason for :attr:`Placement.reduce_range` of kernels that run on this CPU."""
    return "sums of 8-bit products saturate on this CPU, which has no VNNI instructions" if byte_sums_saturate() else ""


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer in its graph, as constraints see it: beside the calls and the settings of all layers."""

    layer: LayerNode
    all_settings: Mapping[str, QuantizationSettings]
    calls: Mapping[fx.Node, LayerNode]

    @property
    def settings(self) -> QuantizationSettings:
        return self.all_settings[self.layer.fqn]

    @property
    def is_weights_only(self) -> bool:
        return self.settings.prefer_weights_only_quantization

    @property
    def feeds_integers(self) -> bool:
        """Whether another layer reads its result, or its activation function's, in integers."""
        readers = [self.calls[user].fqn for user in self.layer.end().users if user in self.calls]
        return any(not self.all_settings[fqn].prefer_weights_only_quantization for fqn in readers)


@dataclass(frozen=True)
class Constraint:
    """What a target cannot quantize, and why.

    Attributes:
        matches: whether it holds for a call of a layer.
        reason: as reports give it.
        of_activations: the layer's activations stay in float, and its weights are still stored in integers; otherwise
            the whole layer stays in float.
        of_neighbours: it holds only because of how the layers around are quantized, so it says nothing about the layer
            alone.

    Example:
        >>> Constraint(lambda call: call.layer.is_lookup, "this target looks rows of tables up in float")
    """

    matches: Callable[[LayerCall], bool]
    reason: str
    of_activations: bool = False
    of_neighbours: bool = False


def _has_no_integers(call: LayerCall) -> bool:
    """Return whether a recurrent layer has no simulation in integers, which LSTMs with 8 bits have."""
    if not call.layer.is_recurrent or call.is_weights_only:
        return False
    return {activation_format(call.settings), *weight_formats(call.settings)} != {INT8} or not has_integer_kernel(
        call.layer
    )


RECURRENT_IN_FLOAT = "this target has no integer kernel for this recurrent layer with these bits"

# what graphs in integers have no form of, for any target
_EVERYWHERE = (
    Constraint(
        lambda call: call.layer.selects_matrices,
        "no kernel multiplies integers by matrices that an index selects",
        of_activations=True,
    ),
    Constraint(
        lambda call: call.layer.is_lookup and not call.layer.selects_matrices and not call.is_weights_only,
        "a table that is looked up in is quantized only where weights alone are",
    ),
    Constraint(
        lambda call: call.layer.is_transposed,
        "this target computes transposed convolutions in float",
        of_activations=True,
    ),
    Constraint(_has_no_integers, RECURRENT_IN_FLOAT, of_activations=True),
    Constraint(
        lambda call: (
            call.layer.axis != 0
            and not call.layer.is_transposed
            and any(kind.is_float for kind in weight_formats(call.settings))
        ),
        "weights in floating point are stored with the output channels first, and this layer has them last",
    ),
)


@dataclass(frozen=True)
class Placement:
    """Where a target wants quantizers placed: which values are quantized besides the inputs and weights of layers.

    An integer kernel computes several operators at once, for example a convolution and its ReLU, and reads and
    writes integers at its borders only. Quantizers belong at these borders; a quantizer in between would split the
    kernel.

    Attributes:
        conv_outputs: the output of a convolution, behind its activation function, is quantized (its kernel writes
            integers).
        linear_outputs: so is the output of a linear layer.
        conv_additions: an addition that ends a residual branch of convolutions is computed in integers as well.
        fuses_additions: the kernel of a convolution computes the addition after it, too: of the operands, only the
            other one is quantized, and the sum is left to its readers.
        fuses_convolution_sums: so it does where both operands are convolutions that nothing else reads.
        additions: every other addition of two activations is computed in integers.
        signed_activations: activations are int8 instead of uint8.
        symmetric_activations: activations have no zero point.
        middle_zero_points: the input of a linear layer has its zero point in the middle wherever values are negative.
        weights: formats of weights that the target has together with quantized activations.
        weights_only: formats of weights that it has with activations in float.
        activations: formats of activations that it has; int4 as integers of 8 bits with fewer values.
        packs_weights: weights of fewer than 8 bits are stored so where their layer's activations are in float. Kernels
            that read integers of activations read weights of 8 bits, so there they are stored in 8.
        block_sizes: whether weights-only layers may have a scale for each block of inputs.
        constraints: the layers that it cannot quantize, the first that matches gives the reason.
        reduce_range: why 8-bit weights must leave one bit unused where activations have 8 bits; empty if they need not.
    """

    conv_outputs: bool = False
    linear_outputs: bool = False
    conv_additions: bool = False
    fuses_additions: bool = False
    fuses_convolution_sums: bool = False
    additions: bool = False
    signed_activations: bool = False
    symmetric_activations: bool = False
    middle_zero_points: bool = False
    weights: tuple[NumberFormat, ...] = (INT4, INT8)
    weights_only: tuple[NumberFormat, ...] = (INT4, INT8)
    activations: tuple[NumberFormat, ...] = (INT8, INT16)
    packs_weights: bool = False
    block_sizes: bool = True
    constraints: tuple[Constraint, ...] = ()
    reduce_range: str = ""

    def why_float(self, call: LayerCall, *, of_activations: bool = False) -> str:
        """Return why a layer, or only its activations, stays in float in a call; empty where it need not."""
        constraints = (one for one in (*_EVERYWHERE, *self.constraints) if one.of_activations is of_activations)
        return next((one.reason for one in constraints if one.matches(call)), "")

    def stored_bits(self, bits: int, *, weights_only: bool) -> int:
        """Return the bits that each weight of a layer takes in the lowered program."""
        return bits if weights_only and self.packs_weights else max(bits, INT8.bits)

    def of_single_layers(self) -> Placement:
        """Return the placement that quantizes each layer as if the layers around it were quantized, too."""
        return replace(self, constraints=tuple(one for one in self.constraints if not one.of_neighbours))
