"""LSTM in integers, as ``DynamicQuantizeLSTM`` of ONNX Runtime computes it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from prepbench.capture.sizes.recurrent import lstm_results
from prepbench.quantize.layer_nodes import LayerNode
from prepbench.settings.numbers import UINT8

_FLOAT = torch.ops.prepbench.lstm_layer.default


@torch.library.custom_op("prepbench::dynamic_lstm_layer", mutates_args=())
def dynamic_lstm_layer(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    weights: Sequence[torch.Tensor],
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute ``prepbench::lstm_layer``, without projections, on inputs and states rounded to 8 bits in each call."""
    each = len(weights) // len(h)
    found = [
        _direction(x, h[place], c[place], weights[place * each : (place + 1) * each], lengths, backwards=bool(place))
        for place in range(len(h))
    ]
    y, h_last, c_last = zip(*found, strict=True)
    return torch.cat(y, 2), torch.stack(h_last), torch.stack(c_last)


dynamic_lstm_layer.register_fake(lstm_results)

OPERATOR = torch.ops.prepbench.dynamic_lstm_layer.default


def has_integer_kernel(layer: LayerNode) -> bool:
    """Return whether a layer's node has this form: an LSTM without projections."""
    return layer.node.target is _FLOAT and not layer.has_projections


def use_integers(graph: fx.GraphModule, names: Sequence[str]) -> None:
    """Make the LSTM nodes of these names compute in integers, in place."""
    if names:
        for node in graph.graph.nodes:
            if node.name in names:
                node.target = OPERATOR
        graph.recompile()


def _direction(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    weights: Sequence[torch.Tensor],
    lengths: torch.Tensor | None,
    *,
    backwards: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the states of all steps, and the last two, of one direction."""
    at_input, at_state, *biases = weights
    gates = _rounded(x) @ at_input.t()
    for bias in biases:
        gates = gates + bias
    steps = range(len(x))
    found: list[torch.Tensor] = [h] * len(x)
    for step in reversed(steps) if backwards else steps:
        i, f, g, o = (gates[step] + _rounded(h) @ at_state.t()).chunk(4, 1)
        after_c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        after_h = o.sigmoid() * after_c.tanh()
        if lengths is None:
            h, c, found[step] = after_h, after_c, after_h
        else:
            inside = (lengths > step).to(h.device).unsqueeze(1)
            h, c = torch.where(inside, after_h, h), torch.where(inside, after_c, c)
            found[step] = torch.where(inside, after_h, 0.0)
    return torch.stack(found) if found else h.new_empty((0, *h.shape)), h.clone(), c.clone()


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Round to 256 integers between the smallest and the largest value, with 0 among them, and back."""
    if not x.numel():
        return x
    low, high = (value.clamp(max=0) if i == 0 else value.clamp(min=0) for i, value in enumerate(torch.aminmax(x)))
    scale = ((high - low) / UINT8.steps).clamp(min=torch.finfo(torch.float32).tiny)
    zero_point = (-low / scale).round().clamp(UINT8.low, UINT8.high).to(torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero_point, int(UINT8.low), int(UINT8.high))
