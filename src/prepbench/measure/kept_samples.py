"""What is kept of the data while candidates are scored: for each the rows on which it is farthest from the first one.

Of all data only some rows stay, and of these no more than a megabyte each, so that the data may be larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import described
from prepbench.inputs import named_leaves
from prepbench.measure import metrics
from prepbench.measure.batches import Batch
from prepbench.measure.distances import (
    TOKENS,
    Measure,
    measure_for,
    numbers_text,
    output_text,
    predicted_tokens,
    row_of,
    rows_in,
)
from prepbench.measure.generation import Generation
from prepbench.measure.logits import IGNORED_CLASS, scores_and_classes

KEPT = 16
"""How many rows are kept for each candidate."""

_LIMIT = 1_000_000  # bytes of one input of one row
_CLASSES = 2000
_REPR = 200


@dataclass(frozen=True)
class SampleInput:
    """One input of one row.

    Attributes:
        name: the parameter of forward, with the path inside it.
        shape: shape of the row; None of what is no tensor.
        values: a copy on the CPU; of large ones every so many entries of the last two dimensions, or the first ones.
            None of what is no tensor.
        described: what it is, in short, where it is no tensor.
        is_whole: whether ``values`` are all of it.
    """

    name: str
    shape: tuple[int, ...] | None
    values: torch.Tensor | None = field(repr=False)
    described: str = ""
    is_whole: bool = True

    @property
    def text(self) -> str:
        """What it is, in short."""
        if self.values is None:
            return self.described
        dtype = str(self.values.dtype).removeprefix("torch.")
        return f"{dtype} of shape {self.shape}: {numbers_text(self.values)}"


@dataclass(frozen=True)
class WorstSample:
    """A row of the data, and what two candidates made of it.

    Attributes:
        batch: index of the batch in the data.
        row: index in the batch; None where the batch is one sample.
        distance: how far the outputs are apart, in the unit of the table.
        expected: the first candidate's output in short.
        found: the other candidate's output in short.
        target: the target in short; empty without targets.
        inputs: what the model was given.
        tokens: the tokens that the first candidate and the other one wrote or predicted, where these are tokens.
    """

    batch: int
    row: int | None
    distance: float
    expected: str
    found: str
    target: str
    inputs: tuple[SampleInput, ...]
    tokens: tuple[tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True)
class KeptSamples:
    """What a comparison knows about single samples.

    Attributes:
        measure: what the distances are, with their unit.
        worst: for each candidate but the first the farthest rows, the farthest first.
        reasons: why nothing is known of a candidate.
        counts: for each candidate how often each class (row) was predicted as each (column), where the metric is
            accuracy.
        no_counts: why there are none.
    """

    measure: str = ""
    worst: Mapping[str, tuple[WorstSample, ...]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    no_counts: str = ""


class Keeper:
    """Keeps the farthest rows of each candidate, batch after batch.

    Args:
        metric: what the candidates are scored with; it decides how rows are compared.
        caller: the candidate whose forward names the inputs.
    """

    def __init__(self, metric: Any, caller: Callable[..., Any]) -> None:
        self._metric = metric
        self._caller = caller
        self._measure: Measure | None = None
        self._worst: dict[str, list[tuple[float, WorstSample]]] = {}
        self._reasons: dict[str, str] = {}
        self._counts: dict[str, torch.Tensor] = {}
        self._no_counts = "" if metric is metrics.accuracy else "the metric is another one"
        self._inputs: dict[int | None, tuple[SampleInput, ...]] = {}
        self._leaves: list[tuple[str, Any]] = []
        self._batch = -1

    def add(self, name: str, output: Any, reference: Any, batch: Batch) -> None:
        """Look at the output of a candidate; the first one's is the reference."""
        if not self._no_counts:
            self._count(name, output, batch.target)
        if output is reference or name in self._reasons:
            return
        worst = self._worst.setdefault(name, [])
        try:
            self._keep(worst, output, reference, batch)
        except (ValueError, TypeError, RuntimeError, IndexError) as error:
            # any structure may come out of somebody's model; scores do not depend on what is kept
            worst.clear()
            self._reasons[name] = str(error).strip().rstrip(".") or type(error).__name__

    def kept(self) -> KeptSamples:
        """What was found so far."""
        shown = self._measure.shown if self._measure else float
        worst = {
            name: tuple(replace(row, distance=shown(distance)) for distance, row in rows)
            for name, rows in self._worst.items()
        }
        label = self._measure.label if self._measure else ""
        return KeptSamples(label, worst, dict(self._reasons), dict(self._counts), self._no_counts)

    def _keep(self, worst: list[tuple[float, WorstSample]], output: Any, reference: Any, batch: Batch) -> None:
        if self._measure is None:
            self._measure = measure_for(self._metric, reference, batch.target)
        first = _first_tensor(batch)
        if first is not None and not first.numel():
            return
        rows = rows_in(first, reference, batch.target)
        distances = self._measure.distances(output, reference, batch.target, rows)
        if not distances.numel():
            return
        values, places = distances.topk(min(KEPT, distances.numel()))  # NaN is larger than all else
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            distance = math.inf if math.isnan(value) else value
            if distance <= 0 or (len(worst) == KEPT and distance <= worst[-1][0]):
                break
            row = None if rows is None else place
            sample = WorstSample(
                batch.sample.index,
                row,
                distance,
                output_text(reference, batch.target, self._measure, rows, row),
                output_text(output, batch.target, self._measure, rows, row),
                _target_text(batch.target, rows, row),
                self._inputs_of(batch, rows, row),
                self._tokens(reference, output, batch.target, rows, row),
            )
            worst.append((distance, sample))
            worst.sort(key=lambda one: -one[0])  # rows that are equally far stay in the order of the data
            del worst[KEPT:]

    def _tokens(
        self, reference: Any, output: Any, target: Any, rows: int | None, row: int | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        if self._measure is None or not self._measure.predicts:
            return None
        expected, found = (predicted_tokens(each, target, rows, row) for each in (reference, output))
        return (expected, found) if expected and found else None

    def _inputs_of(self, batch: Batch, rows: int | None, row: int | None) -> tuple[SampleInput, ...]:
        if self._batch != batch.sample.index:
            self._inputs, self._batch = {}, batch.sample.index
            self._leaves = named_leaves(self._caller, batch.sample)
        if row not in self._inputs:  # candidates are often farthest on the same rows
            self._inputs[row] = tuple(_input(name, leaf, rows, row) for name, leaf in self._leaves)
        return self._inputs[row]

    def _count(self, name: str, output: Any, target: Any) -> None:
        try:
            scores, classes = scores_and_classes(output, target)
        except ValueError as error:  # accuracy has failed already where these do not fit
            self._no_counts = str(error)
            return
        predicted = scores.argmax(-1) if scores.dim() > classes.dim() else scores
        counted = classes != IGNORED_CLASS
        wanted, given = classes[counted].flatten().long().cpu(), predicted[counted].flatten().long().cpu()
        number = scores.shape[-1] if scores.dim() > classes.dim() else int(max(wanted.max(), given.max())) + 1
        if number > _CLASSES:
            self._count_no_more(f"there are {number} classes, and they are counted for up to {_CLASSES}")
            return
        counts = self._counts.get(name, torch.zeros(0, 0, dtype=torch.long))
        if len(counts) < number:
            counts = torch.nn.functional.pad(counts, (0, number - len(counts), 0, number - len(counts)))
        try:
            counts.view(-1).index_add_(0, wanted * len(counts) + given, torch.ones_like(wanted))
        except (IndexError, RuntimeError):
            self._count_no_more(f"there are targets outside of the classes 0 to {number - 1}")
            return
        self._counts[name] = counts

    def _count_no_more(self, reason: str) -> None:
        self._counts.clear()
        self._no_counts = reason


def _first_tensor(batch: Batch) -> torch.Tensor | None:
    leaves = pytree.tree_leaves((batch.sample.args, batch.sample.kwargs))
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0), None)


