"""Choices among equal values, of which PyTorch and a target may each take another, so that both are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample

aten = torch.ops.aten
_TOPK, _SORT, _ARGSORT = aten.topk.default, aten.sort.default, aten.argsort.default
# of a value: another rounding may turn the order of two that are no further apart
_NEAR = 1e-5


def with_ties_broken(
    program: torch.export.ExportedProgram, sample: Sample, *, last_first: bool
) -> tuple[list[Any], list[str]]:
    """What a call gives where the first, or the last, of equal values is taken, and where there are such values.

    PyTorch promises an order of equal values for ``argmax``, ``max`` and stable sorting, but not for ``topk`` and other
    sorting. Values that only rounding tells apart count as equal.

    Args:
        program: what is called.
        sample: a call of the flat program, whose tensors are left as they are.
        last_first: whether the last of equal values comes first.

    Returns:
        The results, and the modules and operators whose choice depends on that.
    """
    run = _Run(program.module(check_guards=False), last_first)
    results = run.run(*(leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in sample.args))
    return list(results), run.places


class _Run(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, last_first: bool) -> None:
        super().__init__(module)
        self._last_first = last_first
        self.places: list[str] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.target not in (_TOPK, _SORT, _ARGSORT):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        first, last = (_chosen(n.target, args, kwargs, last_first=way) for way in (False, True))
        if not torch.equal(first, last):
            stack = list((n.meta.get("nn_module_stack") or {}).values())
            name = str(n.target).split(".")[1]
            self.places.append(f"{stack[-1][0]} ({name})" if stack and stack[-1][0] else name)
        indices = last if self._last_first else first
        return indices if n.target is _ARGSORT else (_taken(args[0], indices, _dim(n.target, args, kwargs)), indices)


def _chosen(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, last_first: bool) -> torch.Tensor:
    """The indices that an operator gives, in an order in which equal values lie as they are asked for."""
    values: torch.Tensor = args[0]
    dim = _dim(target, args, kwargs)
    is_topk = target is _TOPK
    at, name = (3, "largest") if is_topk else (2, "descending")
    descending = args[at] if len(args) > at else kwargs.get(name, is_topk)
    if not values.ndim:
        return torch.zeros((), dtype=torch.int64)
    keys = values.flip(dim) if last_first else values
    if keys.is_floating_point():
        keys = _preferring_the_first(keys.double(), dim, 1 if descending else -1)
    indices: torch.Tensor = keys.sort(dim=dim, descending=descending, stable=True).indices
    if last_first:
        indices = values.shape[dim] - 1 - indices
    return indices.narrow(dim, 0, args[1]) if is_topk else indices


def _preferring_the_first(keys: torch.Tensor, dim: int, sign: int) -> torch.Tensor:
    """Of keys that are nearly equal, those that come first are moved to the front."""
    ramp = torch.linspace(1.0, 0.0, keys.shape[dim], dtype=keys.dtype)
    moved = keys.transpose(dim, -1) * (1 + sign * keys.transpose(dim, -1).sign() * _NEAR * ramp)
    return torch.where(keys.isfinite(), moved.transpose(dim, -1), keys)


def _taken(values: torch.Tensor, indices: torch.Tensor, dim: int) -> torch.Tensor:
    return values.gather(dim, indices) if values.ndim else values


def _dim(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    at = 2 if target is _TOPK else 1
    return int(args[at] if len(args) > at else kwargs.get("dim", -1))
