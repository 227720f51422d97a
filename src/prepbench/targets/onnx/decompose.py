"""Decompose operators that the ONNX exporter translates badly or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from prepbench.targets.complex_numbers import with_real_numbers
from prepbench.targets.decompose import attention, decompose, grouped_products
from prepbench.targets.dynamic_sizes import computed_from_sizes
from prepbench.targets.pooling import average_pool, is_mean, maximum_pool

Program = torch.export.ExportedProgram
aten = torch.ops.aten


def decompose_for_onnx(program: Program) -> Program:
    """Decompose attention into two products and a softmax, reductions over all dims into ones with explicit dims, and
    complex numbers into pairs of real ones.

    The exporter's translation of attention computes the shape of the keys, scales queries and keys separately and
    replaces NaN in all weights, so that no runtime recognizes it. OpenVINO computes the products and the softmax in
    one kernel, also between integer layers.
    """
    return decompose(
        with_real_numbers(program),
        {
            aten.scaled_dot_product_attention.default: attention,
            aten.avg_pool1d.default: average_pool(1),
            aten.avg_pool2d.default: _average,
            aten.avg_pool3d.default: average_pool(3),
            aten.max_pool1d.default: maximum_pool(1),
            aten.max_pool2d.default: maximum_pool(2),
            aten.max_pool3d.default: maximum_pool(3),
            aten.amax.default: _over_all(aten.amax.default),
            aten.amin.default: _over_all(aten.amin.default),
            **grouped_products(program),
            **computed_from_sizes(),
        },
    )


def _average(x: torch.Tensor, *rest: Any) -> Any:
    """Return a mean for a window over the whole image; with ``ceil_mode`` it may be larger, which OpenVINO refuses."""
    if len(rest) > 3 and rest[3] and is_mean(x.shape[-2:], *rest):
        return x.mean((-2, -1), keepdim=True)
    return average_pool(2)(x, *rest)


def _over_all(reduction: Any) -> Any:
    def reduce(x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        return NotImplemented if dim or not x.ndim else reduction(x, list(range(x.ndim)), keepdim)

    return reduce
