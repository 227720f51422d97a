"""A bench as files: ``*.bench.json``, which is readable without Python, and the journal of its runs beside it."""

from __future__ import annotations

import contextvars
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from prepbench.bench.shown import Parts, graph_of, shown
from prepbench.bench.state import BenchState
from prepbench.capture.sizes.dynamic_axes import DynamicAxes
from prepbench.checks import check_path
from prepbench.document.bench import BENCH_LIMIT, BenchDocument, SavedModule, bench_from_json, bench_to_json
from prepbench.errors import DocumentError, InputError, PrepbenchError, SettingsError, UnknownNameError, sentence
from prepbench.objects.digest import model_digest, modules_of, structure_of
from prepbench.results.journal import Changes, Journal, files_of_journal
from prepbench.results.measurement import Run
from prepbench.storage import remove_new_files_on_error, write_file
from prepbench.views.bench_page import write_report

SUFFIX = ".bench.json"
_STEPS = 100  # of undo that are saved


B = TypeVar("B", bound=Parts)


class JournalWriter:
    """Keeps the journal up to date with the history of a bench, in the thread that changes it.

    A failing write does not lose a compile: it warns, and saving the bench writes everything again.

    Args:
        journal: where to.
        model: the model of the runs.
    """

    def __init__(self, journal: Journal, model: nn.Module) -> None:
        self._journal = journal
        self._model = model
        self._marks: dict[str, str] = {}
        self._revision = 0
        self._reading = threading.Lock()

    @property
    def path(self) -> Path:
        """The path of the journal's file."""
        return self._journal.path

    def news(self) -> Changes:
        """Return the changes to runs of models with this structure since the last call; all runs at the first call."""
        with self._reading:
            changes = self._journal.since(self._revision)
            self._revision = changes.revision
        return replace(changes, runs=_of_structure(changes.runs, modules_of(self._model)))

    def __call__(self, run_id: str, run: Run | None) -> None:
        """Write a run that was added or changed, or remove one."""
        try:
            if run is None:
                self._journal.delete(run_id)
            elif run.score is not None or run.error:
                self._journal.write(self.marked(run))
        except UnknownNameError:
            return  # it was never written, or another process removed it
        except PrepbenchError as error:
            warnings.warn(f"The run is in the history of this bench only: {error}", stacklevel=2)

    def marked(self, run: Run) -> Run:
        """Return the run with the fingerprint that its model had at the first call."""
        if run.model:
            return run
        if run.id not in self._marks:
            self._marks[run.id] = model_digest(self._model)
        return replace(run, model=self._marks[run.id], model_name=type(self._model).__name__)


def journal_beside(path: str | os.PathLike[str]) -> Journal:
    """Return the journal of the runs of a saved bench."""
    place = Path(path)
    return Journal(place.with_name(f"{place.name.removesuffix(SUFFIX)}.bench.sqlite"))


def save_bench(bench: Parts, path: str | os.PathLike[str]) -> Path:
    """Write a bench and the journal beside it; from now on each run is written to the journal.

    Returns:
        The path.

    Raises:
        SettingsError: the path does not end in ``.bench.json``.
        StorageError: a file cannot be written; older ones are still there, and no new one is.
        ArtifactError: the file at the journal's path is not a journal.
    """
    check_path("path", path)
    if not str(path).endswith(SUFFIX):
        raise SettingsError(
            f"path must end in {SUFFIX!r}, by which JupyterLab knows the file, got {str(path)!r}. "
            f"Write bench.save({str(path) + SUFFIX!r})."
        )
    journal = journal_beside(path)
    writer = JournalWriter(journal, bench.inputs.model)
    runs = tuple(map(writer.marked, bench.run_history.runs))
    text = bench_to_json(_document(bench, runs))
    with remove_new_files_on_error(*files_of_journal(journal.path)):
        written = write_file(path, text, before=lambda: journal.write(*runs))
    bench.run_history.mark_runs(runs, writer)
    return written


