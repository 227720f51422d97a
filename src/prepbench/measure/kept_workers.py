"""Timing processes that are reused: starting one takes longer than timing does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from prepbench import interrupts
from prepbench.jobs import Progress
from prepbench.measure import forked
from prepbench.measure.artifacts import Artifact
from prepbench.measure.process import WorkerProcess, environment, worker_command
from prepbench.measure.steps import Steps
from prepbench.measure.transfer import inputs_of

_STAY = 2
"""Processes that keep their model after a timing; the others end, because a model takes memory."""


class KeptWorkers:
    """Processes that load one saved model after another; each holds one model at a time, so no two share a process.

    Args:
        folder: an existing folder for their logs.
        timeout: seconds to wait for each answer; None waits for ever.

    Example:
        >>> with KeptWorkers(folder, 60.0) as kept:  # doctest: +SKIP
        ...     kept.begin(2)
        ...     times = measure_latency(candidates, artifacts, sample, folder, kept=kept, **others)
    """

    def __init__(self, folder: Path, timeout: float | None) -> None:
        self._folder, self._timeout = folder, timeout
        self._started = 0
        self._idle: list[WorkerProcess] = []
        self._loaded: dict[Path, WorkerProcess] = {}
        self._targets: dict[Path, str] = {}

    def __enter__(self) -> KeptWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)  # cancelling does not wait for a process that is still starting

    def begin(self, count: int) -> None:
        """Start this many processes without waiting for them, unless some exist.

        On Linux only the template starts, from which they are forked at once when needed.
        """
        threads = torch.get_num_threads()
        if forked.begin(worker_command("", "", threads), environment(threads)):
            return
        with interrupts.held():
            while len(self._idle) + len(self._loaded) < count:
                self._idle.append(self._new(lambda: None))

    @contextlib.contextmanager
    def serving(
        self, artifacts: Mapping[str, Artifact], folder: Path, steps: Steps
    ) -> Iterator[dict[str, WorkerProcess]]:
        """Yield a process for every saved candidate, with its model loaded; models that are loaded already stay.

        A process that has held a model loads further ones of the same target only: runtimes disturb each other.

        Args:
            artifacts: saved models, by name of the candidate.
            folder: where the inputs of all are.
            steps: repeated during waits.
        """
        saved = {name: each.folder for name, each in artifacts.items() if each.folder is not None}
        self._targets.update({path: artifacts[name].target for name, path in saved.items()})
        try:
            with interrupts.held():
                new = [name for name, path in saved.items() if path not in self._loaded]
                for name in new:
                    self._load(name, saved[name], folder, steps, saved)
            for position, name in enumerate(new):
                steps(Progress("start", position, len(new), name))
                self._loaded[saved[name]].wait_until_ready()
            yield {name: self._loaded[path] for name, path in saved.items()}
        except BaseException:  # one has failed, or the others are in the middle of an answer
            self.close(at_once=True)
            raise
        with interrupts.held():
            self._idle += [self._loaded.pop(path) for path in list(self._loaded)[_STAY:]]
            self._end(self._idle)
            self._idle = []

    def close(self, *, at_once: bool = False) -> None:
        """End all processes."""
        with interrupts.held():
            workers = [*self._idle, *self._loaded.values()]
            if at_once:
                for worker in workers:
                    worker.kill()
            self._end(workers)
            self._idle, self._loaded = [], {}

    def _load(self, name: str, path: Path, folder: Path, steps: Steps, saved: Mapping[str, Path]) -> None:
        others = [each for each in self._loaded if each not in saved.values()]
        same = [each for each in others if self._targets[each] == self._targets[path]]
        idle = self._idle.pop() if self._idle and not same else None
        worker = self._loaded.pop(same[0]) if same else idle or self._new(steps.again)
        self._loaded[path] = worker
        own = inputs_of(path)
        worker.load(name, path, own if own.exists() else folder / "inputs", steps.again)

    def _new(self, heartbeat: Callable[[], None]) -> WorkerProcess:
        threads, self._started = torch.get_num_threads(), self._started + 1
        return WorkerProcess(
            "",
            worker_command("", "", threads),
            self._folder / f"worker{self._started}.log",
            threads=threads,
            timeout=self._timeout,
            heartbeat=heartbeat,
        )

    @staticmethod
    def _end(workers: list[WorkerProcess]) -> None:
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.close()
