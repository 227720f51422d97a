"""Latency of several candidates: one process for each, one of them active at a time, in interleaved rounds.

Two runtimes in one process disturb each other, because their thread pools compete: we measured a factor of six. And
the state of the machine changes over time. So every candidate gets a process of its own, and in each round every
candidate has its turn while the other processes wait for input.
"""

from __future__ import annotations

import contextlib
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from prepbench import interrupts
from prepbench.errors import InputError
from prepbench.inputs import Sample
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.artifacts import Artifact
from prepbench.measure.process import KeptWorkers, OtherPrograms, Steps, WorkerProcess, worker_command
from prepbench.measure.transfer import inputs_of, save_leaves, save_sample
from prepbench.measure.worker import timed_calls
from prepbench.running.unchanged import own_copy
from prepbench.targets.registry import TARGETS

OWN_PROCESS = "own process"
THIS_PROCESS = "this process"
NOT_TIMED = "not timed"

_WARM_UP_S = 0.3
_WARM_UP_CALLS = 3
_TURN_S = 0.1
_MOST_CALLS = 200
_LEAST_ROUNDS = 5
_SIGMA = 1.4826  # standard deviations in a median deviation
_MEDIAN = 1.2533  # standard errors of the mean in one of the median
_LEAST_MEDIANS = 6  # of fewer, no interval holds the median with 95 %
_OUTSIDE = 0.025


class Timer(Protocol):
    """Times calls of one candidate."""

    def times_ns(self, settle: int, calls: int) -> list[int]:
        """Return the nanoseconds of ``calls`` calls after ``settle`` untimed ones."""


@dataclass(frozen=True)
class Latency:
    """The milliseconds of every timed call of one candidate, in order, and where it was timed.

    Attributes:
        busy_cores: how many cores other programs used meanwhile, on average.
        rounds: how many rounds the times are from.
    """

    times_ms: tuple[float, ...]
    timed_in: str
    note: str = ""
    busy_cores: float = 0.0
    rounds: int = 0


@dataclass(frozen=True)
class LocalTimer:
    """Times a candidate that cannot be saved, in this process."""

    call: Callable[[], Any]

    def times_ns(self, settle: int, calls: int) -> list[int]:
        """See :class:`Timer`."""
        return timed_calls(self.call, settle, calls)


def measure_latency(
    candidates: Mapping[str, Callable[..., Any]],
    artifacts: Mapping[str, Artifact],
    sample: Sample,
    folder: Path,
    *,
    rounds: int,
    timeout: float | None,
    progress: ProgressCallback,
    exact: float | None = None,
    kept: KeptWorkers | None = None,
) -> dict[str, Latency]:
    """Time every candidate on ``sample``; ``folder`` is a temporary folder for the inputs and the logs of the workers.

    Args:
        candidates: the timed candidates, by name.
        artifacts: where each was saved.
        sample: the call.
        folder: see above.
        rounds: at most.
        timeout: seconds to wait for each answer; None waits for ever.
        progress: receives each step; it may raise to cancel.
        exact: the standard error, relative to the first candidate's time, with which no further rounds are needed; None
            for all of the rounds.
        kept: processes that are there already and stay; None for new ones, which end.

    Raises:
        LatencyError: a worker failed or did not answer in time; all workers have ended by then.
    """
    if rounds == 0:
        return {name: Latency((), NOT_TIMED) for name in candidates}
    steps = Steps(progress)
    note = _save_inputs(sample, artifacts, folder)
    folders = {name: None if note else artifacts[name].folder for name in candidates}
    artifacts_of = {} if note else {name: artifacts[name] for name in candidates}
    own = own_copy(sample)
    started = (
        started_workers(folders, folder, timeout, steps) if kept is None else kept.serving(artifacts_of, folder, steps)
    )
    with started as workers:
        timers: dict[str, Timer] = {
            name: workers.get(name) or LocalTimer(functools.partial(own.call, candidate))
            for name, candidate in candidates.items()
        }
        with OtherPrograms() as others:
            times, made = interleaved(timers, rounds, steps, exact)
    return {
        name: Latency(
            tuple(t / 1e6 for t in values), OWN_PROCESS if name in workers else THIS_PROCESS, note, others.cores, made
        )
        for name, values in times.items()
    }


