"""Running the candidates on the data, with one score for each. Models and data stay as they are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch

from prepbench._torch_compat import pytree
from prepbench.errors import InputError, MetricError
from prepbench.measure import metrics
from prepbench.measure.artifacts import is_compiled
from prepbench.measure.batches import Batch
from prepbench.running.plain_state import kept
from prepbench.running.random_numbers import numbers_kept
from prepbench.running.sqnr import Powers
from prepbench.running.unchanged import own_copy

Candidate = Callable[..., Any]


class Score(Protocol):
    """Takes batch after batch and gives one number in the end."""

    def add(self, output: Any, target: Any, size: int) -> None: ...
    def value(self) -> float: ...


class MeanScore:
    """The mean of a metric over samples: each batch counts by its size."""

    def __init__(self, metric: metrics.Metric) -> None:
        self._metric = metric
        self._sum = 0.0
        self._count = 0

    def add(self, output: Any, target: Any, size: int) -> None:
        self._sum += finite_number(self._metric(output, target)) * size
        self._count += size

    def value(self) -> float:
        return self._sum / self._count


class SqnrScore:
    """SQNR in dB over all the data. Powers are added first: the mean over batches is infinite if one is perfect."""

    def __init__(self) -> None:
        self._powers = Powers()

    def add(self, output: Any, target: Any, size: int) -> None:
        found = metrics.output_powers(output, target)
        if not math.isfinite(found.noise):
            raise ValueError("an output holds NaN or infinite values where the reference does not, or the reverse")
        self._powers += found

    def value(self) -> float:
        return self._powers.decibels


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
        make = SqnrScore if self.is_sqnr else lambda: MeanScore(metric)  # type: ignore[arg-type]
        self._scores: dict[str, Score] = {name: make() for name in candidates}

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

    def add(self, batch: Batch) -> None:
        """Run every candidate on ``batch`` and score its output.

        Raises:
            InputError: a candidate failed on this batch.
            MetricError: the metric failed or gave no finite number.
        """
        reference = None
        for position, (name, candidate) in enumerate(self._candidates.items()):
            output = run(name, candidate, batch)
            if position == 0:
                reference = output
            target = reference if self._metric is None else batch.target
            try:
                self._scores[name].add(output, target, batch.size)
            except Exception as error:
                raise MetricError(
                    f"metric {self.name!r} gave no number for candidate {name!r} on data[{batch.sample.index}]: "
                    f"{_explained(error)}. A metric takes (output, target) of one batch and returns one finite number "
                    "(a float or a tensor of one element)."
                ) from error
        self.samples += batch.size


def run(name: str, candidate: Candidate, batch: Batch) -> Any:
    """The candidate's output on a copy of the batch, with the same random numbers for every candidate."""
    # a forward that changes its input in place must not change what the next candidate gets
    sample = own_copy(batch.sample)
    try:
        with torch.no_grad(), numbers_kept(seed=batch.sample.index):
            return sample.call(candidate)
    except Exception as error:
        shapes = ", ".join(_shape(leaf) for leaf in pytree.tree_leaves((sample.args, sample.kwargs)))
        raise InputError(
            f"candidate {name!r} failed on data[{batch.sample.index}] ({shapes}): {_explained(error)}. Check that the "
            "data has the form, type and device that this candidate takes, and that its dynamic axes allow this size."
        ) from error


def finite_number(value: Any) -> float:
    """``value`` as a float.

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
    raise TypeError(
        f"it returned {str(value)[:80]!r} ({type(value).__name__})" if value is not None else "it returned None"
    )


def metric_name(metric: Any) -> str:
    """A readable name of a metric: the function's, through ``functools.partial``, or the class's."""
    inner = getattr(metric, "func", metric)
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "metric" if name == "<lambda>" else str(name)


@contextlib.contextmanager
def eval_mode(candidates: Iterable[Candidate]) -> Iterator[None]:
    """Eval mode inside the block. Afterwards training flags, buffers and plain Python objects are as before.

    Flags are set one by one: ``eval()`` of an exported module raises, and that of others does more than set flags.
    """
    candidates = list(candidates)
    models = [c for c in candidates if isinstance(c, torch.nn.Module)]
    modules = [module for model in models for module in model.modules()]
    flags = [(module, module.training) for module in modules]
    # compiled models are left out: they may hold their weights as buffers, to which their graphs never write
    eager = [module for model in models if not is_compiled(model) for module in model.modules()]
    buffers = [(m, name, b, b.detach().clone()) for m in eager for name, b in m._buffers.items() if b is not None]
    plain = list(kept(*(candidate for candidate in candidates if not is_compiled(candidate))))
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, flag in flags:
            module.training = flag
        for module, name, buffer, before in buffers:
            module._buffers[name] = buffer
            if not torch.equal(buffer, before):
                buffer.data.copy_(before)
        for put_back in plain:
            put_back()


def _elements(value: Any) -> int | None:
    shape = getattr(value, "shape", None)
    return math.prod(shape) if isinstance(shape, tuple) else None


def _shape(leaf: Any) -> str:
    return (
        f"{leaf.dtype} {tuple(leaf.shape)}".removeprefix("torch.")
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)[:40]
    )


def _explained(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return (
        text
        if isinstance(error, TypeError | ValueError) and text.startswith("it returned")
        else f"{type(error).__name__}: {text}"
    )
