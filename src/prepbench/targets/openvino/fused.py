"""What OpenVINO's int8 convolutions compute together with the activation function after them."""

from __future__ import annotations

import torch

from prepbench.quantize.layers import ACTIVATIONS

aten = torch.ops.aten

FUSED = ACTIVATIONS
