"""Score candidates on the user's data, and compute their drop against float."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prepbench.compile.simulation import Simulation
from prepbench.errors import InputError, MetricError, SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.batches import Batch, read_batches
from prepbench.measure.metrics import Metric
from prepbench.measure.scores import Candidate, Scores, eval_mode
from prepbench.objects.digest import data_digest
from prepbench.running.metric_facts import is_higher_better as is_higher_better
from prepbench.running.metric_scores import takes_targets
from prepbench.search.objective import Budget
from prepbench.settings.numbers import FLOAT32

REFERENCE = FLOAT32.name
"""The model in PyTorch, which the others are compared with."""


@dataclass(frozen=True)
class Scale:
    """Converts the metric into a loss against float, and back.

    Attributes:
        name: of the metric, for people.
        is_sqnr: whether it is an SQNR in dB against float.
        higher_is_better: its direction.
        base: of the model in float; infinite for an SQNR.
    """

    name: str
    is_sqnr: bool
    higher_is_better: bool
    base: float

    def loss(self, metric: float) -> float:
        """Return the loss against float; for an SQNR the ratio of noise to signal."""
        if self.is_sqnr:
            return 10 ** (-metric / 10)
        return self.base - metric if self.higher_is_better else metric - self.base

    def metric_of(self, loss: float) -> float:
        """Return the metric at a loss: the inverse of :meth:`loss`."""
        if self.is_sqnr:
            return -10 * math.log10(loss) if loss > 0 else math.inf
        return self.base - loss if self.higher_is_better else self.base + loss

    def limit(self, budget: Budget) -> float:
        """The largest loss within a budget.

        Raises:
            SettingsError: a drop of an SQNR, which is infinite in float.
        """
        if budget.max_drop is not None and self.is_sqnr:
            raise SettingsError(
                f"Budget.max_drop={budget.max_drop:g} needs a metric: without one the score is the SQNR against float "
                "in dB, which has no drop. Give metric= and data=, or write Budget(min_metric=20) for 20 dB."
            )
        if budget.max_drop is not None:
            return budget.max_drop
        return math.inf if budget.min_metric is None else self.loss(budget.min_metric)


@dataclass
class Scoring:
    """Runs candidates on the data.

    Attributes:
        reference: the model in float.
        data: read once for each evaluation.
        metric: None for SQNR against the reference.
        higher_is_better: direction of the metric.
        progress: receives each batch.
        evaluations: how often the metric was computed over all the data.
        base: the metric of the reference; infinite for an SQNR.
        unsteady: by how much two evaluations of the reference differ.
        shuffled: whether the data begins otherwise when it is read again.
    """

    reference: Candidate
    data: Iterable[Any]
    metric: Metric | None
    higher_is_better: bool
    progress: ProgressCallback
    evaluations: int = 0
    base: float = math.inf
    unsteady: float = 0.0
    shuffled: bool = False
    samples: int = field(default=0, init=False)

    @property
    def name(self) -> str:
        """The metric's name for people."""
        return Scores({REFERENCE: self.reference}, self.metric).name

    @property
    def is_sqnr(self) -> bool:
        """Whether the score is an SQNR in dB against the reference."""
        return Scores({REFERENCE: self.reference}, self.metric).is_sqnr

    def first(self) -> Batch:
        """Return the first batch, which is the one that is timed."""
        return next(self.batches())

    def begin(self) -> None:
        """Score the reference; a second time where the metric gives two values for the same batch.

        Raises:
            InputError: the data can be read only once, or does not fit the model.
            MetricError: the metric returned no finite number.
        """
        first = self.first()  # most mistakes show there, before anything slow happens
        self.shuffled = _digest(first) != _digest(self.first())
        twice: list[float | None] = []
        for _ in range(2):
            scores = Scores({REFERENCE: self.reference}, self.metric)
            with eval_mode([self.reference]):
                scores.add(first)
            if self.is_sqnr:
                return
            try:
                twice.append(scores.values()[REFERENCE])
            except (InputError, MetricError):  # the first batch alone may have none, such as images without boxes
                twice.append(None)
        self.base = self._scored({REFERENCE: self.reference}, REFERENCE)[0]
        if twice[0] != twice[1] or self.shuffled:
            self.unsteady = abs(self._scored({REFERENCE: self.reference}, REFERENCE)[0] - self.base)

    def score(self, name: str, candidate: Candidate) -> tuple[float, tuple[float, float] | None]:
        """Return the metric of a candidate, and the interval in which scores on other data would lie."""
        alone = takes_targets(self.metric)
        return self._scored({name: candidate} if alone else {REFERENCE: self.reference, name: candidate}, name)

    @property
    def scale(self) -> Scale:
        """The conversion of the metric into a loss."""
        return Scale(self.name, self.is_sqnr, self.higher_is_better, self.base)

    def _scored(self, candidates: dict[str, Candidate], name: str) -> tuple[float, tuple[float, float] | None]:
        scores = Scores(candidates, self.metric)
        with eval_mode(candidates.values()):
            for batch in self.batches():
                self.progress(Progress("score", batch.sample.index, max(self.samples, batch.sample.index + 1), name))
                scores.add(batch)
        self.evaluations += 1
        self.samples = scores.samples
        return scores.values()[name], scores.spreads()[name]

    def batches(self) -> Iterator[Batch]:
        """Iterate over the data once more."""
        return read_batches([self.reference], self.data, with_targets=takes_targets(self.metric))


def _digest(batch: Batch) -> str:
    return data_digest([batch.sample.args, batch.sample.kwargs, batch.target])


def read_often(data: Any, samples: list[Sample]) -> Any:
    """Return data that can be read for each candidate; the calibration samples if none was given.

    Raises:
        InputError: it can be read only once.
    """
    if data is None:
        return samples
    if isinstance(data, Iterator):
        raise InputError(
            f"data must be read once for each candidate, and a {type(data).__name__} can be read only once. Give a "
            "list, data=list(...), or a DataLoader."
        )
    return data


# Check early that the data has the sizes that the model is captured with.


def check_data(simulation: Simulation, batches: Iterable[Batch]) -> None:
    """Raise ``InputError`` for the first batch that the captured model does not take; reads the data once."""
    calls = simulation.source.call_spec
    for batch in batches:
        sample = batch.sample
        try:
            calls.checked(calls.flatten(sample.args, sample.kwargs))
        except InputError as error:
            where = f"data[{sample.index}]"
            raise InputError(
                f"{where} does not fit the captured model: {error} Here such samples are "
                f"tracing_inputs=[calibration_inputs[0], ...], with the input of {where} at the dots. Or leave such "
                "batches out: a last batch that is smaller, with drop_last=True of a DataLoader."
            ) from error
