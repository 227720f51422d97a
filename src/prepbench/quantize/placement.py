"""Where a target needs quantizers so that its integer kernels connect, and which bits it supports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from prepbench._torch_compat.cpu import byte_sums_saturate
from prepbench._torch_compat.operators import OpOverload
from prepbench.quantize.layer_nodes import ACTIVATIONS


def spare_bit_here() -> str:
    """Return the reason for :attr:`Placement.spare_bit` of kernels that run on this CPU."""
    return "sums of 8-bit products saturate on this CPU, which has no VNNI instructions" if byte_sums_saturate() else ""


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
        matmuls: products of two activations (attention) are computed in integers.
        lone_depthwise_convs: whether a depthwise convolution is faster in int8 where nothing reads its integers.
        single_channel_convs: whether the target's int8 convolutions are right for one input channel.
        transposed_convs: whether the weights of transposed convolutions are stored in integers, although they are
            computed in float; otherwise these layers stay in float.
        recurrent: whether the weights of recurrent layers are stored in integers, although they are computed in float;
            otherwise these layers stay in float.
        recurrent_projections: whether so are those of LSTMs with projections.
        dynamic_lstm: whether LSTMs have integer kernels, which find the range of their inputs in each call.
        fused: activation functions that one kernel computes together with the layer before.
        signed_activations: activations are int8 instead of uint8.
        symmetric_activations: activations have no zero point.
        middle_zero_points: the input of a linear layer has its zero point in the middle wherever values are negative.
        weights_bits: bits of weights that the target has together with quantized activations.
        weights_only_bits: bits of weights that it has with activations in float.
        activations_bits: bits of activations that it has; 4 of them as integers of 8 with fewer values.
        block_sizes: whether weights-only layers may have a scale for each block of inputs.
        tables: whether tables of embeddings are looked up in integers.
        spare_bit: why 8-bit weights must leave one bit unused where activations have 8 bits; empty where they need not.
    """

    conv_outputs: bool = False
    linear_outputs: bool = False
    conv_additions: bool = False
    fuses_additions: bool = False
    fuses_convolution_sums: bool = False
    additions: bool = False
    matmuls: bool = False
    lone_depthwise_convs: bool = True
    single_channel_convs: bool = True
    transposed_convs: bool = False
    recurrent: bool = False
    recurrent_projections: bool = False
    dynamic_lstm: bool = False
    fused: frozenset[OpOverload] = field(default=ACTIVATIONS)
    signed_activations: bool = False
    symmetric_activations: bool = False
    middle_zero_points: bool = False
    weights_bits: tuple[int, ...] = (4, 8)
    weights_only_bits: tuple[int, ...] = (4, 8)
    activations_bits: tuple[int, ...] = (8, 16)
    block_sizes: bool = True
    tables: bool = False
    spare_bit: str = ""


def without_lone_refusals(placement: Placement) -> Placement:
    """Return the placement without refusals of layers that are only worth quantizing beside others."""
    return replace(placement, lone_depthwise_convs=True)
