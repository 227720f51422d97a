"""LSTM, GRU and RNN over sequences of dynamic length: one operator per layer, instead of unrolled steps.

While torch exports a recurrent layer it goes through its steps one by one, which fixes their number. Where that is
dynamic, ``torch.lstm`` and its like become the operators below, which have a counterpart in ONNX. So do layers with
projections, which torch writes to ONNX wrongly, and layers with dropout in between that is active: that becomes an
operation of its own. Packed sequences are padded around each layer, which gets their lengths. Where the number of steps
is fixed, targets that have an operator for a layer ask for these, too (:func:`layers_of_torch`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_packed_sequence
from torch.overrides import TorchFunctionMode

from prepbench._torch_compat.operators import RNN_FUNCTIONS
from prepbench._torch_compat.sizes import assume
from prepbench.patching import patched_here

_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_Between = Callable[[torch.Tensor], torch.Tensor]  # runs between two layers


@torch.library.custom_op("prepbench::lstm_layer", mutates_args=())
def lstm_layer(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    weights: Sequence[torch.Tensor],
    lengths: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run one layer of ``torch.lstm``, in one direction or both.

    Args:
        x: of shape (length, batch, input size).
        h: of shape (directions, batch, output size), before the first step.
        c: of shape (directions, batch, hidden size), the same for the cell.
        weights: for each direction those of the input, of the state, then the biases of both, if there are any, and
            that of the projection from hidden to output size, if there is one.
        lengths: of shape (batch,), where sequences end before the last step; what comes after is not looked at, and
            the states there are 0.

    Returns:
        The states of all steps, of shape (length, batch, directions * output size), and the last ``h`` and ``c``.
    """
    y, h_last, c_last = _lstm_layer(x, h, c, weights, lengths)
    return _own(y), _own(h_last), _own(c_last)


def _lstm_layer(x: Any, h: Any, c: Any, weights: Sequence[Any], lengths: Any = None) -> Any:
    return _run(RNN_FUNCTIONS.lstm, x, (h, c), list(weights), _settings(h, weights), lengths)


@lstm_layer.register_fake
def lstm_results(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    weights: Sequence[torch.Tensor],
    lengths: torch.Tensor | None = None,
) -> Any:
    """Return fake results of :func:`lstm_layer`."""
    return x.new_empty(_steps(x, h)), torch.empty_like(h), torch.empty_like(c)


