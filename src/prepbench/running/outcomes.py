"""Running a model or a program on a sample, and comparing what comes out."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.inputs import Sample
from prepbench.patching import output_here, warnings_ignored_here
from prepbench.running.unchanged import detached_copy, own_copy, unchanged

_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 1e-1}


def run(function: Callable[..., Any], sample: Sample, model: torch.nn.Module) -> Any:
    """The output on one sample, under ``no_grad``, with ``model``, the sample and random state as before afterwards."""
    with torch.no_grad(), unchanged(model):
        # what a model returns may be one of its buffers, which unchanged() resets
        return detached_copy(own_copy(sample).call(function))


@contextmanager
def without_output() -> Iterator[None]:
    """Inside the block, what the model prints in this thread is dropped."""
    with output_here(io.StringIO()), warnings_ignored_here():
        yield


@dataclass(frozen=True)
class Outcome:
    """All that one call does: its output, and the values of the caller's tensors and of the model's buffers after it.

    ``inputs`` holds the tensors that were given, by place; ``buffers`` those of the model, by name.
    """

    output: Any
    inputs: dict[int, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def outcome(function: Callable[..., Any], sample: Sample, model: torch.nn.Module) -> Outcome:
    """Everything that one call changes, under ``no_grad``; afterwards all of it is as it was."""
    own = own_copy(sample)
    given = {i: leaf for i, leaf in enumerate(pytree.tree_leaves((own.args, own.kwargs))) if _is_tensor(leaf)}
    with torch.no_grad(), unchanged(model):
        output = detached_copy(own.call(function))
        return Outcome(output, detached_copy(given), detached_copy(dict(model.named_buffers())))


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def outcomes_differ(expected: Outcome, actual: Outcome) -> Difference:
    """Compare two calls: what they return, then what they leave in the caller's tensors and in the model's buffers."""
    found = difference(expected.output, actual.output)
    for place, one, two in (
        ("the caller's tensor", expected.inputs, actual.inputs),
        ("buffer", expected.buffers, actual.buffers),
    ):
        if found.equal:
            found = difference(one, two, f"after the call, {place} ")
    return found


@dataclass(frozen=True)
class Difference:
    """How far two outputs are apart: the largest absolute difference, or what else is not the same."""

    largest: float = 0.0
    text: str = ""

    @property
    def equal(self) -> bool:
        return not self.text


def difference(expected: Any, actual: Any, name_of: str = "output") -> Difference:
    """Compare two outputs leaf by leaf; floating point may differ by rounding. ``name_of`` is what they are called."""
    left, right = pytree.tree_leaves_with_path(expected), pytree.tree_leaves_with_path(actual)
    left = [(path, leaf) for path, leaf in left if isinstance(leaf, torch.Tensor)]
    right = [(path, leaf) for path, leaf in right if isinstance(leaf, torch.Tensor)]
    if len(left) != len(right):
        return Difference(math.inf, f"{len(left)} tensors in eager, {len(right)} in the graph")
    largest = 0.0
    for (path, one), (_, two) in zip(left, right, strict=True):
        name = f"{name_of}{pytree.keystr(path)}"
        if one.shape != two.shape or one.dtype != two.dtype:
            text = f"{name}: {tuple(one.shape)} {one.dtype} in eager, {tuple(two.shape)} {two.dtype} in the graph"
            return Difference(math.inf, text)
        if one.numel() == 0 or one.device.type == "meta":
            continue
        apart, allowed = _apart(one, two)
        largest = max(largest, apart)
        if not apart <= allowed:
            return Difference(apart, f"{name} differs by {apart:.3g}")
    return Difference(largest)


def _apart(one: torch.Tensor, two: torch.Tensor) -> tuple[float, float]:
    if one.is_quantized or not (one.is_floating_point() or one.is_complex()):
        return (0.0, 0.0) if torch.equal(one, two.to(one.device)) else (math.inf, 0.0)
    kind = torch.complex128 if one.is_complex() else torch.float64
    wide, other = one.to(kind), two.to(one.device, kind)
    same = (wide == other) | (wide.isnan() & other.isnan())
    apart = torch.where(same, torch.zeros_like(wide), wide - other).abs()
    finite = wide[wide.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    real = one.real.dtype if one.is_complex() else one.dtype
    return float(apart.nan_to_num(math.inf).max()), _TOLERANCES.get(real, 1e-1) * max(scale, 1e-3)
