"""Keeping biases within int32: int8 kernels add the bias as an integer with scale (input scale x weight scale)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from prepbench.quantize.layers import BIASES

# half of what int32 holds: the sum over the products is added to it
_LARGEST = 2.0**30


def fit_biases(graph: fx.GraphModule) -> None:
    """Widen the weight ranges of calibrated observers, in place, where the bias would not fit otherwise.

    A channel with tiny weights and a large bias (a folded batch norm leaves such channels) would need a bias of more
    than 32 bits. Its scale is raised until the bias fits; what that takes from the weights is far below the resolution
    of the bias.
    """
    for node in graph.graph.nodes:
        if node.target not in BIASES:
            continue
        input_index, weight_index, bias_index = BIASES[node.target]
        bias = node.args[bias_index] if len(node.args) > bias_index else None
        activation, weight = (_observer(graph, node.args[index]) for index in (input_index, weight_index))
        if activation is None or weight is None or not isinstance(bias, fx.Node) or bias.op != "get_attr":
            continue
        scale = float(activation.calculate_qparams()[0])
        needed = operator.attrgetter(str(bias.target))(graph).detach().abs() / (scale * _LARGEST) * weight.quant_max
        if weight.max_val.ndim == 0:
            needed = needed.max()
        weight.max_val.copy_(torch.maximum(weight.max_val, needed))


def _observer(graph: fx.GraphModule, node: object) -> Any:
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    module = graph.get_submodule(str(node.target))
    return module if hasattr(module, "calculate_qparams") else None