@torch.library.custom_op("prepbench::recurrent_layer", mutates_args=())
def recurrent_layer(
    x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], kind: str, lengths: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run :func:`lstm_layer` for layers without a cell: ``"gru"``, ``"rnn_tanh"`` or ``"rnn_relu"``."""
    y, h_last = _recurrent_layer(x, h, weights, kind, lengths)
    return _own(y), _own(h_last)


def _recurrent_layer(x: Any, h: Any, weights: Sequence[Any], kind: str, lengths: Any = None) -> Any:
    return _run(getattr(RNN_FUNCTIONS, kind), x, h, list(weights), _settings(h, weights), lengths)


@recurrent_layer.register_fake
def _(
    x: torch.Tensor, h: torch.Tensor, weights: Sequence[torch.Tensor], kind: str, lengths: torch.Tensor | None = None
) -> Any:
    return x.new_empty(_steps(x, h)), torch.empty_like(h)


def _run(function: Any, x: torch.Tensor, state: Any, weights: Any, settings: Sequence[Any], lengths: Any) -> Any:
    if lengths is None:
        return function(x, state, weights, *settings)
    order = lengths.argsort(descending=True, stable=True).to(x.device)
    back = order.argsort()
    state = [part.index_select(1, order) for part in (state if isinstance(state, tuple) else (state,))]
    data, sizes = RNN_FUNCTIONS._pack_padded_sequence(x.index_select(1, order), lengths.cpu()[order.cpu()], False)
    y, *last = function(data, sizes, state if len(state) == 2 else state[0], weights, *settings[:-1])
    padded, _ = RNN_FUNCTIONS._pad_packed_sequence(y, sizes, False, 0.0, len(x))
    return [part.index_select(1, back) for part in (padded, *last)]


def _settings(h: torch.Tensor, weights: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """Return the settings: biases, layers, dropout, training, bidirectional, batch first."""
    return len(weights) >= 4 * len(h), 1, 0.0, False, len(h) == 2, False


def _steps(x: torch.Tensor, h: torch.Tensor) -> tuple[Any, ...]:
    return x.shape[0], x.shape[1], h.shape[0] * h.shape[2]


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a result, because operators must not return shared memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


# operator -> a function that computes the same, through which gradients go back
WITH_GRADIENTS: dict[Any, Callable[..., Any]] = {
    torch.ops.prepbench.lstm_layer.default: _lstm_layer,
    torch.ops.prepbench.recurrent_layer.default: _recurrent_layer,
}

# operator -> index of its weights
RECURRENT: dict[Any, int] = {torch.ops.prepbench.lstm_layer.default: 3, torch.ops.prepbench.recurrent_layer.default: 2}


# torch's operators over a fixed number of steps, and whose names for our kinds
_OF_TORCH = {getattr(torch.ops.aten, kind).input: kind for kind in _KINDS}


def layers_of_torch() -> dict[Any, Callable[..., Any]]:
    """Return for each recurrent operator of torch a function that runs one of the operators of this file per layer.

    So targets with an operator for a layer keep it, and each layer has weights of its own.
    """
    return {target: functools.partial(_split, kind) for target, kind in _OF_TORCH.items()}


class _Options(NamedTuple):
    """What torch's recurrent functions take behind the weights."""

    has_biases: bool
    layers: int
    dropout: float
    training: bool
    both_directions: bool
    batch_first: bool = False

    @property
    def drops(self) -> bool:
        """Whether dropout between layers is active."""
        return self.training and self.dropout > 0 and self.layers > 1


def _split(kind: str, x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor], *rest: Any) -> Any:
    """Run an operator of torch layer by layer; ``NotImplemented`` where dropout between layers is active."""
    options = _Options(*rest)
    if options.drops or x.ndim != 3:
        return NotImplemented
    return _in_order(kind, x, state, weights, options, lambda x: x)


def has_recurrent_layers(program: torch.export.ExportedProgram) -> bool:
    """Return whether a program has one of the operators of this file."""
    return any(_is_recurrent(node) for node in program.graph.nodes)


def has_lengths(node: torch.fx.Node) -> bool:
    """Return whether a node is one of these operators, over packed sequences."""
    return _is_recurrent(node) and len(node.args) > 4 and node.args[4] is not None


def matrices(count: int, directions: int) -> list[int]:
    """Return which of the ``count`` weights of one of these operators are matrices.

    Example:
        >>> matrices(8, 2)
        [0, 1, 4, 5]
    """
    each = count // directions
    own = [0, 1, *([each - 1] if each % 2 else [])]
    return [direction * each + place for direction in range(directions) for place in own]


def _is_recurrent(node: torch.fx.Node) -> bool:
    return node.target in RECURRENT


class RecurrentLayers(TorchFunctionMode):
    """Turn recurrent layers that torch cannot export into operators during the block; also packed ones."""

    def __init__(self) -> None:
        super().__init__()
        packings = self._packings = Packings()
        self._own: dict[tuple[str, int], Callable[..., Any]] = {
            **{(name, 9): functools.partial(self._run, name) for name in _KINDS},
            ("_pack_padded_sequence", 3): packings.pack,
            ("_pad_packed_sequence", 5): packings.pad,
        }

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter a block with this mode, in which torch's layers do not read the batch size of packed sequences."""
        with ExitStack() as stack:
            for kind in (torch.nn.RNNBase, torch.nn.LSTM):
                check = without_packed_checks(kind.check_forward_args)
                stack.enter_context(patched_here(kind, "check_forward_args", check))
            stack.enter_context(self)
            yield

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, result = getattr(func, "__name__", ""), NotImplemented
        if func is torch.Tensor.__getitem__:
            result = self._packings.first_batch_size(*args)
        elif func is torch.Tensor.size:
            result = self._packings.size(*args)
        elif not kwargs and (name, len(args)) in self._own and getattr(RNN_FUNCTIONS, name) == func:
            result = self._own[name, len(args)](*args)
        return func(*args, **(kwargs or {})) if result is NotImplemented else result

    def _run(self, kind: str, x: Any, second: Any, third: Any, *rest: Any) -> Any:
        """Run a recurrent function, whose second argument is the state, or the lengths of a packed sequence."""
        packing = self._packings.find(second)
        if packing is not None:
            return _packed(kind, x, packing, third, *rest)
        if type(rest[0]) is not bool or x.ndim != 3:  # a sequence that was packed elsewhere, or without a batch
            return NotImplemented
        return _in_layers(kind, x, second, third, *rest)


