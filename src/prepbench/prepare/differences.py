"""How far two values, or everything that two calls leave behind, are apart."""

from __future__ import annotations

import math
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.running.outcomes import Outcome

TOLERANCE = 1e-5
_COARSE = {torch.float16: 1e-2, torch.bfloat16: 1e-1}


def outcomes_apart(expected: Outcome, got: Outcome) -> tuple[float, str]:
    """The largest relative difference of two calls, and what differs too much: "" if nothing."""
    buffers = {name: got.buffers[name] for name in expected.buffers if name in got.buffers}
    largest = 0.0
    for name, one, two in (
        ("output", expected.output, got.output),
        ("the caller's tensor", expected.inputs, got.inputs),
        ("buffer", {name: expected.buffers[name] for name in buffers}, buffers),
    ):
        apart, what = values_apart(one, two, name)
        largest = max(largest, apart)
        if what:
            return apart, what
    return largest, ""


def values_apart(one: Any, two: Any, name: str = "output") -> tuple[float, str]:
    """The largest relative difference of the tensors in two values, and what differs too much: "" if nothing."""
    left = [(path, leaf) for path, leaf in pytree.tree_leaves_with_path(one) if isinstance(leaf, torch.Tensor)]
    right = [leaf for leaf in pytree.tree_leaves(two) if isinstance(leaf, torch.Tensor)]
    if len(left) != len(right):
        return math.inf, f"{name} has {len(left)} tensors in the original and {len(right)} when prepared"
    largest = 0.0
    for (path, a), b in zip(left, right, strict=True):
        where = f"{name}{pytree.keystr(path)}"
        if a.shape != b.shape or a.dtype != b.dtype:
            return (
                math.inf,
                f"{where} is {tuple(a.shape)} {a.dtype} in the original, {tuple(b.shape)} {b.dtype} prepared",
            )
        apart = _apart(a, b)
        largest = max(largest, apart)
        if not apart <= _COARSE.get(a.dtype, TOLERANCE):
            return apart, f"{where} differs"
    return largest, ""


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    if one.numel() == 0 or one.device.type == "meta":
        return 0.0
    if one.layout is not torch.strided or not (one.is_floating_point() or one.is_complex()):
        one, two = (one.to_dense(), two.to_dense()) if one.layout is not torch.strided else (one, two)
        return 0.0 if torch.equal(one, two) else math.inf
    if one.dtype is not torch.complex32 and torch.equal(one, two):
        return 0.0
    kind = torch.complex128 if one.is_complex() else torch.float64
    wide, other = one.to(kind), two.to(kind)
    same = (wide == other) | (wide.isnan() & other.isnan())
    apart = torch.where(same, torch.zeros_like(wide), wide - other).abs()
    scale = float(wide[wide.isfinite()].abs().max()) if bool(wide.isfinite().any()) else 1.0
    return float(apart.nan_to_num(math.inf).max()) / max(scale, 1e-12)
