"""Buffers that a graph writes to while it runs, which calibration must not change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of

_BATCH_NORM = torch.ops.aten.batch_norm.default


def own_written_buffers(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Give the graph copies of the buffers that it writes to, in place; return the originals, by name.

    The graph shares the others with the user's model, whose state stays unchanged while the graph runs on samples.
    """
    buffers = dict(graph.named_buffers())
    written = {name: buffers[name] for name in written_names(graph.graph) if name in buffers}
    for name, tensor in written.items():
        path, _, last = name.rpartition(".")
        graph.get_submodule(path)._buffers[last] = tensor.detach().clone()
    return written


def restore_buffers(graph: fx.GraphModule, before: dict[str, torch.Tensor]) -> None:
    """Restore the values that the copies had before the graph ran."""
    buffers = dict(graph.named_buffers())
    with torch.no_grad():
        for name, tensor in before.items():
            if name in buffers:
                buffers[name].copy_(tensor)


@contextmanager
def preserved_buffers(graph: fx.GraphModule) -> Iterator[None]:
    """Restore the buffers that the graph writes to after the block, so that later runs begin with the same state."""
    buffers = dict(graph.named_buffers())
    before = {name: buffers[name].clone() for name in written_names(graph.graph) if name in buffers}
    try:
        yield
    finally:
        restore_buffers(graph, before)


def written_names(graph: fx.Graph) -> Iterator[str]:
    """Yield the names of the attributes that a graph writes to."""
    yield from (str(node.target) for node in written_nodes(graph) if node.op == "get_attr")


def written_nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the nodes whose tensors a graph writes to."""
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        arguments = zip(schema_of(node.target).arguments, node.args, strict=False)
        values = [value for argument, value in arguments if argument.is_write]
        if node.target is _BATCH_NORM and node.args[5]:  # its schema does not say that it writes
            values += node.args[3:5]
        yield from (value for value in values if isinstance(value, fx.Node))
