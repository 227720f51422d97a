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
    """Return ``step`` for each row, as one operator of the traced graph.

    Args:
        step: takes states, rows and others; returns the next states, and the values to collect. None of its results may
            be an argument or share memory with one or with another.
        states: before the first step.
        rows: tensors of shape (steps, ...), of which each step gets one row.
        others: the arguments that are the same in each step.

    Returns:
        The last states, and the collected values, of shape (steps, ...).
    """
    if others:
        return list(_scan_op(step, list(states), list(rows), tuple(others)))
    # torch warns when it saves a list without entries
    return list(_scan_op(lambda *values: step(*values[:-1]), list(states), list(rows), (torch.zeros(()),)))


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Inside the block, nothing is recorded in the traced graph."""
    with _disable_proxy_modes_tracing():
        yield


def surely_equal(one: Any, other: Any) -> bool:
    """Return whether two sizes are equal for all sizes of the inputs, without adding an assumption."""
    return bool(_statically_known_true(one == other))


def surely_different(one: Any, other: Any) -> bool:
    """Return whether two sizes differ for all sizes of the inputs, without adding an assumption."""
    return bool(_statically_known_true(one != other))


def is_symbolic(size: Any) -> bool:
    """Return whether a size depends on the inputs."""
    return isinstance(size, torch.SymInt)


def is_input_size(size: Any) -> bool:
    """Return whether a size is that of an axis, and not computed."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_Symbol)


def name_modules_in_steps(graph: torch.fx.GraphModule) -> None:
    """Set the FQNs of modules in the operations of loop bodies; torch prefixes them with the name of its own root."""
    for node in scans_in(graph.graph):
        for step in steps_of(graph, node)[1].graph.nodes:
            stack = step.meta.get("nn_module_stack") or {}
            named = {key: (path.removeprefix(_ROOT).removeprefix("."), kind) for key, (path, kind) in stack.items()}
            if named:
                step.meta["nn_module_stack"] = named


def steps_of(graph: torch.fx.GraphModule, loop: torch.fx.Node) -> tuple[str, Any]:
    """Return the graph of a loop's body, and its name in ``graph``."""
    body: Any = loop.args[0]
    return body.target, graph.get_submodule(body.target)


def scans_in(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Return the loops that are one operator."""
    return [node for node in graph.nodes if node.target is _scan_op]
