"""A metric over all batches: its mean, or what it says of itself, with the interval of other draws of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from prepbench.checks import shown
from prepbench.errors import InputError, MetricError, sentence
from prepbench.running.metric_facts import Records, Totals, facts_of, records_of, totals_of

_BATCHES_FOR_SPREAD = 8  # fewer say too little about how batches differ
_DRAWS = 1000
_DRAWS_OF_RECORDS = 200  # each is a whole metric, not a sum
_NUMBERS = 2**23  # that draws hold at once


class Score(Protocol):
    """Accumulates batches into one number."""

    def add(self, output: Any, target: Any, size: int) -> None: ...
    def value(self) -> float: ...
    def spread(self) -> tuple[float, float] | None: ...


class MeanScore:
    """The mean of a metric over samples: each batch is weighted by its size."""

    def __init__(self, metric: Callable[[Any, Any], Any]) -> None:
        self._metric = metric
        self._sums: list[tuple[float, float]] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        self._sums.append((finite_number(self._metric(output, target)) * size, float(size)))

    def value(self) -> float:
        return sum(total for total, _ in self._sums) / sum(count for _, count in self._sums)

    def spread(self) -> tuple[float, float] | None:
        return spread_of(self._sums, lambda sums: sums[:, 0] / sums[:, 1])


class TotalScore:
    """A metric of the sums of all batches."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._watch = None if totals.watch is None else totals.watch()
        self._sums: list[torch.Tensor] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        found = self._totals.sums(output, target)
        sums = (
            found
            if isinstance(found, torch.Tensor)
            else torch.tensor([*map(finite_number, found)], dtype=torch.float64)
        )
        self._sums.append(sums.double())
        if self._watch is not None:
            self._watch.add(output, target)

    def value(self) -> float:
        if self._watch is not None:
            self._watch.check()
        return float(self._totals.score(_stacked(self._sums).sum(0)))

    def spread(self) -> tuple[float, float] | None:
        return spread_of(_stacked(self._sums), self._totals.score)


class RecordsScore:
    """A metric of what is kept of all batches."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._kept: list[Any] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        self._kept.append(self._records.of_batch(output, target))

    def value(self) -> float:
        found = self._records.score(self._kept)
        if math.isnan(found):
            raise MetricError(f"the metric has no value on this data: {self._records.nothing}. Give more data.")
        return found

    def spread(self) -> tuple[float, float] | None:
        if len(self._kept) < _BATCHES_FOR_SPREAD:
            return None
        picks = _picks(len(self._kept), _DRAWS_OF_RECORDS).tolist()
        scores = [self._records.score([self._kept[index] for index in drawn]) for drawn in picks]
        return _interval(torch.tensor(scores, dtype=torch.float64))


def _stacked(sums: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sums of all batches; those of classes that a batch does not have are 0."""
    return torch.nn.utils.rnn.pad_sequence(list(sums), batch_first=True)


def spread_of(
    batches: Sequence[tuple[float, float]] | torch.Tensor, score: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[float, float] | None:
    """Return the interval that holds the scores of 95 % of other draws of as many batches; None for too few batches.

    The batches are drawn again with replacement (the bootstrap percentile interval of B. Efron, 1979), always the
    same draws, so that two candidates on the same data are compared fairly.

    Args:
        batches: two sums of each batch, or a tensor of shape (batches, ...).
        score: the scores of a tensor of shape (draws, 2) or (draws, ...), which holds the sums for each draw.
    """
    if len(batches) < _BATCHES_FOR_SPREAD:
        return None
    sums = torch.as_tensor(batches, dtype=torch.float64)
    picks = _picks(len(sums), _DRAWS)
    at_once = max(1, _NUMBERS // sums.numel())
    return _interval(torch.cat([score(sums[some].sum(1)) for some in picks.split(at_once)]))


def _picks(batches: int, draws: int) -> torch.Tensor:
    return torch.randint(batches, (draws, batches), generator=torch.Generator().manual_seed(0))


def _interval(scores: torch.Tensor) -> tuple[float, float] | None:
    if not bool(torch.isfinite(scores).all()):
        return None
    low, high = torch.quantile(scores, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high


def score_of(metric: Callable[[Any, Any], Any]) -> Score:
    """Return an empty score of a metric, which takes it over all the data as the metric asks for."""
    totals, records = totals_of(metric), records_of(metric)
    if records is not None:
        return RecordsScore(records)
    return MeanScore(metric) if totals is None else TotalScore(totals)


def score_on_all(score: Score, metric: str, what: str) -> float:
    """Return a score over all batches; errors name the metric and what it is of.

    Raises:
        MetricError: these batches have no score.
    """
    try:
        return score.value()
    except InputError as error:
        raise MetricError(f"metric {metric!r} gave no number for {what}: {sentence(error)}") from error


def finite_number(value: Any) -> float:
    """Return ``value`` as a finite float.

    Raises:
        TypeError: it is not one number.
        ValueError: it is NaN or infinite.
    """
    one = value.item() if hasattr(value, "item") and _elements(value) == 1 else value
    if isinstance(one, bool | int | float):
        number = float(one)
        if math.isfinite(number):
            return number
        raise ValueError(f"it returned {number}")
    if _elements(value) is not None:
        raise TypeError(
            f"it returned a {type(value).__name__} of {_elements(value)} elements, shape {tuple(value.shape)}"
        )
    raise TypeError(f"it returned {shown(value)} ({type(value).__name__})" if value is not None else "it returned None")


def metric_name(metric: Any) -> str:
    """Return a readable name of a metric: its own, the function's, through ``functools.partial``, or the class's."""
    facts = facts_of(metric)
    if facts is not None:
        return facts.label
    inner = getattr(metric, "func", metric)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "metric" if name == "<lambda>" else str(name)


def takes_targets(metric: Callable[[Any, Any], Any] | None) -> bool:
    """Return whether data holds a target for each batch; else the first candidate's output is the target."""
    totals = totals_of(metric)
    return metric is not None and not (totals is not None and totals.against_reference)


def explained(error: Exception) -> str:
    """Return what a metric returned instead of a number, or the error it raised."""
    text = str(error).strip().rstrip(".")
    return (
        text
        if isinstance(error, TypeError | ValueError) and text.startswith("it returned")
        else f"{type(error).__name__}: {text}"
    )


def _elements(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    return math.prod(shape) if isinstance(shape, tuple) else None
