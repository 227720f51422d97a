"""A calibration cache: the results of calibrating and measuring one float graph, reused when it is quantized again."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import OpOverload, schema_of
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.observed import observed_value, observer_of
from prepbench.quantize.weights import WeightScheme


@dataclass
class Statistics:
    """The cache for one float graph on one list of samples. Entries are added once all samples have passed, so each
    is complete.

    Attributes:
        ranges: the ranges of observers, see :func:`range_keys`.
        noise: the noise of quantizing one node (a ``LayerNoise``), see :func:`noise_key`.
        effects: the effect of rounding on the outputs (an ``Effect``), see :func:`estimate_output_noise`.
        channels: the statistics of nodes' channels (a ``ChannelStatistics``), see :func:`measure_channels`.
        multiplications: by name of a layer's node, how many it needs on the measured samples.
        outputs: the results of the whole graph in float, for each measured sample.
    """

    ranges: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    noise: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    effects: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    channels: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    multiplications: dict[str, int] = field(default_factory=dict)
    outputs: tuple[tuple[Any, ...], ...] | None = None


def range_keys(graph: fx.GraphModule) -> dict[int, tuple[Any, ...]]:
    """Return what each activation observer's range depends on besides the samples, by the observer's id.

    That is the value that it sees. Where the graph writes in place the moment matters, too, and where parts of the
    values are kept, how often it looks. An observer of several values is left out.
    """
    in_place = any(_writes(node) for node in graph.graph.nodes)
    sources: dict[int, list[str]] = {}
    moments: dict[int, list[str]] = {}
    keeps: dict[int, bool] = {}
    for node in graph.graph.nodes:
        observer = observer_of(graph, node)
        if observer is not None and hasattr(observer, "forget"):
            sources.setdefault(id(observer), []).append(observed_value(graph, node).name)
            moments.setdefault(id(observer), []).append(_behind(graph, node).name)
            keeps[id(observer)] = observer.method != "minmax"
    return {
        key: (names[0], keeps[key], tuple(moments[key]) if in_place or keeps[key] else ())
        for key, names in sources.items()
        if len(set(names)) == 1
    }


def noise_key(graph: torch.nn.Module, layer: LayerNode, node: fx.Node, scheme: WeightScheme) -> tuple[Any, ...]:
    """Return what the noise of one node depends on, besides the float graph and the samples."""
    quantizers = []
    for index, argument in enumerate(node.args):
        observer = observer_of(graph, argument)
        if observer is not None and index != layer.weight_index:
            scale, zero_point = (float(value) for value in observer.calculate_qparams())
            quantizers.append((index, scale, zero_point, observer.quant_min, observer.quant_max, observer.finite))
    return node.name, scheme, tuple(quantizers)


def _writes(node: fx.Node) -> bool:
    schema = schema_of(node.target) if node.op == "call_function" else None
    return schema is not None and bool(schema.is_mutable)


def _behind(graph: torch.nn.Module, node: fx.Node) -> fx.Node:
    """Return the node that runs after this observer and those next to it."""
    while observer_of(graph, node) is not None:
        node = node.next
    return node


# Buffers that a graph writes to while it runs, which calibration must not change.


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
    yield from (str(node.target) for node in map(viewed, written_nodes(graph)) if node.op == "get_attr")


def written_nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """Yield the nodes whose tensors a graph writes to."""
    for node in graph.nodes:
        yield from written_by(node)


def written_by(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the operands that a node writes to."""
    if not isinstance(node.target, OpOverload):
        return
    arguments = zip(schema_of(node.target).arguments, node.args, strict=False)
    values = [value for argument, value in arguments if argument.is_write]
    if node.target is _BATCH_NORM and node.args[5]:  # its schema does not say that it writes
        values += node.args[3:5]
    yield from (value for value in values if isinstance(value, fx.Node))


def is_view(node: fx.Node) -> bool:
    """Return whether an operator returns memory of its operands."""
    if node.target is operator.getitem:  # of what was split
        return True
    schema = schema_of(node.target)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def viewed(node: fx.Node) -> fx.Node:
    """Return the node whose memory a chain of views shows."""
    while is_view(node) and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node
