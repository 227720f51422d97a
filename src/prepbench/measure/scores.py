"""Run the candidates on the data and score each. Models and data are not changed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.generators import Draws
from prepbench.checks import shown
from prepbench.errors import InputError, MetricError
from prepbench.internal_errors import raise_if_internal
from prepbench.measure import metrics
from prepbench.measure.artifacts import is_compiled
from prepbench.measure.batches import Batch
from prepbench.measure.kept_samples import Keeper, KeptSamples
from prepbench.measure.metric_facts import Records, Totals, facts_of, records_of, totals_of
from prepbench.objects.compare import Powers
from prepbench.objects.restore import kept, tensors_kept, tensors_of
from prepbench.patching import undoing
from prepbench.running.unchanged import numbers_kept, own_copy

Candidate = Callable[..., Any]
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

    def __init__(self, metric: metrics.Metric) -> None:
        self._metric = metric
        self._sums: list[tuple[float, float]] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        self._sums.append((finite_number(self._metric(output, target)) * size, float(size)))

    def value(self) -> float:
        return sum(total for total, _ in self._sums) / sum(count for _, count in self._sums)

    def spread(self) -> tuple[float, float] | None:
        return spread_of(self._sums, lambda sums: sums[:, 0] / sums[:, 1])


class SqnrScore:
    """SQNR in dB over all the data. Powers are summed first, since a mean over batches is infinite if one is
    perfect.
    """

    def __init__(self) -> None:
        self._powers = Powers()
        self._batches: list[tuple[float, float]] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        found = metrics.output_powers(output, target)
        if not math.isfinite(found.noise):
            raise ValueError("an output holds NaN or infinite values where the reference does not, or the reverse")
        self._powers += found
        self._batches.append((found.signal, found.noise))

    def value(self) -> float:
        return self._powers.decibels

    def spread(self) -> tuple[float, float] | None:
        return spread_of(self._batches, lambda powers: 10 * torch.log10(powers[:, 0] / powers[:, 1]))


class TotalScore:
    """A metric of the sums of all batches."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._sums: list[torch.Tensor] = []

    def add(self, output: Any, target: Any, size: int) -> None:
        found = self._totals.sums(output, target)
        sums = (
            found
            if isinstance(found, torch.Tensor)
            else torch.tensor([*map(finite_number, found)], dtype=torch.float64)
        )
        self._sums.append(sums.double())

    def value(self) -> float:
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


class Scores:
    """One running score for each candidate.

    Args:
        candidates: by name; without a metric the first one is the reference.
        metric: ``metric(output, target)``, or None for SQNR against the first candidate.
    """

    def __init__(self, candidates: Mapping[str, Candidate], metric: metrics.Metric | None) -> None:
        self._candidates = candidates
        self._metric = metric
        self.samples = 0
        self._scores: dict[str, Score] = {name: self._new_score() for name in candidates}
        self._draws: dict[str, bool] = {}
        self._keeper = Keeper(metric, next(iter(candidates.values())))

    def _new_score(self) -> Score:
        if self._metric is None or self.is_sqnr:
            return SqnrScore()
        totals, records = totals_of(self._metric), records_of(self._metric)
        if records is not None:
            return RecordsScore(records)
        return MeanScore(self._metric) if totals is None else TotalScore(totals)

    @property
    def is_sqnr(self) -> bool:
        """Whether the score is a ratio in dB."""
        return self._metric is None or self._metric is metrics.sqnr

    @property
    def name(self) -> str:
        """The metric's name, as written in tables."""
        return "SQNR" if self.is_sqnr else metric_name(self._metric)

    def values(self) -> dict[str, float]:
        """The scores so far, by candidate."""
        return {name: score.value() for name, score in self._scores.items()}

    def spreads(self) -> dict[str, tuple[float, float] | None]:
        """The interval of each candidate's score on other draws of the data."""
        return {name: score.spread() for name, score in self._scores.items()}

    def kept(self) -> KeptSamples:
        """Return the samples so far on which candidates differ most from the first one."""
        return self._keeper.kept()

    def add(self, batch: Batch) -> None:
        """Run every candidate on ``batch`` and score its output.

        Raises:
            InputError: a candidate failed on this batch.
            MetricError: the metric failed or returned no finite number.
        """
        reference = None
        for position, (name, candidate) in enumerate(self._candidates.items()):
            if name not in self._draws:
                self._draws[name] = draws(name, candidate, batch)
            output = run(name, candidate, batch, is_seeded=self._draws[name])
            if position == 0:
                reference = output
            target = batch.target if takes_targets(self._metric) else reference
            try:
                self._scores[name].add(output, target, batch.size)
            except Exception as error:
                raise MetricError(
                    f"metric {self.name!r} gave no number for candidate {name!r} on data[{batch.sample.index}]: "
                    f"{_explained(error)}. A metric takes (output, target) of one batch and returns one finite number "
                    "(a float or a tensor of one element)."
                ) from error
            self._keeper.add(name, output, reference, batch)
        self.samples += batch.size


