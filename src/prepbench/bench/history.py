"""The runs of a bench: every compile with its choices and results, newest last."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from prepbench.bench.cards import slower_because
from prepbench.bench.state import BenchState, display_name
from prepbench.checks import check_switch, described
from prepbench.compile import CompiledModel
from prepbench.errors import SettingsError, UnknownNameError
from prepbench.measure.comparison import CandidateResult, Comparison
from prepbench.measure.generation import GenerationResult
from prepbench.results.journal import Changes
from prepbench.results.machine import this_machine, this_notebook
from prepbench.results.run import Run
from prepbench.results.written_text import RunGeneration
from prepbench.targets import target_for


class KeptJournal(Protocol):
    """The storage of a history."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    def __call__(self, run_id: str, run: Run | None) -> None:
        """Write a run that was added or changed, or remove one."""

    def news(self) -> Changes:
        """Return the changes to the runs of this model since the last call; all runs at the first call."""


class RunHistory:
    """Runs by id, and the compiled models of those that this process made.

    ``journal`` receives every run that is added or changed, and ``(id, None)`` for a deleted one. Several threads
    may change a history: those of a compile, of the page, and of the reader of the journal.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.runs: tuple[Run, ...] = ()
        self.compiled: dict[str, CompiledModel] = {}
        self.journal: KeptJournal | None = None

    def get(self, run_id: str, argument: str = "id") -> Run:
        """Return the run of an id, which was given under the name ``argument``.

        Raises:
            UnknownNameError: there is none.
        """
        for run in self.runs:
            if run.id == run_id:
                return run
        known = ", ".join(run.id for run in self.runs[-5:]) or "none yet"
        raise UnknownNameError(
            f"{argument}: there is no run {described(run_id)}. Give an id of bench.runs; the newest are: {known}."
        )

    def named(self, name: str) -> Run | None:
        """Return the run of this name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def results(self) -> dict[str, CompiledModel]:
        """The compiled models of this process by the name of their run, oldest first."""
        return {run.name: self.compiled[run.id] for run in self.runs if run.id in self.compiled}

    def add(self, run: Run, compiled: CompiledModel | None = None) -> None:
        """Add a run as the newest."""
        with self._lock:
            self.runs = (*(other for other in self.runs if other.id != run.id), run)
            if compiled is not None:
                self.compiled[run.id] = compiled
        self._write(run.id, run)

    def replace(self, run_id: str, **changes: Any) -> Run:
        """Replace fields of a run in place."""
        with self._lock:
            changed = replace(self.get(run_id), **changes)
            self.runs = tuple(changed if run.id == run_id else run for run in self.runs)
        self._write(run_id, changed)
        return changed

    def rename(self, run_id: str, name: str) -> None:
        """Rename a run; names are unique."""
        if not isinstance(name, str) or not name.strip():
            raise SettingsError(f"name must be a text that is not empty, got {described(name)}.")
        other = self.named(name.strip())
        if other is not None and other.id != run_id:
            raise SettingsError(
                f"Another run is called {name.strip()!r}. Choose another name, or rename that one first."
            )
        self.replace(run_id, name=name.strip())

    def pin(self, run_id: str, pinned: bool) -> None:
        """Pin a run to the top, or unpin it."""
        check_switch("pinned", pinned)
        self.replace(run_id, pinned=pinned)

    def delete(self, run_id: str) -> None:
        """Remove a run and its compiled model."""
        gone = self.get(run_id).id
        self._forget({gone})
        self._write(gone, None)

    def take_in(self, runs: Sequence[Run], deleted: Collection[str]) -> bool:
        """Merge the changes that others wrote to the journal.

        Args:
            runs: new and changed runs.
            deleted: the ids of those that are gone.

        Returns:
            Whether the history has changed by it.
        """
        with self._lock:
            before = self.runs
            self._forget(set(deleted))
            news = {run.id: run for run in runs}
            known = [news.pop(run.id, run) for run in self.runs]
            self.runs = tuple(sorted([*known, *news.values()], key=lambda run: (run.made, run.id)))
            return self.runs != before

    def free_name(self, label: str, state: Mapping[str, Any]) -> str:
        """Return an unused name for a run with these choices: the label, with a number where other choices have it."""
        name, number = label, 1
        while (other := self.named(name)) is not None and (other.state != state or other.error):
            number += 1
            name = f"{label} ({number})"
        return name

    def _forget(self, gone: Collection[str]) -> None:
        with self._lock:
            self.runs = tuple(run for run in self.runs if run.id not in gone)
            for run_id in gone:
                self.compiled.pop(run_id, None)

    def _write(self, run_id: str, run: Run | None) -> None:
        if self.journal is not None:
            self.journal(run_id, run)