def _target_text(target: Any, rows: int | None, row: int | None) -> str:
    if target is None:
        return ""
    if isinstance(target, torch.Tensor):
        return numbers_text(row_of(target, rows, row))
    if isinstance(target, list | tuple) and row is not None and len(target) == rows:
        return described(target[row])[:_REPR]
    return described(target)[:_REPR]


def _input(name: str, leaf: Any, rows: int | None, row: int | None) -> SampleInput:
    if not isinstance(leaf, torch.Tensor):
        return SampleInput(name, None, None, described(leaf)[:_REPR])
    own = row_of(leaf.detach(), rows, row)
    thinned = _thinned(own)
    return SampleInput(name, tuple(own.shape), thinned.cpu().clone(), is_whole=thinned.shape == own.shape)


def _thinned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is small enough, else every so many entries of an image, or its first entries."""
    room = max(_LIMIT // tensor.element_size(), 1)
    if tensor.numel() <= room:
        return tensor
    if tensor.dim() < 3:
        return tensor.flatten()[:room]
    step = math.ceil(math.sqrt(tensor.numel() / room))
    # channels are few: the two longest dimensions lose entries
    longest = sorted(range(tensor.dim()), key=lambda dim: -tensor.shape[dim])[:2]
    for dim in longest:
        tensor = tensor[tuple(slice(None, None, step if dim == each else 1) for each in range(tensor.dim()))]
    return tensor if tensor.numel() <= room else tensor.flatten()[:room]


def kept_prompts(workload: Generation, tokens: Mapping[str, list[torch.Tensor]]) -> KeptSamples:
    """The prompts after which candidates write other tokens than the first one, the earliest difference first.

    Args:
        workload: the prompts.
        tokens: for each candidate the new tokens of each batch, of shape (batch, new tokens).
    """
    (_, reference), *others = tokens.items()
    worst = {}
    for name, made in others:
        found = []
        for index, (prompt, expected, given) in enumerate(zip(workload.batches, reference, made, strict=True)):
            differs = expected != given
            for row in differs.any(1).nonzero().flatten().tolist():
                first = int(differs[row].int().argmax())
                ids = prompt.ids[row][prompt.mask[row] != 0]
                shown = SampleInput("prompt", tuple(ids.shape), _thinned(ids).clone())
                ours, theirs = (" ".join(map(str, each[row][first:][:TOKENS].tolist())) for each in (expected, given))
                wrote = (tuple(expected[row].tolist()), tuple(given[row].tolist()))
                found.append(WorstSample(index, row, float(first), ours, theirs, "", (shown,), wrote))
        worst[name] = tuple(sorted(found, key=lambda one: one.distance)[:KEPT])
    return KeptSamples("equal tokens before they differ", worst, no_counts="tokens are generated")
