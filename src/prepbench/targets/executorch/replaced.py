"""Replacements for operators that ExecuTorch's kernels compute differently, or for which it has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def _center_layer(x: torch.Tensor, normalized_shape: Sequence[Any], *rest: Any) -> Any:
    dims = list(range(-len(normalized_shape), 0))
    return torch.ops.aten.layer_norm.default(x - x.mean(dims, keepdim=True), normalized_shape, *rest)


def _center_groups(x: torch.Tensor, num_groups: int, *rest: Any) -> Any:
    groups = x.reshape(x.shape[0], num_groups, -1)
    centered = (groups - groups.mean(-1, keepdim=True)).reshape(x.shape)
    return torch.ops.aten.group_norm.default(centered, num_groups, *rest)


def _center_instances(x: torch.Tensor, *rest: Any) -> Any:
    if rest[2] is not None or not rest[4]:  # a running mean, or the statistics of the input
        return NotImplemented
    return torch.ops.aten.instance_norm.default(x - x.mean(list(range(2, x.ndim)), keepdim=True), *rest)


def _center_batch(x: torch.Tensor, *rest: Any) -> Any:
    if rest[2] is not None or not rest[4]:
        return NotImplemented
    dims = [dim for dim in range(x.ndim) if dim != 1]
    return torch.ops.aten.batch_norm.default(x - x.mean(dims, keepdim=True), *rest)


def _remainder(x: torch.Tensor, y: Any) -> Any:
    """Compute the remainder of integers, to which the kernel gives the sign of the dividend."""
    are_integers = not x.is_floating_point() and (isinstance(y, int) or _is_integer(y))
    return x - torch.floor_divide(x, y) * y if are_integers else NotImplemented


def _is_integer(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.is_floating_point() and value.dtype is not torch.bool


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """Sort by the kernel for values alone, because the other one leaves the order of equal values undefined."""
    return (torch.topk(x, x.shape[dim], dim, largest=descending).values, None) if x.ndim else NotImplemented


def _stable_sort(x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return _sort(x, dim, descending)


def _gelu(x: torch.Tensor, *, approximate: str = "none") -> Any:
    """Compute the tanh approximation by its formula, because the kernel's leaves 60 dB where all values are
    negative.
    """
    if approximate != "tanh":
        return NotImplemented
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + torch.tanh(inner))


def _prelu(x: torch.Tensor, weight: torch.Tensor) -> Any:
    """Compute PReLU by other operators, because XNNPACK takes images only, and fails at others."""
    if x.ndim == 4:
        return NotImplemented
    slopes = weight.reshape([-1] + [1] * (x.ndim - 2)) if x.ndim > 1 else weight
    return torch.where(x > 0, x, slopes * x)


REPLACED: dict[Any, Callable[..., Any]] = {
    # its kernels compute the variance as a difference of squares, which cancels where the mean is large
    aten.layer_norm.default: _center_layer,
    aten.group_norm.default: _center_groups,
    aten.instance_norm.default: _center_instances,
    aten.batch_norm.default: _center_batch,
    aten.remainder.Scalar: _remainder,
    aten.remainder.Tensor: _remainder,
    aten.sort.default: _sort,
    aten.sort.stable: _stable_sort,
    aten.gelu.default: _gelu,
    aten.prelu.default: _prelu,
}
