"""Scores, sizes and latencies of the candidates of one model on one target: side by side, here or in a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prepbench.inputs import Sample, normalize_samples
from prepbench.internal_errors import internal_error
from prepbench.jobs import Cancelled, ProgressCallback, report_nothing
from prepbench.measure import metrics
from prepbench.measure.run import compare
from prepbench.measure.scores import takes_targets
from prepbench.measure.transfer import load_sample, save_sample
from prepbench.results.machine import this_machine, this_notebook
from prepbench.search.machine_alone import alone, computing
from prepbench.search.tasks import task

REFERENCE = "float32"
"""The model in PyTorch, which the others are compared with."""


@dataclass(frozen=True)
class How:
    """How candidates are measured.

    Attributes:
        metric: scores one output; None for an SQNR.
        higher_is_better: direction of the metric; None where it is known.
        rounds: of timing; 0 for none.
        timeout: seconds that a timing process may take for an answer.
    """

    metric: Callable[..., Any] | None
    higher_is_better: bool | None
    rounds: int
    timeout: float | None


def measured_group(
    candidates: Mapping[str, Any], data: Iterable[Any], how: How, progress: ProgressCallback = report_nothing
) -> dict[str, dict[str, Any]]:
    """What was measured for each candidate, as fields of a ``Result``; for one that fails its error alone.

    Args:
        candidates: the reference first.
        data: batches, as ``pb.compare`` takes them, which can be read again.
        how: what to measure.
        progress: may raise to cancel.
    """
    try:
        return _compared(candidates, data, how, progress)
    except (Cancelled, KeyboardInterrupt):
        raise
    except Exception as error:
        first, *others = candidates
        if len(others) < 2:
            told = internal_error(error, of_libraries=True) or error
            return {name: {"error": str(told)} for name in candidates}
    found: dict[str, dict[str, Any]] = {}  # one of them fails, the others need not
    for name in others:
        one = measured_group({first: candidates[first], name: candidates[name]}, data, how, progress)
        found = {**one, **found}
    return {name: found[name] for name in candidates}


def _compared(
    candidates: Mapping[str, Any], data: Iterable[Any], how: How, progress: ProgressCallback
) -> dict[str, dict[str, Any]]:
    with alone(progress) if how.rounds else computing(progress):
        comparison = compare(
            candidates,
            data,
            metric=how.metric,
            higher_is_better=how.higher_is_better,
            rounds=how.rounds,
            timeout=how.timeout,
            progress=progress,
        )
    whole = {
        "metric": comparison.metric,
        "unit": comparison.unit,
        "higher_is_better": comparison.higher_is_better,
        "machine": this_machine(),
        "notebook": this_notebook(),
    }
    return {
        row.name: {
            **whole,
            "score": row.metric if not math.isnan(row.metric) else None,
            "change": row.change,
            "spread": row.spread,
            "p50_ms": row.p50_ms,
            "p90_ms": row.p90_ms,
            "speedup": row.speedup,
            "size_bytes": row.size_bytes,
            "why": row.note,
        }
        for row in comparison.rows
    }


def can_travel(how: How) -> bool:
    """Whether the metric is known by its name in every process."""
    return how.metric is None or getattr(metrics, getattr(how.metric, "__name__", ""), None) is how.metric


def save_data(data: Iterable[Any], model: Any, how: How, folder: Path) -> None:
    """Write batches to a folder, for :func:`measure_task`.

    Raises:
        InputError: a batch holds something that needs pickle.
    """
    with_targets = takes_targets(how.metric)
    for number, element in enumerate(data):
        given, target = element if with_targets else (element, None)
        [sample] = normalize_samples(model, [given], name="data")
        save_sample(sample, folder / f"{number:06}" / "input")
        if with_targets:
            save_sample(Sample((target,), {}), folder / f"{number:06}" / "target")


def payload_of(names: Sequence[str], how: How) -> dict[str, Any]:
    """What :func:`measure_task` takes."""
    return {
        "names": list(names),
        "metric": None if how.metric is None else getattr(how.metric, "__name__", ""),
        "higher_is_better": how.higher_is_better,
        "rounds": how.rounds,
        "timeout": how.timeout,
    }


@task
def measure_task(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """:func:`measured_group` in a worker: candidates and data are folders, the names of candidates are in order."""
    from prepbench.compile import load_compiled

    metric = None if payload["metric"] is None else getattr(metrics, payload["metric"])
    how = How(metric, payload["higher_is_better"], payload["rounds"], payload["timeout"])
    candidates = {
        name: load_compiled(folders[f"candidate {number}"], allow_code=True)
        for number, name in enumerate(payload["names"])
    }
    return measured_group(candidates, list(_saved_data(folders["data"])), how)


def _saved_data(folder: Path) -> Iterable[Any]:
    for place in sorted(folder.iterdir()):
        sample = load_sample(place / "input")
        given = (*sample.args, dict(sample.kwargs)) if sample.kwargs else tuple(sample.args)
        yield (given, load_sample(place / "target").args[0]) if (place / "target").is_dir() else given