def _in_layers(kind: str, x: Any, state: Any, weights: Any, *rest: Any) -> Any:
    """Run a recurrent function as one operator per layer; ``NotImplemented`` for calls that stay unchanged."""
    options = _Options(*rest)
    directions, each = 2 if options.both_directions else 1, 5 if options.has_biases else 3
    projects = len(weights) == options.layers * directions * each
    if not (options.drops or projects or isinstance(x.shape[1 if options.batch_first else 0], torch.SymInt)):
        return NotImplemented
    return _in_order(kind, x, state, weights, options, lambda x: _dropped(x, options.dropout) if options.drops else x)


def _in_order(
    kind: str, x: torch.Tensor, state: Any, weights: Sequence[torch.Tensor], options: _Options, between: _Between
) -> Any:
    """Run layers on sequences with the batch or the time first, and return the states of all steps in that order."""
    x = x.transpose(0, 1) if options.batch_first else x
    y, *last = _layers(kind, x, state, weights, options.layers, None, between)
    return y.transpose(0, 1) if options.batch_first else y, *last


def _packed(kind: str, data: Any, packing: Packing, state: Any, weights: Any, *rest: Any) -> Any:
    """Run a packed sequence, which is padded for the layers and packed again."""
    options = _Options(*rest)

    def between(x: torch.Tensor) -> torch.Tensor:
        return packing.pad(_dropped(packing.pack(x), options.dropout)) if options.drops else x

    y, *last = _layers(kind, packing.pad(data), state, weights, options.layers, packing.lengths, between)
    return packing.pack(y), *last


def _layers(
    kind: str,
    x: torch.Tensor,
    state: Any,
    weights: Any,
    layers: int,
    lengths: torch.Tensor | None,
    between: _Between,
) -> list[torch.Tensor]:
    """Return the states of all steps and the last one or two; ``between`` runs between layers."""
    each, last = len(weights) // layers, []
    states = [part.chunk(layers) for part in (state if kind == "lstm" else (state,))]
    for layer in range(layers):
        own, before = weights[layer * each : (layer + 1) * each], [part[layer] for part in states]
        x = between(x) if layer else x
        if kind == "lstm":
            x, *after = lstm_layer(x, *before, own, lengths)
        else:
            x, *after = recurrent_layer(x, *before, own, kind, lengths)
        last.append(after)
    return [x, *(torch.cat(parts) for parts in zip(*last, strict=True))]


def _dropped(x: torch.Tensor, share: float) -> torch.Tensor:
    return torch.nn.functional.dropout(x, share)


# Packed sequences under torch.export: packing, padding, and the sizes that recurrent layers need.
#
# torch packs and pads in C++, with sizes that it reads from the lengths. Here the same is written with operators whose
# result may have a size that depends on data.


