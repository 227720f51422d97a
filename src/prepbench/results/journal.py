"""The journal of results: each is written once, to one file that several programs may write to at a time."""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prepbench.checks import check_path, check_switch, check_text
from prepbench.errors import DocumentError, InputError, UnknownNameError, printable, sentence
from prepbench.results.journal_file import (
    ASIDE,
    DamagedJournalError,
    OtherVersionError,
    files_of_journal,
    has_content,
    reading,
    writing,
)
from prepbench.results.measurement import Measurement, Result, Run

M = TypeVar("M", bound=Measurement)

_OWN = ("state", "target_name", "targets", "pruned", "recovered")
"""Columns of a run beside its result, in its row of the journal."""


@dataclass(frozen=True)
class Changes:
    """The changes to the runs of a journal since a revision.

    Attributes:
        revision: of the journal; to be given to :meth:`Journal.since` next time.
        runs: the new and the changed ones, oldest change first.
        deleted: ids of those that are gone.
    """

    revision: int
    runs: tuple[Run, ...] = ()
    deleted: tuple[str, ...] = ()


class Journal:
    """Results and the history of runs in one SQLite file. Creating this object opens nothing.

    Each method is one transaction on a connection of its own, so a journal may be used from any thread, and by
    several processes at a time; an added run is on the disk.

    Args:
        path: of the file; made by the first method that writes.

    Raises:
        StorageError: (every method) it cannot be read or written, or others have been writing for long.
        ArtifactError: (every method) it is no journal, is damaged, or is of a newer version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        check_path("path", path)
        self.path = Path(path)

    def write(self, *runs: Run) -> None:
        """Write runs with their results, all or none.

        An existing run gets the new name, and a further result if it was measured again. A deleted one stays
        deleted.
        """
        with writing(self.path) as connection:
            for run in runs:
                _write(connection, run)

    def record(self, result: Result, id: str) -> None:
        """Write a result that belongs to no run of a bench, such as a search's.

        Raises:
            InputError: there is a result of that id; results are written once.
        """
        check_text("id", id, "a0b1")
        with writing(self.path) as connection:
            if not _record(connection, id, "", result):
                raise InputError(
                    f"The journal has a result {id!r} already, and results are written once. Give another id."
                )

    def update(self, id: str, *, name: str | None = None, pinned: bool | None = None) -> None:
        """Rename a run, or pin it.

        Raises:
            UnknownNameError: there is no such run, or it was deleted.
        """
        if name is not None:
            check_text("name", name, "4 bits")
        if pinned is not None:
            check_switch("pinned", pinned)
        with writing(self.path) as connection:
            rows = connection.execute(
                "UPDATE runs SET name = coalesce(?, name), pinned = coalesce(?, pinned), revision = ? "
                "WHERE id = ? AND deleted = 0",
                (None if name is None else printable(name), pinned, _next(connection), id),
            )
            _check_found(rows.rowcount, id, self.path)

    def delete(self, id: str) -> None:
        """Remove a run and its result.

        Raises:
            UnknownNameError: there is no such run, or it was deleted.
        """
        with writing(self.path) as connection:
            rows = connection.execute(
                "UPDATE runs SET deleted = 1, content = '', name = '', revision = ? WHERE id = ? AND deleted = 0",
                (_next(connection), id),
            )
            _check_found(rows.rowcount, id, self.path)
            connection.execute("DELETE FROM results WHERE run = ?", (id,))

    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first; none where the file does not exist."""
        return tuple(sorted(self.since(0).runs, key=lambda run: (run.made, run.id)))

    def since(self, revision: int) -> Changes:
        """Return the runs that were added, changed and deleted after a revision; 0 is the beginning."""
        if not has_content(self.path):
            return Changes(0)
        with reading(self.path) as connection:
            rows = connection.execute(
                "SELECT runs.id, runs.content, name, pinned, deleted, revision, results.content FROM runs "
                "LEFT JOIN results ON results.id = runs.result WHERE revision > ? ORDER BY revision",
                (revision,),
            ).fetchall()
        deleted = tuple(row[0] for row in rows if row[4])
        runs = tuple(self._run(row) for row in rows if not row[4])
        return Changes(max([revision, *(row[5] for row in rows if type(row[5]) is int)]), runs, deleted)

    def results(self, key: str | None = None) -> tuple[Result, ...]:
        """Return all results, or those with one :attr:`Result.key`, in the order of writing."""
        if not has_content(self.path):
            return ()
        with reading(self.path) as connection:
            rows = connection.execute("SELECT id, content FROM results WHERE key = ?1 OR ?1 IS NULL", (key,)).fetchall()
        found = [self._checked(Result, self._object(content, f"result {id}"), f"result {id}") for id, content in rows]
        return tuple(sorted(found, key=lambda result: result.made))

    def _run(self, row: tuple[Any, ...]) -> Run:
        id, content, name, pinned, _, _, measured = row
        if measured is None:
            raise DamagedJournalError(f"The journal {self.path} is damaged: the result of the run {id!r} is missing.")
        result = self._object(measured, f"result {id}")
        result.pop("plan", None)
        own = self._object(content, f"run {id}")
        return self._checked(Run, {**result, **own, "id": id, "name": name, "pinned": pinned == 1}, f"run {id}")

    def _checked(self, kind: type[M], data: dict[str, Any], what: str) -> M:
        try:
            return kind.from_json(data, what)
        except DocumentError as error:
            raise DamagedJournalError(f"The journal {self.path} is damaged: {error}") from error

    def _object(self, text: Any, what: str) -> dict[str, Any]:
        try:
            data = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise DamagedJournalError(f"The journal {self.path} is damaged: the {what} is not valid JSON.") from error
        if not isinstance(data, dict):
            raise DamagedJournalError(f"The journal {self.path} is damaged: the {what} is not an object.")
        return data


