"""Run the candidates on the data and score each. Models and data are not changed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench._torch_compat.generators import Draws
from prepbench._torch_compat.modes import fast_paths_off
from prepbench.checks import shown
from prepbench.errors import InputError, MetricError
from prepbench.internal_errors import raise_if_internal
from prepbench.measure import metrics
from prepbench.measure.artifacts import is_compiled
from prepbench.measure.batches import Batch
from prepbench.measure.kept_samples import Keeper, KeptSamples
from prepbench.objects.compare import Powers
from prepbench.objects.restore import kept, tensors_kept, tensors_of
from prepbench.patching import undoing
from prepbench.running.metric_scores import (
    Score,
    explained,
    metric_name,
    score_of,
    score_on_all,
    spread_of,
    takes_targets,
)
from prepbench.running.unchanged import numbers_kept, own_copy

Candidate = Callable[..., Any]


class SqnrScore:
    """SQNR in dB over all data. Powers are summed first: a mean over batches is infinite if one is perfect."""

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
        return score_of(self._metric)

    @property
    def is_sqnr(self) -> bool:
        """Whether the score is a ratio in dB."""
        return self._metric is None or self._metric is metrics.sqnr

    @property
    def name(self) -> str:
        """The metric's name, as written in tables."""
        return "SQNR" if self.is_sqnr else metric_name(self._metric)

    def values(self) -> dict[str, float]:
        """The scores so far, by candidate.

        Raises:
            MetricError: the metric has no value on these batches.
        """
        return {name: score_on_all(score, self.name, f"candidate {name!r}") for name, score in self._scores.items()}

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
                    f"{explained(error)}. A metric takes (output, target) of one batch and returns one finite number "
                    "(a float or a tensor of one element)."
                ) from error
            self._keeper.add(name, output, reference, batch)
        self.samples += batch.size


def draws(name: str, candidate: Candidate, batch: Batch) -> bool:
    """Return whether a candidate draws random numbers; only then a generator has to be seeded."""
    found = Draws()
    with found:
        run(name, candidate, batch)
    return found.seen


def run(name: str, candidate: Candidate, batch: Batch, *, is_seeded: bool = False) -> Any:
    """Return the candidate's output on a copy of the batch; with ``is_seeded`` all candidates draw the same numbers."""
    # a forward that changes its input in place must not change what the next candidate gets
    sample = own_copy(batch.sample, keeps_sizes=True)
    try:
        with torch.no_grad(), numbers_kept(seed=batch.sample.index if is_seeded else None), fast_paths_off():
            return sample.call(candidate)
    except Exception as error:
        raise_if_internal(error)
        shapes = ", ".join(_shape(leaf) for leaf in pytree.tree_leaves((sample.args, sample.kwargs)))
        raise InputError(
            f"candidate {name!r} failed on data[{batch.sample.index}] ({shapes}): {explained(error)}. Check that the "
            "data has the form, type and device that this candidate takes, and that its dynamic axes allow this size."
        ) from error


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


def _shape(leaf: Any) -> str:
    return (
        f"{leaf.dtype} {tuple(leaf.shape)}".removeprefix("torch.")
        if isinstance(leaf, torch.Tensor)
        else shown(leaf, 40)
    )