def takes_targets(metric: metrics.Metric | None) -> bool:
    """Return whether data holds a target for each batch; else the first candidate's output is the target."""
    totals = totals_of(metric)
    return metric is not None and not (totals is not None and totals.against_reference)


def draws(name: str, candidate: Candidate, batch: Batch) -> bool:
    """Return whether a candidate draws random numbers; only then a generator has to be seeded."""
    found = Draws()
    with found:
        run(name, candidate, batch)
    return found.seen


def run(name: str, candidate: Candidate, batch: Batch, *, is_seeded: bool = False) -> Any:
    """Return the candidate's output on a copy of the batch; with ``is_seeded`` all candidates draw the same numbers."""
    # a forward that changes its input in place must not change what the next candidate gets
    sample = own_copy(batch.sample)
    try:
        with torch.no_grad(), numbers_kept(seed=batch.sample.index if is_seeded else None):
            return sample.call(candidate)
    except Exception as error:
        raise_if_internal(error)
        shapes = ", ".join(_shape(leaf) for leaf in pytree.tree_leaves((sample.args, sample.kwargs)))
        raise InputError(
            f"candidate {name!r} failed on data[{batch.sample.index}] ({shapes}): {_explained(error)}. Check that the "
            "data has the form, type and device that this candidate takes, and that its dynamic axes allow this size."
        ) from error


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


@contextlib.contextmanager
def eval_mode(candidates: Iterable[Candidate]) -> Iterator[None]:
    """Switch to eval mode inside the block; restore training flags, buffers and plain Python objects afterwards.

    Flags are set one by one: ``eval()`` of an exported module raises, and that of others does more than set flags.
    """
    candidates = list(candidates)
    modules = [module for c in candidates if isinstance(c, torch.nn.Module) for module in c.modules()]
    with undoing() as undo:
        for module in modules:
            undo.add(functools.partial(setattr, module, "training", module.training))
        # compiled models are left out: they may hold their weights as buffers, to which their graphs never write
        for candidate in itertools.filterfalse(is_compiled, candidates):
            if isinstance(candidate, torch.nn.Module):
                undo.add_all(tensors_kept(candidate, *tensors_of(candidate)))
            else:
                undo.add_all(kept(candidate))
        for module in modules:
            module.training = False
        yield


def _elements(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    return math.prod(shape) if isinstance(shape, tuple) else None


def _shape(leaf: Any) -> str:
    return (
        f"{leaf.dtype} {tuple(leaf.shape)}".removeprefix("torch.")
        if isinstance(leaf, torch.Tensor)
        else shown(leaf, 40)
    )


def _explained(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return (
        text
        if isinstance(error, TypeError | ValueError) and text.startswith("it returned")
        else f"{type(error).__name__}: {text}"
    )