@dataclass(frozen=True)
class Packing:
    """The layout of a packed sequence relative to the padded batch that it was made from.

    Attributes:
        batch_sizes: the attribute of a ``PackedSequence``.
        lengths: of shape (batch,).
        mask: of shape (time, batch), true where there is a row.
        rows: the indices of these in the flattened mask.
        longest: the largest length, a size that depends on data.
    """

    batch_sizes: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor
    rows: torch.Tensor
    longest: Any

    @classmethod
    def of(cls, lengths: torch.Tensor, time: Any) -> Packing:
        """Return the packing of a batch with ``time`` steps."""
        longest = lengths.max().item()
        assume(longest >= 1)
        assume(longest <= time)
        mask = lengths > torch.arange(time).unsqueeze(1)
        return cls(mask.sum(1)[:longest], lengths, mask, mask.flatten().nonzero().squeeze(1), longest)

    def pack(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the rows of a batch of shape (time, batch, ...)."""
        return padded.flatten(0, 1).index_select(0, self.rows.to(padded.device))

    def pad(self, data: torch.Tensor, padding: float = 0.0) -> torch.Tensor:
        """Return the batch of shape (time, batch, ...) with these rows."""
        place = (self.mask.flatten().cumsum(0) - 1).clamp(min=0).to(data.device)
        padded = data.index_select(0, place).unflatten(0, tuple(self.mask.shape))
        mask = self.mask.to(data.device).reshape(*self.mask.shape, *[1] * (data.ndim - 1))
        return torch.where(mask, padded, padding)

    def padded_to(self, total: Any, data: torch.Tensor, padding: float) -> torch.Tensor:
        """Return the padded batch with ``total`` steps."""
        padded = self.pad(data, padding)
        if _expression(total) == _expression(padded.shape[0]):
            return padded
        padded = padded[: self.longest]
        if _expression(total) == _expression(self.longest):
            return padded
        further = padded.new_full((total - self.longest, *padded.shape[1:]), padding)
        return torch.cat([padded, further])


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


class Packings:
    """The packings made during one export, found by their ``batch_sizes``."""

    def __init__(self) -> None:
        self._known: dict[int, Packing] = {}

    def find(self, batch_sizes: Any) -> Packing | None:
        """Return the packing that these batch sizes belong to."""
        found = self._known.get(id(batch_sizes))
        return found if found is not None and found.batch_sizes is batch_sizes else None

    def pack(self, x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Implement ``torch._VF._pack_padded_sequence``."""
        x = x.transpose(0, 1) if batch_first else x
        packing = Packing.of(lengths, x.shape[0])
        self._known[id(packing.batch_sizes)] = packing
        return packing.pack(x), packing.batch_sizes

    def pad(self, data: torch.Tensor, batch_sizes: Any, batch_first: bool, padding: float, total: Any) -> Any:
        """Implement ``torch._VF._pad_packed_sequence``; ``NotImplemented`` for sequences that were packed elsewhere."""
        packing = self.find(batch_sizes)
        if packing is None:
            return NotImplemented
        padded = packing.padded_to(total, data, padding)
        return padded.transpose(0, 1) if batch_first else padded, packing.lengths

    def size(self, batch_sizes: Any, dim: Any = None) -> Any:
        """Return ``batch_sizes.size(0)``, which is the largest length."""
        packing = self.find(batch_sizes)
        if packing is None or dim != 0:
            return NotImplemented
        assume_total_length(packing.longest)
        return packing.longest

    def first_batch_size(self, batch_sizes: Any, index: Any = None) -> Any:
        """Return ``batch_sizes[0]``, which is the batch size; ``NotImplemented`` for all other items and tensors."""
        packing = self.find(batch_sizes)
        return NotImplemented if packing is None or index != 0 else packing.mask.shape[1]


def assume_total_length(longest: Any) -> None:
    """Assume, while ``pad_packed_sequence(total_length=...)`` compares it, that no sequence is longer.

    torch raises otherwise, and so does a later check.
    """
    caller = inspect.currentframe()
    while caller is not None and caller.f_code is not pad_packed_sequence.__code__:
        caller = caller.f_back
    total = None if caller is None else caller.f_locals["total_length"]
    if total is not None and isinstance(longest, torch.SymInt):
        assume(longest <= total)


def without_packed_checks(original: Callable[..., None]) -> Callable[..., None]:
    """Replace ``check_forward_args`` of recurrent layers, which would specialise the batch size of packed sequences."""

    def check(self: Any, input: Any, hidden: Any, batch_sizes: Any) -> None:
        if batch_sizes is None:
            original(self, input, hidden, batch_sizes)

    return check
