"""Recurrent layers as the operators of ONNX, which order the gates otherwise than torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# where ONNX has each of torch's gates
_LSTM = (0, 3, 1, 2)
_GRU = (1, 0, 2)
# those that an LSTM has anyway; only one that computes in integers names them
DYNAMIC_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")
_ACTIVATIONS = {"rnn_tanh": "Tanh", "rnn_relu": "Relu"}


def dynamic_lstm_layer(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any = None) -> Any:
    """``prepbench::dynamic_lstm_layer``, as an LSTM that ``pack_recurrent_weights`` recognises by its activations."""
    return lstm_layer(x, h, c, weights, lengths, dynamic=True)


def lstm_layer(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any = None, *, dynamic: bool = False) -> Any:
    """``prepbench::lstm_layer``."""
    size, directions = c.shape[2], h.shape[0]
    if len(weights) // directions in (3, 5):
        return _projected(x, h, c, weights, _integers(lengths))
    operands = (x, *_weights(weights, directions, _LSTM), _integers(lengths), h, c)
    settings: dict[str, Any] = {"hidden_size": size, "direction": _direction(directions)}
    if dynamic:
        settings["activations"] = [*DYNAMIC_ACTIVATIONS] * directions
    y, h_last, c_last = _operators().LSTM(*operands, **settings)
    return _steps(y, directions * size), h_last, c_last


def recurrent_layer(x: Any, h: Any, weights: Sequence[Any], kind: str, lengths: Any = None) -> Any:
    """``prepbench::recurrent_layer``."""
    onnx = _operators()
    directions = h.shape[0]
    settings = {"hidden_size": h.shape[2], "direction": _direction(directions)}
    if kind == "gru":
        operands = (x, *_weights(weights, directions, _GRU), _integers(lengths), h)
        y, h_last = onnx.GRU(*operands, linear_before_reset=1, **settings)
    else:
        operands = (x, *_weights(weights, directions, (0,)), _integers(lengths), h)
        y, h_last = onnx.RNN(*operands, activations=[_ACTIVATIONS[kind]] * directions, **settings)
    return _steps(y, directions * h.shape[2]), h_last


def _projected(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any) -> Any:
    """An LSTM whose output is projected, which ONNX does not have.

    Its states before the projection are those of a plain LSTM whose recurrent weights have the projection inside. What
    the given state adds to the first step comes in as a further input, which is zero at the others.
    """
    onnx = _operators()
    first, each = onnx.Constant(value_ints=[0]), len(weights) // h.shape[0]
    found = []
    for place in range(h.shape[0]):
        at_input, at_state, *biases, projection = weights[place * each : (place + 1) * each]
        own = (onnx.Concat(at_input, at_state, axis=1), onnx.MatMul(at_state, projection), *biases)
        y, h_last, c_last = onnx.LSTM(
            onnx.Concat(x, _at_first_step(x, h, place, lengths), axis=2),
            *_weights(own, 1, _LSTM), lengths, None, onnx.Slice(c, [place], [place + 1], first),
            hidden_size=c.shape[2], direction="reverse" if place else "forward",
        )  # fmt: skip
        back = onnx.Transpose(projection, perm=[1, 0])
        steps = onnx.MatMul(onnx.Squeeze(y, onnx.Constant(value_ints=[1])), back)
        found.append((steps, onnx.MatMul(h_last, back), c_last))
    return tuple(
        onnx.Concat(*parts, axis=axis) for parts, axis in zip(zip(*found, strict=True), (2, 0, 0), strict=True)
    )


def _at_first_step(x: Any, h: Any, place: int, lengths: Any) -> Any:
    """The state of one direction at the step that it comes to first, zeros at all others."""
    onnx = _operators()
    zero, one = onnx.Constant(value_int=0), onnx.Constant(value_int=1)
    count = onnx.Squeeze(onnx.Shape(x, start=0, end=1))
    steps = onnx.Unsqueeze(onnx.Range(zero, count, one), onnx.Constant(value_ints=[1, 2]))
    first = zero
    if place:
        ends = count if lengths is None else onnx.Cast(onnx.Unsqueeze(lengths, onnx.Constant(value_ints=[0, 2])), to=7)
        first = onnx.Sub(ends, one)
    own = onnx.Slice(h, [place], [place + 1], onnx.Constant(value_ints=[0]))
    return onnx.Where(onnx.Equal(steps, first), own, onnx.CastLike(onnx.Constant(value_float=0.0), own))


def _integers(lengths: Any) -> Any:
    """Lengths as the operators take them; None for none."""
    return None if lengths is None else _operators().Cast(lengths, to=6)


def _operators() -> Any:
    from onnxscript import opset21

    return opset21


def _direction(directions: int) -> str:
    return "bidirectional" if directions == 2 else "forward"


def _weights(weights: Sequence[Any], directions: int, gates: Sequence[int]) -> list[Any]:
    """The weights of the input, those of the state, and the biases of both or None, each with a dim of directions."""
    onnx = _operators()
    first = onnx.Constant(value_ints=[0])
    each = len(weights) // directions
    rows = [
        [_ordered(weight, gates) for weight in weights[place * each : (place + 1) * each]]
        for place in range(directions)
    ]
    found = [onnx.Concat(*(onnx.Unsqueeze(row[i], first) for row in rows), axis=0) for i in range(2)]
    if each == 2:
        return [*found, None]
    biases = [onnx.Unsqueeze(onnx.Concat(row[2], row[3], axis=0), first) for row in rows]
    return [*found, onnx.Concat(*biases, axis=0)]


def _ordered(weight: Any, gates: Sequence[int]) -> Any:
    onnx = _operators()
    if len(gates) == 1:
        return weight
    parts = onnx.Split(weight, axis=0, num_outputs=len(gates))
    return onnx.Concat(*(parts[gate] for gate in gates), axis=0)


def _steps(y: Any, columns: int) -> Any:
    """From (length, directions, batch, size) to (length, batch, columns); any of the first may be 0."""
    onnx = _operators()
    return onnx.Reshape(onnx.Transpose(y, perm=[0, 2, 1, 3]), onnx.Constant(value_ints=[0, 0, columns]))
