"""A calibration cache: the results of calibrating and measuring one float graph, reused when it is quantized again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.operators import schema_of
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.quantize.observed_graph import observed_value, observer_of
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
