"""The background work of a bench: one job runs, and the others wait in order of arrival."""

from __future__ import annotations

import functools
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prepbench.bench.captures import Captures
from prepbench.bench.cards import About, Card, CardButton, RunOutcome, error_card
from prepbench.bench.choices import Changes, Choices
from prepbench.bench.inputs import Inputs
from prepbench.bench.runs import Runs
from prepbench.bench.state import BenchState, axes_words, display_name, other_targets, plan_label, precision_words
from prepbench.bench.status import RunStatus, StatusOfRuns
from prepbench.checks import check_function, check_progress, described
from prepbench.compile import KeptStages
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.results.measurement import Run
from prepbench.settings import ExplainedLayer

Work = Literal["compile", "layers", "search", "samples"]
"""Kinds of runs: compile and compare, measure single layers, search, or compare two runs sample by sample."""

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
        compared: the ids of earlier runs that it times again, beside its own.
    """

    id: str
    name: str
    targets: tuple[str, ...]
    settings: str
    state: BenchState = field(repr=False)
    work: Work = "compile"
    compared: tuple[str, ...] = ()

    @property
    def about(self) -> About:
        """The action that it is of."""
        return "recover" if self.work == "compile" and self.state.recovery is not None else self.work

    @classmethod
    def of(
        cls, state: BenchState, explained: Sequence[ExplainedLayer], listed: Sequence[ExplainedLayer], base: str
    ) -> QueuedRun:
        """Create a compile with these choices and their decision for each layer that can be quantized, and for each
        that a page lists; ``base`` names the float type of the model.
        """
        targets = tuple(map(display_name, state.targets))
        said = [precision_words(listed), axes_words(state.axes)]
        said += ["leaves"] if not state.fullgraph else []
        said += ["pruned"] if state.pruning is not None else []
        said += [state.recovery.summary] if state.recovery is not None else []
        said += [f"{len(state.fixes)} fix{'es' * (len(state.fixes) != 1)}"] if state.fixes else []
        return cls(uuid.uuid4().hex[:12], plan_label(state, explained, base), targets, " · ".join(said), state)

    @classmethod
    def other(cls, work: Work, name: str, state: BenchState, listed: Sequence[ExplainedLayer]) -> QueuedRun:
        """Create other work with these choices for the first target, which adds no run to the history."""
        targets = (display_name(state.targets[0]),)
        return cls(uuid.uuid4().hex[:12], name, targets, precision_words(listed), state, work)


def buttons_after(
    outcomes: Sequence[RunOutcome], runs: Sequence[Run], without_float: Sequence[Run]
) -> tuple[CardButton, ...]:
    """Return what can be done after runs that succeeded, three at most; ``without_float`` lack the float's time."""
    ids = [run.id for run in runs]
    see = CardButton("See results", "results")
    if len(ids) > 1:
        see = CardButton("Compare them" if len(ids) == 2 else "Compare the first two", "compare", " ".join(ids[:2]))
    found = [see, CardButton("Export", "export"), CardButton("Code", "code")]
    if without_float:
        names = dict.fromkeys(run.target_name for run in without_float)
        where = next(iter(names)) if len(names) == 1 else "the same runtimes"
        value = " ".join(run.id for run in without_float)
        found.insert(0, CardButton(f"Compare with float on {where}", "compare_with_float", value))
    if any(outcome.is_doubtful for outcome in outcomes):
        found.insert(0, CardButton("Measure again", "measure_again", again="compile"))
    return tuple(found[:3])


@dataclass(eq=False)
class _Entry:
    run: QueuedRun | None  # None for what is no run, such as another capture
    ended: Ended
    job: Job[Any] | None = None


