"""Choices among equal values, of which PyTorch and a target may each take another, so that both are right."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample

aten = torch.ops.aten
_SORTS = (aten.sort.default, aten.argsort.default)
# of the values: rounding of what they are computed from decides which is larger
_NEAR = 1e-5


def tied_choice(program: torch.export.ExportedProgram, sample: Sample) -> str:
    """Where a call chooses or sorts among equal values, as a part of a sentence; nothing where it does not.

    PyTorch promises an order of equal values for ``argmax``, ``max`` and stable sorting, but not for ``topk`` and other
    sorting. Values that only rounding tells apart count as equal.

    Args:
        program: what is called.
        sample: a call of the flat program, whose tensors are left as they are.
    """
    finder = _Finder(program.module(check_guards=False))
    finder.run(*(leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in sample.args))
    return finder.found


class _Finder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found = ""

    def run_node(self, n: fx.Node) -> Any:
        is_choice = n.target is aten.topk.default or n.target in _SORTS
        if is_choice and not self.found and _is_tied(n.target, *self.fetch_args_kwargs_from_env(n)):
            stack = list((n.meta.get("nn_module_stack") or {}).values())
            name = str(n.target).split(".")[1]
            self.found = f"{stack[-1][0]} ({name})" if stack and stack[-1][0] else name
        return super().run_node(n)


def _is_tied(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    values = args[0]
    if not values.ndim:
        return False
    if target is aten.topk.default:
        dim = args[2] if len(args) > 2 else -1
        chosen = min(args[1] + 1, values.shape[dim])  # and the best one that is left
        largest = args[3] if len(args) > 3 else kwargs.get("largest", True)
        ordered = values.topk(chosen, dim, largest).values
    else:
        dim = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        ordered = values.sort(dim).values
    count = ordered.shape[dim] - 1
    if count < 1:
        return False
    first, second = ordered.narrow(dim, 0, count), ordered.narrow(dim, 1, count)
    return bool((first == second).any() if not values.is_floating_point() else first.isclose(second, _NEAR, 0.0).any())