def load_bench(kind: Callable[..., B], path: str | os.PathLike[str], model: nn.Module, **given: Any) -> B:
    """Read what :func:`save_bench` wrote.

    Args:
        kind: the class of the bench.
        path: the file.
        model: the model that the bench was made for; its values may be others by now.
        given: samples, data and metric, as for a new bench.

    Raises:
        DocumentError: the file is damaged, of a newer version, or no saved bench.
        InputError: it is of another model, whose names are listed, or the samples have other inputs.
        SettingsError: choices that this version does not know.
        ArtifactError: the journal beside it is damaged.
    """
    check_path("path", path)
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be the torch.nn.Module that the bench was made for, got {type(model).__name__}.")
    document = read_bench(path)
    check_same_model(document.modules, model, document.model_type)
    journal = journal_beside(path)
    runs = _joined(document, journal)
    bench = kind(model, **given)
    for state in document.states:
        _check_inputs(state, bench.choices.inferred_axes)
    states = tuple(BenchState.from_json(state, bench.choices.inferred_axes) for state in document.states)
    bench.fixing.take_over(states, document.position)
    bench.run_history.keep_runs(runs, JournalWriter(journal, model))
    return bench


def read_bench(path: str | os.PathLike[str]) -> BenchDocument:
    """Read and check the file of a bench; nothing in it is executed.

    Raises:
        DocumentError: there is no such file, or it is no saved bench.
    """
    place = Path(path)
    try:
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            raise DocumentError(f"{place} is not a regular file, so it is not a saved bench. Bench.save writes one.")
        if status.st_size > BENCH_LIMIT:
            raise DocumentError(f"{place} has {status.st_size} bytes, more than any saved bench. Save it again.")
        data = place.read_bytes()
    except OSError as error:
        raise DocumentError(f"{place} cannot be read: {sentence(error)} Bench.save(path) writes one.") from error
    try:
        return bench_from_json(data)
    except DocumentError as error:
        raise DocumentError(f"{place}: {error}") from error


def report_bench(bench: Parts, path: str | os.PathLike[str]) -> Path:
    """Write one HTML page of a bench, which needs no network.

    Raises:
        StorageError: it cannot be written; an older file is still there.
    """
    check_path("path", path)
    made = f"Made on {time.strftime('%Y-%m-%d %H:%M')} with prepbench {version('prepbench')}."
    return write_report(shown(bench), graph_of(bench), made, path)


def _of_structure(runs: Sequence[Run], modules: Any) -> tuple[Run, ...]:
    """Return the runs of models with these modules."""
    structure = structure_of(modules)
    return tuple(run for run in runs if run.model.partition("-")[0] == structure)


