"""The queue of runs: one runs in the background, the others wait in order of arrival."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prepbench.bench.state import BenchState, axes_words, display_name, plan_label, precision_words
from prepbench.checks import described
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.jobs import Job, ProgressCallback
from prepbench.settings import ExplainedLayer

Work = Literal["compile", "layers", "search"]
"""Kinds of runs: compile and compare, measure single layers, or search."""

Ended = Callable[[BaseException | None, bool | None], None]
"""Called with the error or None, and with whether another run follows; None for work that never began."""


@dataclass(frozen=True)
class QueuedRun:
    """A waiting run, with the choices at the time when it was requested.

    Attributes:
        id: names it among those that wait.
        name: the probable name of its results.
        targets: the names of its targets.
        settings: its choices in words.
        state: its choices.
        work: the kind of work.
    """

    id: str
    name: str
    targets: tuple[str, ...]
    settings: str
    state: BenchState = field(repr=False)
    work: Work = "compile"

    @classmethod
    def of(cls, state: BenchState, explained: Sequence[ExplainedLayer], base: str) -> QueuedRun:
        """Create a compile with these choices and their decision for each layer; ``base`` names the float type of
        the model.
        """
        targets = tuple(map(display_name, state.targets))
        said = [precision_words(explained), axes_words(state.axes)]
        said += ["leaves"] if not state.fullgraph else []
        said += ["pruned"] if state.pruning is not None else []
        said += [state.recovery.summary] if state.recovery is not None else []
        said += [f"{len(state.fixes)} fix{'es' * (len(state.fixes) != 1)}"] if state.fixes else []
        return cls(uuid.uuid4().hex[:12], plan_label(state, explained, base), targets, " · ".join(said), state)

    @classmethod
    def other(cls, work: Work, name: str, state: BenchState, explained: Sequence[ExplainedLayer]) -> QueuedRun:
        """Create other work with these choices for the first target, which adds no run to the history."""
        targets = (display_name(state.targets[0]),)
        return cls(uuid.uuid4().hex[:12], name, targets, precision_words(explained), state, work)


@dataclass(eq=False)
class _Entry:
    run: QueuedRun | None  # None for what is no run, such as another capture
    ended: Ended
    job: Job[Any] | None = None


class RunQueue:
    """Runs jobs in the background, one after the other.

    Args:
        changed: called after each change, in the thread that made it.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: list[_Entry] = []
        self._current: _Entry | None = None
        self._done = 0  # since nothing ran the last time
        self.job: Job[Any] | None = None
        """The job that runs, or ran last."""

    @property
    def waiting(self) -> tuple[QueuedRun, ...]:
        """The waiting runs, the next one first."""
        return tuple(entry.run for entry in self._waiting if entry.run is not None)

    @property
    def turn(self) -> tuple[int, int]:
        """The number of the current run, and the number of runs since the queue was last empty."""
        return self._done + 1, self._done + 1 + len(self._waiting)

    def has(self, state: BenchState | None, work: Work = "compile") -> bool:
        """Return whether such work with these choices, or with any, is running or queued."""
        current = self._current
        runs = (*([current.run] if current is not None else []), *self.waiting)
        return any(run is not None and run.work == work and state in (None, run.state) for run in runs)

    def add(
        self,
        run: QueuedRun | None,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback,
        begins: Callable[[], None],
        ended: Ended,
    ) -> Job[Any]:
        """Run ``work`` when all earlier runs have ended.

        Args:
            run: the queue entry; None for work that does not wait.
            work: called with a progress callback in a thread of its own.
            progress: receives each step.
            begins: called before ``work``, by who adds it or in the thread of the one before.
            ended: called after it, in its thread, or in that of who removed it.

        Raises:
            SettingsError: the work does not wait, and something runs.
        """
        entry = _Entry(run, ended)
        over = functools.partial(self._over, entry)
        entry.job = job = Job(work, progress, on_begin=begins, on_end=over, waits=True)
        with self._lock:
            is_free = self._current is None
            if is_free:
                self._current, self._done, self.job = entry, 0, job
            elif run is None:
                raise SettingsError(
                    "Something is running already: wait for bench.job.result() or call bench.job.cancel()."
                )
            else:
                self._waiting.append(entry)
        if is_free:
            job.begin()
        self._changed()
        return job

    def remove(self, id: str) -> None:
        """Remove a waiting run.

        Raises:
            UnknownNameError: there is none of this id; it may have begun.
        """
        entry = next((entry for entry in self._waiting if entry.run is not None and entry.run.id == id), None)
        if entry is None or entry.job is None:
            known = ", ".join(run.id for run in self.waiting) or "none"
            raise UnknownNameError(
                f"id: no run {described(id)} waits; it may have begun or ended. Give an id of bench.queue: {known}."
            )
        entry.job.cancel()

    def cancel(self) -> None:
        """Cancel the current run; the next one begins then."""
        if self.job is not None:
            self.job.cancel()

    def cancel_all(self) -> None:
        """Cancel the current run, and drop the waiting ones."""
        for entry in reversed(list(self._waiting)):
            if entry.job is not None:
                entry.job.cancel()
        self.cancel()

    def _over(self, entry: _Entry, error: BaseException | None) -> None:
        following = None
        with self._lock:
            has_run = self._current is entry
            if has_run:
                following = self._waiting.pop(0) if self._waiting else None
                self._current = following
                self._done += 1
                if following is not None:
                    self.job = following.job
            elif entry in self._waiting:
                self._waiting.remove(entry)
        try:
            entry.ended(error, following is not None if has_run else None)
        finally:
            if following is not None and following.job is not None:
                following.job.begin()
            self._changed()