def _write(connection: sqlite3.Connection, run: Run) -> None:
    known = connection.execute(
        "SELECT deleted, results.content FROM runs LEFT JOIN results ON results.id = runs.result WHERE runs.id = ?",
        (run.id,),
    ).fetchone()
    if known is not None and known[0]:
        return
    result = run.result
    (measured,) = connection.execute("SELECT count(*) FROM results WHERE run = ?", (run.id,)).fetchone()
    changed = known is None or known[1] != _text(result.to_json())
    id = f"{run.id}/{measured + changed}"
    if changed:
        _record(connection, id, run.id, result)
    own = _text({name: value for name, value in run.to_json().items() if name in _OWN})
    connection.execute(
        "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, 0, ?)",
        (run.id, id, own, printable(run.name), run.pinned, _next(connection)),
    )


def _record(connection: sqlite3.Connection, id: str, run: str, result: Result) -> bool:
    values = (id, run, result.key, _text(result.to_json()))
    return connection.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", values).rowcount > 0


def _next(connection: sqlite3.Connection) -> int:
    number: int = connection.execute("SELECT coalesce(max(revision), 0) + 1 FROM runs").fetchone()[0]
    return number


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False)


def _check_found(rows: int, id: str, path: Path) -> None:
    if not rows:
        raise UnknownNameError(f"id: the journal {path} has no run {id!r}; it may have been deleted.")


# Open a journal for writing; a damaged file or one of another version is renamed first.


_HEADER = b"SQLite format 3\0"
_ENDINGS = (".sqlite", ".sqlite3", ".db")


def journal_at(path: str | os.PathLike[str]) -> Journal:
    """Return the journal at a path; the file need not exist.

    A damaged file, or one of another version, is renamed, and a warning gives the new name. A file that does not
    look like a database is left in place, unless its name is that of one.

    Raises:
        SettingsError: this is no path.
        StorageError: it cannot be read.
        ArtifactError: the file is of another program.
    """
    check_path("results", path)
    journal = Journal(path)
    found = _identity(journal.path)
    try:
        journal.results()
        journal.runs()
    except (DamagedJournalError, OtherVersionError) as error:
        if not _is_ours(journal.path):
            raise
        if found is not None and found == _identity(journal.path):  # else another process was faster
            _set_aside(journal.path, error)
    return journal


def _set_aside(path: Path, error: DamagedJournalError | OtherVersionError) -> None:
    what = "damaged" if isinstance(error, DamagedJournalError) else "other-version"
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{what}-{number}")):
        number += 1
    os.rename(path, aside)
    for one, other in zip(files_of_journal(path)[1:], files_of_journal(aside)[1:], strict=True):
        if os.path.lexists(one):
            os.rename(one, other)
    warnings.warn(
        f"{sentence(error).removesuffix(ASIDE).rstrip()} It is kept as {aside}, and a new journal begins at {path} "
        "with the next result.",
        stacklevel=4,
    )


def _is_ours(path: Path) -> bool:
    """Return whether the file is a database, or was meant to be one; other paths were given by mistake."""
    with path.open("rb") as file:
        return file.read(len(_HEADER)) == _HEADER or path.suffix in _ENDINGS


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
