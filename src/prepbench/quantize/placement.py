"""How a target wants quantizers placed, so that its kernels fuse what stands between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """What is quantized besides the inputs and weights of the layers.

    Attributes:
        conv_outputs: a convolution with its activation function ends in a quantizer (its int8 kernel writes int8).
        conv_additions: an addition that ends a residual branch of convolutions is computed in int8 as well.
        single_channel_convs: whether the target's int8 convolutions are right for one input channel.
    """

    conv_outputs: bool = False
    conv_additions: bool = False
    single_channel_convs: bool = True
