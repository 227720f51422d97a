"""The predicted distributions of language models: find the outputs, and compare them with float."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from prepbench.inputs import Sample
from prepbench.objects.compare import Powers, powers
from prepbench.quantize.floors import InFloat, Score
from prepbench.quantize.layer_noise import bounded_decibels
from prepbench.quantize.simulate import as_tuple

_aten = torch.ops.aten
_MULTIPLIES = (_aten.linear.default, _aten.matmul.default, _aten.mm.default, _aten.addmm.default)
# operators that may lie between the last layer and the logits: casts, soft caps, scales, cuts
_PASSES = {
    str(packet)
    for packet in (
        _aten.view, _aten.reshape, _aten.slice, _aten.select, _aten.squeeze, _aten.unsqueeze, _aten.to, _aten._to_copy,
        _aten.mul, _aten.div, _aten.tanh, _aten.clone, _aten.contiguous, _aten.add, _aten.alias, _aten.detach,
    )
}  # fmt: skip


def logits_of(graph: fx.Graph) -> tuple[int, ...]:
    """Return the outputs that predict tokens: a layer gives a number for each row of the table that integers are
    looked up in.

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
        shape[0]
        for node in graph.find_nodes(op="call_function", target=_aten.embedding.default)
        if (shape := _shape(node.args[0])) and isinstance(shape[0], int)
    }
    (output,) = graph.find_nodes(op="output")
    results = output.args[0] if isinstance(output.args[0], tuple | list) else (output.args[0],)
    return tuple(
        index
        for index, value in enumerate(results)
        if isinstance(value, fx.Node) and _width(value) in tables and _is_predicted(value)
    )


def _is_predicted(node: fx.Node) -> bool:
    rows = _width(node)
    for _ in range(20):
        if node.op == "call_function" and node.target in _MULTIPLIES:
            return _width(node) == rows
        is_passed = node.op == "call_module" or str(getattr(node.target, "overloadpacket", "")) in _PASSES
        if not is_passed or not node.all_input_nodes:
            return False
        node = node.all_input_nodes[0]
    return False


def _width(node: fx.Node) -> int | None:
    """Return the last size of a node's result; None where it is dynamic."""
    last = _shape(node)[-1:]
    return last[0] if last and isinstance(last[0], int) else None


def _shape(node: Any) -> tuple[Any, ...]:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if value is None and isinstance(node, fx.Node) and node.op == "call_module" and node.all_input_nodes:
        return _shape(node.all_input_nodes[0])  # an observer
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def divergence(expected: torch.Tensor, found: torch.Tensor) -> tuple[float, int]:
    """Return the Kullback-Leibler divergence in nats, summed over all predictions, and their number.

    Args:
        expected: logits of shape (..., vocabulary).
        found: of the same shape.
    """
    wanted, given = (
        logits.detach().float().reshape(-1, logits.shape[-1]).log_softmax(-1) for logits in (expected, found)
    )
    # an impossible prediction has a probability of 0, and adds nothing
    terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * (wanted - given))
    total = float(terms.sum(dtype=torch.float64))
    return (total if total == total else float("inf")), len(wanted)


# The distance of a model's outputs from those in float, over several samples.


class ScoreSum:
    """The distance of outputs from those in float, summed over samples."""

    def __init__(self, logits: Collection[int] = ()) -> None:
        self._logits = logits
        self._powers: dict[int, Powers] = {}
        self._diverged, self._predictions = 0.0, 0

    def add(self, expected: Any, found: Any) -> None:
        """Add the outputs of one sample."""
        for index, (one, other) in enumerate(zip(as_tuple(expected), as_tuple(found), strict=True)):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self._powers[index] = self._powers.get(index, Powers()) + powers(one, other)
            if index in self._logits:
                total, count = divergence(one, other)
                self._diverged, self._predictions = self._diverged + total, self._predictions + count

    @property
    def score(self) -> Score:
        """Return the SQNR of the worst floating-point output, and the divergence of predictions."""
        found = {index: bounded_decibels(power) for index, power in self._powers.items()}
        divergence = self._diverged / self._predictions if self._predictions else None
        main_first = sorted(found, key=lambda index: (index not in self._logits, index))
        outputs = tuple((index, found[index]) for index in main_first)
        return Score(min(found.values(), default=bounded_decibels(Powers())), divergence, outputs)


def score_of(right: InFloat, samples: Sequence[Sample], run: Callable[[Sample], Sequence[Any]]) -> Score:
    """Return how far what ``run`` returns for the measured samples is from float."""
    total = ScoreSum(right.logits)
    with torch.no_grad():
        for sample, outputs in zip(samples, right.outputs, strict=True):
            total.add(outputs, tuple(run(sample)))
    return total.score
