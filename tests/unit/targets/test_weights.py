"""However a layer's quantized weight is stored anew, the graph computes the same."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from prepbench.settings.numbers import FLOAT32, INT8, NumberFormat
from prepbench.targets.weights import fit_weights

aten, quantized = torch.ops.aten, torch.ops.quantized_decomposed


def graph_of(layer: str, axis: int | None) -> fx.GraphModule:
    """Return a graph that multiplies an input of 5 channels by a dequantized weight; None is one scale for all."""
    outputs = 5 if layer.startswith("square") else 3
    shape = (outputs, 5) if layer.endswith("linear") else (5, outputs)
    draw = torch.Generator().manual_seed(0)
    root, graph = nn.Module(), fx.Graph()
    root.register_buffer("stored", torch.randint(-128, 128, shape, dtype=torch.int8, generator=draw))
    x, stored = graph.placeholder("x"), graph.get_attr("stored")
    if axis is None:
        arguments = (stored, 0.02, 3, -128, 127, torch.int8)
        weight = graph.call_function(quantized.dequantize_per_tensor.default, arguments)
    else:
        root.register_buffer("scale", torch.rand(shape[axis], generator=draw) + 0.1)
        root.register_buffer("zero", torch.randint(-9, 9, (shape[axis],), generator=draw))
        scales = (graph.get_attr("scale"), graph.get_attr("zero"))
        arguments = (stored, *scales, axis, -128, 127, torch.int8)
        weight = graph.call_function(quantized.dequantize_per_channel.default, arguments)
    operator = aten.linear.default if layer.endswith("linear") else aten.mm.default
    graph.output((graph.call_function(operator, (x, weight)),))
    return fx.GraphModule(root, graph)


@pytest.mark.parametrize("kind", [INT8, FLOAT32], ids=lambda kind: kind.name)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("layer", ["linear", "mm", "square linear", "square mm"])
def test_results_stay_the_same(layer: str, axis: int | None, kind: NumberFormat) -> None:
    module, x = graph_of(layer, axis), torch.randn(4, 5)
    (expected,) = module(x)
    assert fit_weights(module, lambda node, weight: kind)
    (got,) = module(x)
    torch.testing.assert_close(got, expected)
    assert module.graph.find_nodes(op="call_function", target=aten.linear.default)
