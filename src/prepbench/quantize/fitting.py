"""The weight schemes that fit a layer's shape: the settings' candidates, or the next best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from prepbench.quantize.im2col import Im2col
from prepbench.quantize.plan import Plan
from prepbench.quantize.rounding import FOR_IM2COL, NEEDS_MOMENTS
from prepbench.quantize.weights import WeightScheme
from prepbench.settings.quantization import BLOCK_SIZES


def fitting_schemes(plan: Plan, fqn: str) -> tuple[list[WeightScheme], str]:
    """Return the schemes that a layer's settings allow, the smallest in memory first, and a note on them or "".

    Where no block size of the settings divides the inputs, the next smaller one that does is taken, and a scale for
    each channel where none does.

    Args:
        plan: with the layer's nodes and settings.
        fqn: the layer.
    """
    layer = plan.nodes[fqn][0]
    weights = [node.meta["val"] for node in layer.weights]
    wanted = [
        WeightScheme.of(candidate, reduce_range=plan.reduce_range) for candidate in plan.settings[fqn].candidates()
    ]
    if layer.is_convolution or layer.is_recurrent or weights[0].ndim != 2:
        kept = FOR_IM2COL if Im2col.of(layer) is not None else frozenset[str]()
        wanted = [
            one if one.algorithm in kept else replace(one, algorithm=_without_hessian(one.algorithm)) for one in wanted
        ]
    fitting = [scheme for scheme in wanted if _fit(scheme, weights, layer.axis)]
    if fitting:
        return list(dict.fromkeys(fitting)), ""
    size, smaller = wanted[0].block_size, _dividing(wanted[0], weights, layer.axis)
    scales = f"blocks of {smaller}" if smaller else "one scale for each channel"
    shape = next(tuple(weight.shape) for weight in weights if not wanted[0].fits(weight, layer.axis))
    note = f"{scales}, because its weight {shape} cannot be cut into blocks of {size}"
    return list(dict.fromkeys(replace(scheme, block_size=smaller) for scheme in wanted)), note


def _without_hessian(algorithm: str) -> str:
    return "nearest" if algorithm in NEEDS_MOMENTS else algorithm


def _fit(scheme: WeightScheme, weights: Sequence[torch.Tensor], axis: int) -> bool:
    return all(scheme.fits(weight, axis) for weight in weights)


def _dividing(scheme: WeightScheme, weights: Sequence[torch.Tensor], axis: int) -> int:
    smaller = (size for size in sorted(BLOCK_SIZES, reverse=True) if 0 < size < scheme.block_size)
    return next((size for size in smaller if _fit(replace(scheme, block_size=size), weights, axis)), 0)
