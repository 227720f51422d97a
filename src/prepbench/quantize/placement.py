"""How a target wants quantizers placed, so that its kernels fuse what stands between them, and what bits it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from prepbench._torch_compat.operators import OpOverload
from prepbench.quantize.layers import ACTIVATIONS


@dataclass(frozen=True)
class Placement:
    """What is quantized besides the inputs and weights of the layers, and in which form.

    Attributes:
        conv_outputs: a convolution with its activation function ends in a quantizer (its int8 kernel writes int8).
        linear_outputs: so does a linear layer.
        conv_additions: an addition that ends a residual branch of convolutions is computed in int8 as well.
        fuses_additions: the kernel of a convolution computes the addition after it, too: of the operands, only the
            other one is quantized, and the sum is left to its readers.
        additions: so is every other addition of two activations.
        matmuls: products of two activations (attention) are computed in int8 as well.
        lone_depthwise_convs: whether a depthwise convolution is faster in int8 where nothing reads its integers.
        single_channel_convs: whether the target's int8 convolutions are right for one input channel.
        fused: activation functions that one kernel computes together with the layer before.
        signed_activations: int8 activations instead of uint8.
        symmetric_activations: activations have no zero point.
        middle_zero_points: what enters a linear layer has its zero point in the middle wherever values are negative.
        weights_bits: bits of weights that it has together with quantized activations.
        weights_only_bits: bits of weights that it has with activations in float.
        activations_bits: bits of activations that it has.
        block_sizes: whether weights-only layers may have a scale for each block of inputs.
    """

    conv_outputs: bool = False
    linear_outputs: bool = False
    conv_additions: bool = False
    fuses_additions: bool = False
    additions: bool = False
    matmuls: bool = False
    lone_depthwise_convs: bool = True
    single_channel_convs: bool = True
    fused: frozenset[OpOverload] = field(default=ACTIVATIONS)
    signed_activations: bool = False
    symmetric_activations: bool = False
    middle_zero_points: bool = False
    weights_bits: tuple[int, ...] = (4, 8)
    weights_only_bits: tuple[int, ...] = (4, 8)
    activations_bits: tuple[int, ...] = (8, 16)
    block_sizes: bool = True
