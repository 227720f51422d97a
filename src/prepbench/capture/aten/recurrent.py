"""LSTM, GRU and RNN over a sequence of dynamic length: one operator for each layer, instead of its steps unrolled.

While torch exports a recurrent layer it goes through its steps one by one, which fixes their number. Where that is
dynamic, ``torch.lstm`` and its like become the operators below, which have a counterpart in ONNX. So do layers with
projections, which torch writes to ONNX wrongly, and layers with dropout in between that is active: that becomes an
operation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.operators import RNN_FUNCTIONS

_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@torch.library.custom_op("prepbench::lstm_layer", mutates_args=())
def lstm_layer(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One layer of ``torch.lstm``, in one direction or both.

    Args:
        x: of shape (length, batch, input size).
        h: of shape (directions, batch, output size), before the first step.
        c: of shape (directions, batch, hidden size), the same for the cell.
        weights: for each direction those of the input, of the state, then the biases of both, if there are any, and
            that of the projection from hidden to output size, if there is one.

    Returns:
        The states of all steps, of shape (length, batch, directions * output size), and the last ``h`` and ``c``.
    """
    y, h_last, c_last = RNN_FUNCTIONS.lstm(x, (h, c), list(weights), *_settings(h, weights))
    return _own(y), _own(h_last), _own(c_last)


@lstm_layer.register_fake
def _(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, weights: Sequence[torch.Tensor]) -> Any:
    return x.new_empty(_steps(x, h)), torch.empty_like(h), torch.empty_like(c)


@torch.library.custom_op("prepbench::recurrent_layer", mutates_args=())
def recurrent_layer(
    x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`lstm_layer` for layers without a cell.

    Args:
        x: as there.
        h: as there.
        weights: as there.
        kind: ``"gru"``, ``"rnn_tanh"`` or ``"rnn_relu"``.
    """
    y, h_last = getattr(RNN_FUNCTIONS, kind)(x, h, list(weights), *_settings(h, weights))
    return _own(y), _own(h_last)


@recurrent_layer.register_fake
def _(x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], kind: str) -> Any:
    return x.new_empty(_steps(x, h)), torch.empty_like(h)


def _settings(h: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Biases or not, layers, dropout, training, both directions or not, batch first or not."""
    return len(weights) >= 4 * len(h), 1, 0.0, False, len(h) == 2, False


def _steps(x: torch.Tensor, h: torch.Tensor) -> tuple[Any, ...]:
    return x.shape[0], x.shape[1], h.shape[0] * h.shape[2]


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a result, because those of an operator must not share memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


def has_recurrent_layers(program: torch.export.ExportedProgram) -> bool:
    """Whether a program has one of the operators of this file."""
    own = (torch.ops.prepbench.lstm_layer.default, torch.ops.prepbench.recurrent_layer.default)
    return any(node.target in own for node in program.graph.nodes)


class DynamicLengths(TorchFunctionMode):
    """Inside the block, recurrent layers that torch cannot export as they are become operators."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = getattr(func, "__name__", "")
        if kind in _KINDS and not kwargs and len(args) == 9 and getattr(RNN_FUNCTIONS, kind) == func:
            result = _in_layers(kind, *args)
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _in_layers(
    kind: str,
    x: Any,
    state: Any,
    weights: Any,
    has_biases: Any,
    layers: Any,
    dropout: float,
    training: bool,
    both_directions: bool,
    batch_first: bool,
) -> Any:
    """The call of a recurrent function as one operator for each layer; ``NotImplemented`` for what stays as it is."""
    if type(has_biases) is not bool or x.ndim != 3:  # a packed sequence has its lengths before the state
        return NotImplemented
    each = len(weights) // layers
    drops = training and dropout > 0 and layers > 1
    projects = each == (2 if both_directions else 1) * (5 if has_biases else 3)
    if not (drops or projects or isinstance(x.shape[1 if batch_first else 0], torch.SymInt)):
        return NotImplemented
    x = x.transpose(0, 1) if batch_first else x
    states = [part.chunk(layers) for part in (state if kind == "lstm" else (state,))]
    last = []
    for layer in range(layers):
        own, before = weights[layer * each : (layer + 1) * each], [part[layer] for part in states]
        x = torch.nn.functional.dropout(x, dropout) if drops and layer else x
        x, *after = lstm_layer(x, *before, own) if kind == "lstm" else recurrent_layer(x, *before, own, kind)
        last.append(after)
    y = x.transpose(0, 1) if batch_first else x
    return y, *(torch.cat(parts) for parts in zip(*last, strict=True))