@contextlib.contextmanager
def started_workers(
    folders: Mapping[str, Path | None], folder: Path, timeout: float | None, steps: Steps
) -> Iterator[dict[str, WorkerProcess]]:
    """Start a worker for every candidate that has a folder, with the model loaded. All of them end after the block."""
    saved = {name: path for name, path in folders.items() if path is not None}
    workers: dict[str, WorkerProcess] = {}
    # an interrupt between a process and the note of it, or while they end, would leave one running
    with interrupts.held():
        try:
            for position, (name, path) in enumerate(saved.items()):
                workers[name] = _worker(name, path, folder, position, timeout, steps)
            with interrupts.interruptible():
                for position, (name, worker) in enumerate(workers.items()):
                    steps(Progress("start", position, len(saved), name))
                    worker.wait_until_ready()
                yield workers
        except BaseException:  # cancelling does not wait for a process that is still loading
            for worker in workers.values():
                worker.kill()
            raise
        finally:
            for worker in workers.values():
                worker.dismiss()
            for worker in workers.values():
                worker.close()


def _worker(name: str, path: Path, folder: Path, position: int, timeout: float | None, steps: Steps) -> WorkerProcess:
    threads = torch.get_num_threads()
    return WorkerProcess(
        name,
        worker_command(path, own if (own := inputs_of(path)).exists() else folder / "inputs", threads),
        folder / f"{position}.log",
        threads=threads,
        timeout=timeout,
        heartbeat=steps.again,
    )


def interleaved(
    timers: Mapping[str, Timer], rounds: int, progress: ProgressCallback, exact: float | None = None
) -> tuple[dict[str, list[int]], int]:
    """Return the nanoseconds of every timed call, and the number of rounds: after a warm-up, each timer has one turn
    per round.

    There are ``rounds`` rounds, or fewer once times are as exact as requested. Every turn starts with one untimed
    call. All timers make the same number of calls: as many as the slowest one makes in about 0.1 s. Turns are short,
    so that all candidates meet the same state of the machine.
    """
    slowest = 1
    for position, (name, timer) in enumerate(timers.items()):
        progress(Progress("warm up", position, len(timers), name))
        slowest = max(slowest, _warm_up(timer))
    calls = max(1, min(_MOST_CALLS, int(_TURN_S * 1e9 / slowest)))
    times: dict[str, list[int]] = {name: [] for name in timers}
    for turn in range(rounds):
        for position, (name, timer) in enumerate(timers.items()):
            progress(Progress("time", turn * len(timers) + position, rounds * len(timers), name))
            times[name] += timer.times_ns(settle=1, calls=calls)
        if exact is not None and _LEAST_ROUNDS <= turn + 1 < rounds and uncertainty(times, turn + 1) <= exact:
            return times, turn + 1
    return times, rounds


def uncertainty(times: Mapping[str, Sequence[float]], rounds: int) -> float:
    """Return the largest standard error of the candidates' medians relative to the first candidate's.

    It is computed from the spread of the ratios to the first candidate between rounds: by their median deviation,
    which one disturbed round does not change. A single candidate is compared with itself.

    Args:
        times: of each candidate, rounds in order, the same number of calls in each.
        rounds: how many.
    """
    turns = [[statistics.median(turn) for turn in np.split(np.asarray(values), rounds)] for values in times.values()]
    others = turns[1:] or [[statistics.median(turns[0])] * rounds]
    found = 0.0
    for other in others:
        ratios = [one / max(first, 1e-9) for one, first in zip(other, turns[0], strict=True)]
        middle = statistics.median(ratios)
        spread = _SIGMA * statistics.median(abs(ratio - middle) for ratio in ratios)
        found = max(found, _MEDIAN * spread / (middle * rounds**0.5) if middle > 0 else 0.0)
    return found


def _warm_up(timer: Timer) -> int:
    """Call for about 0.3 s and return the nanoseconds of the fastest of the first calls."""
    fastest = min(timer.times_ns(settle=1, calls=_WARM_UP_CALLS))
    more = min(_MOST_CALLS, int(_WARM_UP_S * 1e9 / max(fastest, 1)))
    if more > _WARM_UP_CALLS:
        timer.times_ns(settle=0, calls=more - _WARM_UP_CALLS)
    return fastest


