"""Re-export a graph after it was changed: quantized, rewritten for a target, or cut out of a larger one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.sizes import exact_zero_one, smallest

Program = torch.export.ExportedProgram


def export_again(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    dynamic: Sequence[Collection[int]],
    error: Callable[[str], Exception],
) -> Program:
    """Export a graph so that the sizes that were dynamic before stay dynamic.

    Args:
        module: a graph that takes its input leaves by position.
        inputs: the example inputs.
        dynamic: for each input the dims whose sizes must stay dynamic.
        error: makes the exception to raise for an input, given its name, whose sizes became static.

    Returns:
        The program. Its weights are those of ``module``.
    """
    shapes = tuple(dict.fromkeys(dims, torch.export.Dim.AUTO) if dims else None for dims in dynamic)

    def exported(context: AbstractContextManager[Any]) -> Program:
        with torch.no_grad(), context:
            return torch.export.export(
                module, tuple(inputs), dynamic_shapes=(shapes,) if _is_variadic(module) else shapes, strict=False
            )

    try:
        program = exported(traced_alike(module.graph))
    except AssertionError:  # torch 2.13 cannot solve some of its own guards under the assumption of sizes of 2 and more
        if is_exact(module.graph):
            raise
        program = exported(exact_zero_one())
    names = program.graph_signature.user_inputs
    for name, wanted, found in zip(names, dynamic, dynamic_sizes(program), strict=True):
        if found.keys() != set(wanted):
            raise error(str(name))
    return program


def is_exact(graph: fx.Graph) -> bool:
    """Return whether a graph was traced without the assumption that dynamic sizes are at least 2."""
    values = [node.meta.get("val") for node in graph.find_nodes(op="placeholder")]
    return any(smallest(size) < 2 for value in values for size in sizes_of(value).values())


def traced_alike(graph: fx.Graph) -> AbstractContextManager[Any]:
    """A context in which a graph is traced again with the assumptions about sizes of 0 and 1 of its first tracing.

    Otherwise torch guards on a computed size that is 1 for the example inputs (it asks for the memory format of a
    ``[2, 1, 1]``), which makes the sizes that it is computed from static.
    """
    return exact_zero_one() if is_exact(graph) else nullcontext()


def dynamic_sizes(program: Program) -> list[dict[int, Any]]:
    """Return the symbolic sizes of each input leaf by dim; empty for other values than tensors."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    names = program.graph_signature.user_inputs
    return [sizes_of(values.get(name)) if isinstance(name, str) else {} for name in names]


def sizes_of(value: Any) -> dict[int, Any]:
    """Return the symbolic sizes of a traced tensor by dim; empty for other values."""
    if not isinstance(value, torch.Tensor):
        return {}
    sizes: tuple[Any, ...] = tuple(value.shape)
    return {dim: size for dim, size in enumerate(sizes) if _is_dynamic(size)}


def _is_dynamic(size: Any) -> bool:
    # a symbol that tracing specialised later is still a SymInt, but its expression is a number
    return isinstance(size, torch.SymInt) and not size.node.expr.is_Integer


def _is_variadic(module: fx.GraphModule) -> bool:
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(module.forward).parameters.values())
