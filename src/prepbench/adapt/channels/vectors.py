"""Values combined with one number for each channel: biases, and scales of norms."""

from __future__ import annotations

import torch

from prepbench.adapt.channels.call import Call
from prepbench.adapt.channels.values import Value


def with_bias(call: Call, result: Value, name: str, dim: int = -1) -> Value:
    bias = call.value(name)
    return result if bias is None else with_vector(call, result, bias, dim, "adds a bias")


def with_vector(call: Call, value: Value, vector: Value, dim: int, why: str) -> Value:
    """Combine a value with a vector along one dim, or with any tensor that broadcasts."""
    if len(vector.shape) == 1 and dim != -1:
        behind = (1,) * (len(value.shape) - dim - 1)
        shape = (*vector.shape, *behind)
        vector = Value(shape, tuple(layer.reshape(shape) for layer in map(_plain, vector.layers)), vector.is_weight)
    joined = call.joined([value, vector], value.shape, why)
    return Value(joined.shape, joined.layers, value.is_weight and vector.is_weight)


def _plain(layer: torch.Tensor) -> torch.Tensor:
    return layer.contiguous()