def _save_inputs(sample: Sample, artifacts: Mapping[str, Artifact], folder: Path) -> str:
    """Save the inputs for the workers; return the reason if that is impossible, else ""."""
    try:
        saved = [artifact for artifact in artifacts.values() if artifact.folder is not None]
        for artifact in saved:
            if artifact.leaves is not None and artifact.folder is not None:
                save_leaves(artifact.leaves, inputs_of(artifact.folder))
        if not saved or any(artifact.leaves is None for artifact in saved):
            save_sample(sample, folder / "inputs")
    except InputError as error:
        return str(error)
    return ""


# Summary statistics of times.


def interval(times_ms: Sequence[float], rounds: int) -> tuple[float, float] | None:
    """Return the interval of the median of times; None of fewer than two times.

    The median of each round counts as one observation, because a machine that slows down affects all calls of a round.
    From six rounds on, 95 % of such intervals hold the median of all rounds, whatever the distribution. Fewer rounds
    cannot say that: then it is the interval in which the middle 80 % of the calls lie.

    Args:
        times_ms: in milliseconds, rounds in order, the same number of calls in each.
        rounds: how many.

    Example:
        >>> interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], rounds=8)
        (1.0, 8.0)
    """
    if len(times_ms) < 2:
        return None
    middle = statistics.median(times_ms)
    if rounds < _LEAST_MEDIANS:
        tenths = statistics.quantiles(times_ms, n=10, method="inclusive")
        return min(tenths[0], middle), max(tenths[-1], middle)
    medians = sorted(statistics.median(turn) for turn in np.split(np.asarray(times_ms), rounds))
    left = _left_out(rounds)
    return float(min(medians[left], middle)), float(max(medians[-1 - left], middle))


def _left_out(count: int) -> int:
    """Return how many values at each end lie outside of the interval that holds the median of all with 95 %."""
    left, chance = 0, 0.5**count
    while chance + math.comb(count, left + 1) * 0.5**count <= _OUTSIDE:
        left += 1
        chance += math.comb(count, left) * 0.5**count
    return left


def paired_ratio(base: Sequence[float], times: Sequence[float], rounds: int) -> float | None:
    """Return the median over rounds of the ratio of both medians in each round; None without times.

    In each round both are timed one after the other. So a temporary slowdown of the machine affects both, and
    cancels out. It is for a search, which brings its times to one measure; what people read is a
    :class:`prepbench.results.speed_up.SpeedUp`.

    Args:
        base: times of the first candidate, rounds in order, the same number of calls in each.
        times: as many times of another candidate.
        rounds: number of rounds.

    Example:
        >>> paired_ratio([4.0, 40.0, 4.0], [2.0, 20.0, 2.0], rounds=3)
        2.0
    """
    if not base or not times:
        return None
    calls = len(base) // rounds
    turns = [slice(i * calls, (i + 1) * calls) for i in range(rounds)]
    return statistics.median(statistics.median(base[t]) / max(statistics.median(times[t]), 1e-6) for t in turns)


def percentile(values: tuple[float, ...], percent: int) -> float | None:
    """Return the percentile with linear interpolation between the neighbours; None without values.

    Example:
        >>> percentile((1.0, 2.0, 3.0, 4.0, 5.0), 90)
        4.6
    """
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


# Where a target runs on other hardware than its own, its times say nothing about it.


def not_timed(target: str) -> str:
    """Return why the target of this name is not timed here; "" where it is."""
    place = _elsewhere(target)
    return f"not timed: it ran {place}, not on its own hardware" if place else ""


def doubtful_times(target: str) -> str:
    """Return why times of the target of this name say nothing about it here, for a search; "" where they do."""
    place = _elsewhere(target)
    return f"timed {place}, not on its own hardware, so its times say nothing about that" if place else ""


def _elsewhere(name: str) -> str:
    return next((target.runs_elsewhere() for target in TARGETS if target.name == name), "")
