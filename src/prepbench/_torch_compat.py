"""The one place that touches private parts of torch, each behind a feature check with a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

GuardCallback = Callable[[Any], None]


class _WatchedShapeEnv(ShapeEnv):
    """A shape environment that reports each new assumption about sizes at the moment the model makes it."""

    def __init__(self, on_guard: GuardCallback) -> None:
        super().__init__()
        self._on_guard = on_guard

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        before = len(self.guards)
        result = super().evaluate_expr(*args, **kwargs)
        for guard in self.guards[before:]:
            self._on_guard(guard.expr)
        return result


def symbolic_fake_mode(on_guard: GuardCallback) -> FakeTensorMode:
    """A fake mode with symbolic sizes; real parameters may be used in it as they are.

    ``on_guard`` receives each assumption on sizes (a sympy expression) when it is first made.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=_WatchedShapeEnv(on_guard))
    # a value read from a tensor becomes an unknown number instead of an error; only branching on it fails
    mode.shape_env.allow_scalar_outputs = True  # type: ignore[union-attr]
    mode.shape_env.allow_dynamic_output_shape_ops = True  # type: ignore[union-attr]
    return mode


def fake_input(mode: FakeTensorMode, tensor: torch.Tensor, hints: dict[int, int], name: str) -> torch.Tensor:
    """A fake of ``tensor`` whose dims in ``hints`` are symbolic; each is traced as if it had the hinted size."""
    from torch._dynamo.source import ConstantSource

    if any(tensor.shape[dim] != size for dim, size in hints.items()):
        sizes = [hints.get(dim, size) for dim, size in enumerate(tensor.shape)]
        with torch.no_grad():
            tensor = torch.empty(sizes, dtype=tensor.dtype, device="meta").requires_grad_(tensor.requires_grad)
    dims = [DimDynamic.DYNAMIC if dim in hints else DimDynamic.STATIC for dim in range(tensor.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=dims)
    return mode.from_tensor(tensor, source=ConstantSource(name), symbolic_context=context)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether this tensor has sizes but no data."""
    return isinstance(tensor, FakeTensor)


def in_functorch() -> bool:
    """Whether a function transform (vmap, grad) is running in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def vmap_module() -> Any:
    """The module whose ``vmap_impl`` runs every ``torch.vmap``."""
    return sys.modules["torch._functorch.apis"]
