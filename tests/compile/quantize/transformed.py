"""Graphs that algorithms change, what must stay the same in them, and a plain simulation of int8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import fx, nn

from prepbench.inputs import Sample
from prepbench.objects.compare import sqnr
from prepbench.quantize.layer_nodes import LayerNode, layer_nodes

aten = torch.ops.aten
Tensors = Sequence[torch.Tensor]


def export(model: nn.Module, *inputs: torch.Tensor) -> fx.GraphModule:
    shapes = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    return torch.export.export(model.eval(), inputs, dynamic_shapes=shapes).module(check_guards=False)


def layers_of(graph: fx.GraphModule, model: nn.Module) -> list[LayerNode]:
    return layer_nodes(graph.graph, dict(model.named_modules()))


def samples_of(*inputs: torch.Tensor) -> list[Sample]:
    return [Sample((x,), {}, index) for index, x in enumerate(inputs)]


def operators(graph: fx.GraphModule) -> list[str]:
    return [str(node.target).split(".")[1] for node in graph.graph.nodes if node.op == "call_function"]


@contextmanager
def unchanged(model: nn.Module, graph: fx.GraphModule, *inputs: torch.Tensor, decibels: float = 100) -> Iterator[None]:
    """The function of the graph stays (also for another batch), so do all tensors of the model, and meta is there."""
    tensors = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    others = [torch.cat([x, x[:1]]) for x in inputs]
    with torch.no_grad():
        before = [graph(*inputs), graph(*others)]
    yield
    for name, value in model.state_dict(keep_vars=True).items():
        assert value.data_ptr() == tensors[name][0]
        assert torch.equal(value, tensors[name][1])
    graph.graph.lint()
    graph.recompile()
    with torch.no_grad():
        for reference, value in zip(before, [graph(*inputs), graph(*others)], strict=True):
            assert sqnr(reference, value) > decibels
    for node in graph.graph.nodes:
        assert node.op == "output" or isinstance(node.meta["val"], torch.Tensor | torch.SymInt)
        assert node.op != "call_function" or "nn_module_stack" in node.meta or node.target is aten.sym_size.int


def rounded(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, levels: int) -> torch.Tensor:
    step = ((high - low) / levels).clamp_min(1e-30)
    return ((x - low) / step).round().clamp(0, levels) * step + low


class Simulated(fx.Interpreter):
    """The graph with uint8 inputs of its layers, per tensor, and int8 weights, per tensor or per output channel."""

    def __init__(self, graph: fx.GraphModule, layers: Sequence[LayerNode], per_channel: bool) -> None:
        super().__init__(graph)
        self.layers = {layer.node: layer for layer in layers}
        self.per_channel = per_channel
        self.ranges: dict[fx.Node, tuple[torch.Tensor, torch.Tensor]] = {}
        self.rounding = False

    def run_node(self, n: fx.Node) -> object:
        layer = self.layers.get(n)
        if layer is None:
            return super().run_node(n)
        x, weight = self.env[layer.input], self.env[layer.weight]
        if self.rounding:
            low, high = self.ranges[n]
            dims = [d for d in range(weight.ndim) if d != layer.axis] if self.per_channel else None
            bound = weight.abs().amax(dims, keepdim=True) if dims else weight.abs().max()
            self.env[layer.input], self.env[layer.weight] = (
                rounded(x, low, high, 255),
                rounded(weight, -bound, bound, 254),
            )
        else:
            seen = self.ranges.get(n, (torch.zeros(()), torch.zeros(())))
            self.ranges[n] = (torch.minimum(seen[0], x.min()), torch.maximum(seen[1], x.max()))
        try:
            return super().run_node(n)
        finally:
            self.env[layer.input], self.env[layer.weight] = x, weight


def simulated_sqnr(model: nn.Module, graph: fx.GraphModule, data: Tensors, per_channel: bool) -> float:
    simulation = Simulated(graph, layers_of(graph, model), per_channel)
    simulation.garbage_collect_values = False
    with torch.no_grad():
        for x in data:
            simulation.run(x)
        simulation.rounding = True
        pairs = [(model(x), simulation.run(x)) for x in data]
    return sqnr(torch.cat([reference for reference, _ in pairs]), torch.cat([value for _, value in pairs]))