def _document(bench: Parts, runs: Sequence[Run]) -> BenchDocument:
    states, position = bench.history.steps
    first = max(0, min(position - _STEPS // 2, len(states) - _STEPS))
    return BenchDocument(
        model_type=type(bench.inputs.model).__name__,
        modules=modules_of(bench.inputs.model),
        states=tuple(state.to_json() for state in states[first : first + _STEPS]),
        position=position - first,
        runs=tuple(run.to_json() for run in runs),
        shown=shown(bench),
        graph=graph_of(bench),
        made=time.time(),
        prepbench=version("prepbench"),
    )


def _check_inputs(state: Mapping[str, Any], axes: DynamicAxes) -> None:
    """Raise ``InputError`` where the samples have other inputs than the saved axes."""
    rows = state.get("axes")
    listed = rows if isinstance(rows, list) else []
    saved = {f"{row.get('path')} dim {row.get('dim')}" for row in listed if isinstance(row, dict)}
    given = {f"{axis.path} dim {axis.dim}" for axis in axes.axes}
    if saved == given:
        return
    differences = (("no", saved - given), ("also", given - saved))
    said = [f"{word} {', '.join(sorted(names)[:4])}" for word, names in differences if names]
    raise InputError(
        f"The samples have other inputs than those of the file: they have {' and '.join(said)}. Give samples of the "
        "kind that the bench was made with."
    )


def _joined(document: BenchDocument, journal: Journal) -> tuple[Run, ...]:
    """Merge the runs of the file with the journal's changes since; what was renamed or deleted there counts."""
    runs = {run.id: run for run in (Run.from_json(data, f"runs[{i}]") for i, data in enumerate(document.runs))}
    changes = journal.since(0)
    known: Mapping[str, Run] = {run.id: run for run in _of_structure(changes.runs, document.modules)}
    joined = {**runs, **known}
    kept = [run for run in joined.values() if run.id not in changes.deleted]
    return tuple(sorted(kept, key=lambda run: (run.made, run.id)))


# Whether a file is of this model: the modules and tensors that differ, by name.


_LISTED = 8


def check_same_model(saved: Sequence[SavedModule], model: nn.Module, model_type: str) -> None:
    """Raise ``InputError`` with the differing names, unless ``model`` has the modules and tensors of a file."""
    before, now = _names(saved), _names(modules_of(model))
    missing = [name for name in before if name not in now]
    added = [name for name in now if name not in before]
    other = [
        f"{name} ({before[name]}, now {now[name]})" for name in before if now.get(name, "") not in ("", before[name])
    ]
    if not (missing or added or other):
        return
    parts = [("missing", missing), ("added", added), ("different", other)]
    said = "; ".join(f"{word}: {_listed(names)}" for word, names in parts if names)
    raise InputError(
        f"The file is of another model: it was saved of a {model_type}, and this {type(model).__name__} differs in its "
        f"names ({said}). Give the model that the bench was made for, or make a new bench."
    )


def _names(modules: Iterable[SavedModule]) -> Mapping[str, str]:
    """Return a description of each module and tensor by name."""
    found: dict[str, str] = {}
    for module in modules:
        if module.fqn:  # the class of the model itself may have been renamed
            found[module.fqn] = module.type
        for tensor in module.tensors:
            shape = "×".join(map(str, tensor.shape)) or "scalar"
            found[f"{module.fqn}.{tensor.name}".lstrip(".")] = f"{shape} {tensor.dtype}"
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


# Watch a journal for changes by others, as long as the bench is shown.


PAUSE_S = 2.0
"""Seconds between two looks."""


class JournalWatch:
    """Calls a function when the file of a journal was written to, by any process.

    Each check asks the file system for the times of the file and of its log. It keeps no connection open: as long as
    one is open, SQLite leaves new rows in the log, and a copy of the file would lack them.

    Args:
        path: of the journal; it need not exist yet.
        changed: called in the thread of the watch; it ends where this returns False.
        pause: seconds between two looks.
    """

    def __init__(self, path: Path, changed: Callable[[], bool], pause: float = PAUSE_S) -> None:
        self.path, self._changed, self._pause = path, changed, pause
        self._over = threading.Event()
        context = contextvars.copy_context()  # output of the callback belongs to the cell that shows the bench
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="prepbench journal", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether its thread has ended."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the watch and wait for its thread, unless called from that thread."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(self._pause + 5)

    def _run(self) -> None:
        seen: object = None
        while not self._over.is_set():
            now = [_state_of(self.path), _state_of(self.path.with_name(f"{self.path.name}-wal"))]
            if now != seen and now[0] is not None and not self._tell():
                return
            seen = now
            self._over.wait(self._pause)

    def _tell(self) -> bool:
        try:
            return self._changed()
        except PrepbenchError as error:
            warnings.warn(f"What others wrote to the journal is not shown: {error}", stacklevel=2)
            return True


def _state_of(path: Path) -> tuple[int, int, int] | None:
    """Return values that change when a file is written; None for a missing or unreadable file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
