"""The operator that runs a graph for each step of a sequence (``torch._higher_order_ops.scan``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for

with needed_for("loops over sequences of dynamic length"):
    from torch._higher_order_ops.scan import scan_op as _scan_op
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing as _disable_proxy_modes_tracing
    from torch.fx.experimental.symbolic_shapes import statically_known_true as _statically_known_true

_ROOT = "_export_root"


def scan(
    step: Callable[..., list[torch.Tensor]],
    states: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """``step`` for each row, as one operator of the graph that is being traced.

    Args:
        step: takes states, rows and others; gives the next states, and what to keep of the step. None of its results
            is an argument or shares memory with one or with another.
        states: before the first step.
        rows: tensors of shape (steps, ...), of which each step gets one row.
        others: what each step gets as it is.

    Returns:
        The last states, and what was kept, of shape (steps, ...).
    """
    if others:
        return list(_scan_op(step, list(states), list(rows), tuple(others)))
    # torch warns when it saves a list without entries
    return list(_scan_op(lambda *values: step(*values[:-1]), list(states), list(rows), (torch.zeros(()),)))


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Inside the block, nothing becomes part of the graph that is being traced."""
    with _disable_proxy_modes_tracing():
        yield


def surely_equal(one: Any, other: Any) -> bool:
    """Whether two sizes are the same whatever the sizes of the inputs; nothing is assumed."""
    return bool(_statically_known_true(one == other))


def is_symbolic(size: Any) -> bool:
    """Whether a size depends on the inputs."""
    return isinstance(size, torch.SymInt)


def is_input_size(size: Any) -> bool:
    """Whether a size is that of an axis, and not computed from one."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_Symbol)


def name_modules_in_steps(graph: torch.fx.GraphModule) -> None:
    """Give the operations of steps the FQNs of their modules; torch leaves the name of its own root before them."""
    for node in scans_in(graph.graph):
        for step in steps_of(graph, node)[1].graph.nodes:
            stack = step.meta.get("nn_module_stack") or {}
            named = {key: (path.removeprefix(_ROOT).removeprefix("."), kind) for key, (path, kind) in stack.items()}
            if named:
                step.meta["nn_module_stack"] = named


def steps_of(graph: torch.fx.GraphModule, loop: torch.fx.Node) -> tuple[str, Any]:
    """The graph of a loop's steps, and the name that it has in ``graph``."""
    body: Any = loop.args[0]
    return body.target, graph.get_submodule(body.target)


def scans_in(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The loops that are one operator."""
    return [node for node in graph.nodes if node.target is _scan_op]
