"""What is known of a weight whose outputs and inputs are being scaled, for the estimate of its noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from prepbench.quantize.algorithms.channel_groups import float_weight
from prepbench.quantize.algorithms.constants import Constants, bias_of
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.settings import QuantizationSettings


@dataclass
class ScaledWeight:
    """What is known of a layer's weight, by group, output of the group and input of the group.

    Attributes:
        layer: whose it is.
        largest: the largest absolute value over the taps of a kernel.
        squares: the sum of the squares over them.
        taps: how many there are.
        outputs: what each output was divided by.
        inputs: what each input was multiplied by.
    """

    layer: LayerNode
    largest: torch.Tensor
    squares: torch.Tensor
    taps: int
    outputs: torch.Tensor
    inputs: torch.Tensor

    @classmethod
    def of(cls, graph: fx.GraphModule, layer: LayerNode) -> ScaledWeight:
        weight = float_weight(graph, layer).transpose(0, layer.axis)
        parts = weight.unflatten(0, (layer.groups, -1)).flatten(3) if weight.ndim > 2 else weight[None, ..., None]
        groups, outputs, inputs, taps = parts.shape
        largest = parts.abs().amax(3)
        ones = largest.new_ones(groups * max(outputs, inputs))
        return cls(layer, largest, parts.square().sum(3), taps, ones[: groups * outputs], ones[: groups * inputs])

    @property
    def factor(self) -> torch.Tensor:
        groups = len(self.largest)
        return self.inputs.view(groups, 1, -1) / self.outputs.view(groups, -1, 1)

    def columns(self) -> torch.Tensor:
        """The largest weight that reads each input."""
        return (self.largest * self.factor).amax(1).flatten()

    def energy(self) -> torch.Tensor:
        """The sum of the squares of the weights that read each input."""
        return (self.squares * self.factor.square()).sum(1).flatten()

    def rows(self, settings: QuantizationSettings, scale: torch.Tensor) -> torch.Tensor:
        """The step of the weights of each output, by group, with the inputs multiplied by a further scale."""
        groups = len(self.largest)
        rows = (self.largest * (self.factor * scale.view(groups, 1, -1))).amax(2)
        return steps_of(rows, settings)

    def reach(self, power: torch.Tensor) -> torch.Tensor:
        """By group, the noise of an output for weights that are each off by 1, from the power of the inputs."""
        return power.view(len(self.largest), -1).sum(1, keepdim=True) * self.taps

    def write(self, constants: Constants) -> bool:
        """Scale those that the layer reads; whether there was anything to do."""
        if bool((self.outputs == 1).all()) and bool((self.inputs == 1).all()):
            return False
        layer = self.layer
        shape = float_weight(constants.graph, layer).transpose(0, layer.axis).shape
        factor = self.factor.reshape(shape[0], shape[1], *(1 for _ in shape[2:]))
        bias = bias_of(constants, layer.node)
        constants.scale(layer.weight, factor.transpose(0, layer.axis), {layer.node})
        if bias is not None:
            constants.scale(bias, 1 / self.outputs, {layer.node})
        return True


def steps_of(rows: torch.Tensor, settings: QuantizationSettings) -> torch.Tensor:
    """The steps of weights whose largest values are ``rows``."""
    bits = settings.weights_num_bits
    largest = rows if settings.per_channel else rows.amax().expand_as(rows)
    levels: int = 2 ** ((bits if isinstance(bits, int) else min(bits)) - 1) - 1
    return largest / levels