class Jobs:
    """The background work of a bench, one job after the other, and its progress.

    Args:
        choices: the current choices.
        runs: the history, which tells how long stages took, and what a compile came to.
        changed: called after each change of the queue.
        proven: returns the failing modules that have a proven fix.
    """

    def __init__(
        self, choices: Choices, runs: Runs, changed: Callable[[], None], proven: Callable[[], Collection[str]]
    ) -> None:
        self._choices, self._runs, self._proven = choices, runs, proven
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: list[_Entry] = []
        self._current: _Entry | None = None
        self._done = 0  # since nothing ran the last time
        self._job: Job[Any] | None = None
        self.following = StatusOfRuns()
        """What work tells of its progress."""

    @property
    def job(self) -> Job[Any] | None:
        """The background job that runs or ran last; None before the first."""
        return self._job

    @property
    def queue(self) -> tuple[QueuedRun, ...]:
        """The waiting runs, the next one first."""
        return tuple(entry.run for entry in self._waiting if entry.run is not None)

    @property
    def turn(self) -> str:
        """The position of the current run among several, e.g. ``"1 of 3"``; "" for a single one."""
        number, count = self._done + 1, self._done + 1 + len(self._waiting)
        return f"{number} of {count}" if self.following.status.running and count > 1 else ""

    @property
    def status(self) -> RunStatus:
        """The progress of the background work."""
        return self.following.status

    def on_status(self, listener: Callable[[RunStatus], None]) -> Callable[[], None]:
        """Call a function with the status while something runs in the background.

        Args:
            listener: takes a status.

        Returns:
            A function that ends this.
        """
        check_function("listener", listener, "listener(status)")
        return self.following.listen(listener)

    def has(self, state: BenchState | None, work: Work) -> bool:
        """Return whether such work with these choices, or with any, is running or queued."""
        current = self._current
        runs = (*([current.run] if current is not None else []), *self.queue)
        return any(run is not None and run.work == work and state in (None, run.state) for run in runs)

    def compares(self, ids: Sequence[str]) -> bool:
        """Return whether these earlier runs are timed again by a run that is running or queued."""
        current = self._current
        runs = (*([current.run] if current is not None else []), *self.queue)
        return any(run is not None and run.compared == tuple(ids) for run in runs)

    def in_background(
        self,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback = report_nothing,
        on_end: Callable[[BaseException | None], None] | None = None,
    ) -> Job[Any]:
        """Run a method that takes ``progress``, such as :meth:`capture`, in a background thread.

        Args:
            work: called with its progress callback.
            progress: receives each step, too.
            on_end: called at the end, with the exception or None.

        Returns:
            The job, which can be waited for and cancelled.

        Raises:
            SettingsError: something runs already.
        """
        check_function("work", work, "work(progress)")
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        return self.add(None, work, progress, on_end)

    def cancel(self) -> None:
        """Cancel the current run, after which the next run of the queue begins; does nothing where nothing runs."""
        if self._job is not None:
            self._job.cancel()

    def cancel_all(self) -> None:
        """Empty the queue, and cancel the current run."""
        for entry in reversed(list(self._waiting)):
            if entry.job is not None:
                entry.job.cancel()
        self.cancel()

    def remove_queued(self, id: str) -> None:
        """Remove a waiting run from the queue.

        Args:
            id: of the run.

        Raises:
            UnknownNameError: no such run waits.
        """
        entry = next((entry for entry in self._waiting if entry.run is not None and entry.run.id == id), None)
        if entry is None or entry.job is None:
            known = ", ".join(run.id for run in self.queue) or "none"
            raise UnknownNameError(
                f"id: no run {described(id)} waits; it may have begun or ended. Give an id of bench.queue: {known}."
            )
        entry.job.cancel()

    def add(
        self,
        run: QueuedRun | None,
        work: Callable[[ProgressCallback], Any],
        progress: ProgressCallback,
        on_end: Callable[[BaseException | None], None] | None,
        said: Callable[[], str] | None = None,
        stages: Mapping[str, float] | None = None,
    ) -> Job[Any]:
        """Run work in the background after all earlier work.

        Args:
            run: the queue entry; None for work that does not wait.
            work: called with a progress callback in a thread of its own.
            progress: receives each step, too.
            on_end: called at the end, with the exception or None.
            said: returns the message at its end; the outcome of the newest run if left out.
            stages: those of work other than a compile, with the share of each.

        Raises:
            SettingsError: the work does not wait, and something runs.
        """
        name, targets = ("", ()) if run is None else (run.name, run.targets)
        about: About = "capture" if run is None else run.about
        known: set[str] = set()

        def begins() -> None:
            known.update(each.id for each in self._runs.runs)
            seconds = next((run.stages for run in reversed(self._runs.runs) if not run.error), {})
            self.following.begin(
                f"{name} {', '.join(targets)}", targets if stages is None else (), seconds, stages, about
            )

        def told(step: Progress) -> None:
            self.following.step(step)
            progress(step)

        def ended(error: BaseException | None, goes_on: bool | None) -> None:
            try:
                if on_end is not None:
                    on_end(error)
            finally:
                if goes_on is not None:
                    self._end_message(run, about, known, error, goes_on, said)

        entry = _Entry(run, ended)
        over = functools.partial(self._over, entry)
        entry.job = job = Job(work, told, on_begin=begins, on_end=over, waits=True)
        with self._lock:
            is_free = self._current is None
            if is_free:
                self._current, self._done, self._job = entry, 0, job
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

    def _over(self, entry: _Entry, error: BaseException | None) -> None:
        following = None
        with self._lock:
            has_run = self._current is entry
            if has_run:
                following = self._waiting.pop(0) if self._waiting else None
                self._current = following
                self._done += 1
                if following is not None:
                    self._job = following.job
            elif entry in self._waiting:
                self._waiting.remove(entry)
        try:
            entry.ended(error, following is not None if has_run else None)
        finally:
            if following is not None and following.job is not None:
                following.job.begin()
            self._changed()

    def _end_message(
        self,
        run: QueuedRun | None,
        about: About,
        known: Collection[str],
        error: BaseException | None,
        goes_on: bool,
        said: Callable[[], str] | None,
    ) -> None:
        """Show how work ended.

        Args:
            run: the work; None for what is no run.
            about: the action that it is of.
            known: the ids of the runs before it.
            error: its error.
            goes_on: whether other work follows.
            said: returns the message of what adds no runs.
        """
        compared = [] if run is None else [each for each in self._runs.runs if each.id in run.compared]
        made = [] if run is None else [*compared, *self._runs.made_since({*known, *run.compared})]
        outcomes = self._runs.outcomes_of(made)
        notes = ["done" if error is None else "cancelled" if isinstance(error, Cancelled) else "failed"]
        if error is None and said is not None:
            message = Card("info", said(), about=about)
        elif error is None and run is None:
            message = Card("info", "Captured again.", about=about)
        elif error is None:
            ready = [f"{outcome.name} is ready." for outcome in outcomes]
            text = f"{len(ready)} runs are ready." if len(ready) > 1 else "".join(ready)
            if compared:
                text = f"Compared with float on {', '.join(dict.fromkeys(each.target_name for each in compared))}."
            buttons = buttons_after(outcomes, made, [each for each in made if each.id in self._runs.without_float])
            message = Card("info", text, about=about, outcomes=outcomes, buttons=buttons)
            reused = self._runs.runs[-1].reused if run is not None and self._runs.runs else ()
            notes = [f"used again: {', '.join(reused)}", *notes] if reused else notes
        elif isinstance(error, Cancelled):
            message = Card("info", str(error), about=about, outcomes=outcomes)
        else:
            message = self.error_card(error, self._choices.state if run is None else run.state, about, outcomes)
        self.following.end(message, *notes, goes_on=goes_on)

    def show_failure(self, error: BaseException, about: About) -> None:
        """Show the card of an error as if an action of this bench had raised it: it failed before the bench opened."""
        self.following.end(self.error_card(error, self._choices.state, about), goes_on=False)

    def error_card(
        self, error: BaseException, state: BenchState, about: About, outcomes: tuple[RunOutcome, ...] = ()
    ) -> Card:
        """Return the card of an error with these choices, and with what repairs it."""
        others = other_targets(state, error)
        return error_card(
            error,
            leaf_wrap=state.leaf_wrap,
            about=about,
            others=others,
            axes=state.axes,
            outcomes=outcomes,
            proven=self._proven(),
        )


@dataclass(eq=False)
class SharedParts:
    """The parts of a bench that everything which starts runs works with."""

    inputs: Inputs
    captures: Captures
    choices: Choices
    runs: Runs
    jobs: Jobs
    kept: KeptStages
    changed: Changes
