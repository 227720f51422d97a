"""What layers take: bytes of values and weights, multiplications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.weights import WeightScheme


def float_bytes(value: Any) -> int:
    """Of a value in float32, which values have between layers that are not quantized."""
    return 4 * value.numel() if isinstance(value, torch.Tensor) else 0


def multiplications_of(layer: LayerNode, values: Mapping[str, Any]) -> int:
    """Multiplications of one call of a layer, from what nodes gave in it."""
    places = values.get(layer.input.name if layer.is_transposed else layer.node.name)
    places = places[0] if isinstance(places, tuple) else places
    if layer.is_lookup or not isinstance(places, torch.Tensor):
        return 0
    each = sum(int(weight.meta["val"].numel()) for weight in layer.weights)
    return int(places.numel() // max(1, places.shape[layer.channels]) * each)


def stored_bytes(weight: torch.Tensor, axis: int, scheme: WeightScheme) -> int:
    """Of integers, scales and zero points of one weight."""
    numbers = int(weight.numel())
    rows = int(weight.shape[axis]) if scheme.per_channel or scheme.block_size else 1
    scales = numbers // scheme.block_size if scheme.block_size else rows
    return numbers * scheme.bits // 8 + scales * (4 if scheme.symmetric else 5)