def new_run(state: BenchState, name: str, began: float, together: BenchState | None = None, **known: Any) -> Run:
    """Create a run of one target.

    Args:
        state: the choices, for one target.
        name: the display name.
        began: when its compile began, as ``time.monotonic()`` tells.
        together: the choices for all targets that are compiled for together, ``state`` where it is the only one.
        known: further fields.
    """
    settings = state.targets[0]
    return Run(
        id=uuid.uuid4().hex[:12],
        name=name,
        settings_name=name,
        state=state.to_json(),
        targets=tuple((together or state).to_json()["targets"]),
        target=target_for(settings).name,
        target_name=display_name(settings),
        target_options=settings.to_dict(),
        made=time.time(),
        seconds=time.monotonic() - began,
        machine=this_machine(),
        notebook=this_notebook(),
        **known,
    )


def measured(
    run: Run,
    compiled: CompiledModel,
    comparison: Comparison,
    row: CandidateResult,
    generation: RunGeneration | None = None,
) -> dict[str, Any]:
    """Return the fields of a run from a comparison; ``generation`` is its generated text."""
    report = compiled.report
    slower = slower_because(
        row.speedup,
        fallbacks=report.fallbacks,
        leaves=report.leaves,
        quantized=any(layer.quantized for layer in report.layers),
    )
    return {
        "score": row.metric,
        "metric": comparison.metric,
        "unit": comparison.unit,
        "higher_is_better": comparison.higher_is_better,
        "change": row.change,
        "spread": row.spread,
        "p50_ms": row.p50_ms,
        "p90_ms": row.p90_ms,
        "speedup": row.speedup,
        "size_bytes": row.size_bytes,
        "why": slower or row.note,
        "workload": comparison.workload or f"{comparison.samples} samples, {comparison.batch_size} in a timed call",
        "generation": generation,
    }


def comparison_of(runs: Sequence[Run], newest: Comparison | None, base: str) -> Comparison:
    """Return scored runs as one comparison with the float model: those of the newest metric, of calls or of a
    generation.

    Args:
        runs: the runs; at least one.
        newest: the newest comparison, whose float model they are compared with; worked out from the runs without one.
        base: the display name of the float model.
    """
    last = runs[-1]
    if newest is None:
        score = math.inf if last.unit else (last.score or 0.0) - (last.change or 0.0)
        p50 = last.p50_ms * last.speedup if last.p50_ms and last.speedup else None
        first = CandidateResult(
            base, score, 0.0, p50, p50, 1.0, None, "", "eager", "own process", generation=float_generation(last)
        )
        newest = Comparison(
            (first,),
            last.metric,
            last.unit,
            last.higher_is_better,
            samples=0,
            batch_size=0,
            rounds=0,
            threads=0,
            workload=last.workload if last.generation else "",
        )
    first, wrote = newest.rows[0], bool(newest.workload)
    alike = [run for run in runs if (run.metric, run.unit, run.generation is not None) == (*_of(newest), wrote)]
    return replace(newest, rows=(first, *map(_row, alike)))


def _of(comparison: Comparison) -> tuple[str, str]:
    return comparison.metric, comparison.unit


def float_generation(run: Run) -> GenerationResult | None:
    """Return the float model's generation results beside a run; None where nothing was generated."""
    found = run.generation
    if found is None:
        return None
    base = found.float_first_token_ms, None, found.float_tokens_per_second, found.float_peak_bytes
    return GenerationResult(*base, tokens=())


def _generation(run: Run) -> GenerationResult | None:
    found = run.generation
    if found is None:
        return None
    return GenerationResult(found.first_token_ms, run.p50_ms, found.tokens_per_second, found.peak_bytes, tokens=())


def _row(run: Run) -> CandidateResult:
    return CandidateResult(
        run.name,
        run.score if run.score is not None else math.nan,
        run.change,
        run.p50_ms,
        run.p90_ms,
        run.speedup,
        run.size_bytes,
        "saved artifact",
        run.target_name,
        "own process",
        run.why,
        spread=run.spread,
        generation=_generation(run),
    )
