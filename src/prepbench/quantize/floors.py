"""How exact a quantized model and its layers must be, which depends on the bits that were asked for.

Fewer bits are named by who accepts less: a layer in 4 bits is left in float only where it is ruined. What predicts
tokens is judged by what it predicts. The logits of a model may be far from float and say the same, above all where they
say little, as with random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from prepbench.running.sqnr import decibels_text
from prepbench.settings import CompileOptions, QuantizationSettings

# by bits of weights: SQNR of a layer and of the model in dB, divergence of predictions in nats
_LAYER = {4: 5.0, 8: 10.0}
_MODEL = {4: 10.0, 8: 20.0}
_DIVERGENCE = {4: 0.5, 8: 0.05}

# dB that a few measured samples must lie above the floor for the whole model, so that others do too
MARGIN = 1.0

_aten = torch.ops.aten
_MULTIPLIES = (_aten.linear.default, _aten.matmul.default, _aten.mm.default, _aten.addmm.default)
# what logits pass between the last layer and the output: casts, soft caps, scales, cuts
_PASSES = {
    str(packet)
    for packet in (
        _aten.view, _aten.reshape, _aten.slice, _aten.select, _aten.squeeze, _aten.unsqueeze, _aten.to, _aten._to_copy,
        _aten.mul, _aten.div, _aten.tanh, _aten.clone, _aten.contiguous, _aten.add, _aten.alias, _aten.detach,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """How far a model is from float on a few samples.

    Attributes:
        sqnr: of its worst output, in dB.
        divergence: of the distributions that it predicts from those in float, in nats; None if it predicts none.
    """

    sqnr: float
    divergence: float | None = None

    def __str__(self) -> str:
        far = f"{decibels_text(self.sqnr)} dB"
        return far if self.divergence is None else f"a divergence of {self.divergence:.3g} nats"


@dataclass(frozen=True)
class Floors:
    """What is required.

    Attributes:
        options: what the user said about it.
        bits: the fewest bits of weights that were named for a layer.
    """

    options: CompileOptions
    bits: int = 8

    @classmethod
    def of(cls, options: CompileOptions, settings: Sequence[QuantizationSettings]) -> Floors:
        """Those of a model whose layers have these settings."""
        return cls(options, min(map(named_bits, settings), default=8))

    def layer(self, settings: QuantizationSettings) -> float:
        """The SQNR in dB below which a layer stays in float."""
        floor = self.options.layer_sqnr_floor
        return _LAYER[named_bits(settings)] if floor is None else floor

    def is_enough(self, score: Score) -> bool:
        """Whether a model is exact enough, also on samples that were not measured."""
        if score.divergence is not None and self.options.model_sqnr_floor is None:
            return score.divergence <= _DIVERGENCE[self.bits]
        return score.sqnr >= self._model + MARGIN

    def why_not(self, before: Score, after: Score) -> str:
        """Why layers went to float, in words."""
        if before.divergence is not None and self.options.model_sqnr_floor is None:
            return (
                f"the model's predictions would be at {before} from float, above the limit of "
                f"{_DIVERGENCE[self.bits]:g}; with this layer and others in float they are at {after}"
            )
        return (
            f"the model's output would be at {before.sqnr:.1f} dB, below the floor of {self._model:g} dB with "
            f"{MARGIN:g} to spare; with this layer and others in float it is at {after.sqnr:.1f} dB"
        )

    @property
    def _model(self) -> float:
        floor = self.options.model_sqnr_floor
        return _MODEL[self.bits] if floor is None else floor


def named_bits(settings: QuantizationSettings) -> int:
    """The bits of weights that the settings name; of several, among which we may choose, the most."""
    bits = settings.weights_num_bits
    return bits if isinstance(bits, int) else max(bits)


def logits_of(graph: fx.Graph) -> tuple[int, ...]:
    """The outputs that predict tokens: a layer gives a number for each row of the table that integers are looked up in.

    Example:
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.table, self.head = torch.nn.Embedding(50, 4), torch.nn.Linear(4, 50)
        ...     def forward(self, ids):
        ...         return self.table(ids), self.head(self.table(ids))
        >>> logits_of(torch.export.export(Model(), (torch.zeros(2, 3).long(),)).graph)
        (1,)
    """
    tables = {
        _shape(node.args[0])[0]
        for node in graph.find_nodes(op="call_function", target=_aten.embedding.default)
        if _shape(node.args[0])
    }
    (output,) = graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
    return tuple(
        index
        for index, value in enumerate(results)
        if isinstance(value, fx.Node) and _shape(value)[-1:] and _shape(value)[-1] in tables and _is_predicted(value)
    )


def _is_predicted(node: fx.Node) -> bool:
    rows = _shape(node)[-1]
    for _ in range(20):
        if node.op == "call_function" and node.target in _MULTIPLIES:
            return bool(_shape(node)[-1:] == (rows,))
        is_passed = node.op == "call_module" or str(getattr(node.target, "overloadpacket", "")) in _PASSES
        if not is_passed or not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
    return False


def _shape(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if value is None and isinstance(node, fx.Node) and node.op == "call_module" and node.all_input_nodes:
        return _shape(node.all_input_nodes[0])  # an observer
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def divergence(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, int]:
    """The Kullback-Leibler divergence in nats, added over all predictions, and how many there are.

    Args:
        expected: logits of shape (..., vocabulary).
        found: of the same shape.
    """
    wanted, given = (logits.detach().flatten(0, -2).float().log_softmax(-1) for logits in (expected, found))
    # what cannot be predicted has a probability of 0, and says nothing
    terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * (wanted - given))
    total = float(terms.sum(dtype=torch.float64))
    return (total if total == total else float("inf")), len(wanted)
