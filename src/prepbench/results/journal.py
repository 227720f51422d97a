"""The journal of results: each is written once, to one file that several programs may write to at a time."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prepbench import interrupts
from prepbench.checks import check_path, check_switch, check_text
from prepbench.errors import (
    ArtifactError,
    DocumentError,
    InputError,
    StorageError,
    UnknownNameError,
    printable,
    sentence,
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


# The file of a journal: SQLite with a schema of our own, which is verified before anything in it is read.


APPLICATION = 0x70726270  # "prbp"
VERSION = 1
SCHEMA = (
    "CREATE TABLE results (id TEXT NOT NULL PRIMARY KEY, run TEXT NOT NULL, key TEXT NOT NULL, content TEXT NOT NULL)",
    "CREATE INDEX results_by_key ON results (key)",
    "CREATE INDEX results_by_run ON results (run)",
    "CREATE TABLE runs (id TEXT NOT NULL PRIMARY KEY, result TEXT NOT NULL, content TEXT NOT NULL, name TEXT NOT NULL, "
    "pinned INTEGER NOT NULL, deleted INTEGER NOT NULL, revision INTEGER NOT NULL)",
    "CREATE INDEX runs_by_revision ON runs (revision)",
)
"""``results`` are written once; ``runs`` are the history over them: a run that is measured again gets another result.
A deleted run leaves its id behind, so that other readers of the journal hear of it."""


class DamagedJournalError(ArtifactError):
    """The file of a journal is damaged."""


class OtherVersionError(ArtifactError):
    """The journal was written by a newer prepbench."""


WAITS_S = 15.0
"""How long one writer waits for the others."""

READS_S = 60.0
"""The longest that any request may take: a damaged file must not block its readers."""

LONGEST = 64 * 2**20
"""Bytes of the longest text: the report of a model of 100,000 layers is shorter."""

_STORAGE = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space, or save to another disk."),
    sqlite3.SQLITE_READONLY: ("it is read-only", "Save to a folder that can be written to."),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "Choose a folder that exists and that you may write to."),
    sqlite3.SQLITE_PERM: ("permission is denied", "Choose a folder that you may write to."),
    sqlite3.SQLITE_IOERR: ("the disk does not answer as it should", "Check the disk, or save to another one."),
    sqlite3.SQLITE_BUSY: (f"others have been writing for {WAITS_S:.0f} s", "End them, or try again."),
    sqlite3.SQLITE_LOCKED: (f"others have been writing for {WAITS_S:.0f} s", "End them, or try again."),
}


def files_of_journal(path: Path) -> list[Path]:
    """Return the file, and those that SQLite writes beside it."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm", "-journal")]


def has_content(path: Path) -> bool:
    """Return whether a journal has content; a process that is killed while creating one leaves an empty file."""
    try:
        status = path.lstat()
    except OSError:
        return os.path.lexists(path)
    return not stat.S_ISREG(status.st_mode) or status.st_size > 0


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read transaction on an existing journal.

    Raises:
        ArtifactError: the file is no journal, is damaged, or is of a newer version.
        StorageError: it cannot be opened, or others have been writing for long.
    """
    with _typed_errors(path):
        with _connected(path, _mode_of_readers(path)) as connection:
            connection.execute("BEGIN")
            _check(connection, path)
            yield connection
            connection.execute("COMMIT")


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an exclusive write transaction; all of the block's changes are kept, or none.

    A missing file is created, and removed again if nothing was written to it.

    Raises:
        ArtifactError: the file is no journal, is damaged, or is of a newer version.
        StorageError: it cannot be written, or others have been writing for long.
    """
    with _typed_errors(path), interrupts.held(), _remove_if_empty(path):
        with _connected(path, "rwc") as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                made = _is_empty(connection)
                if made:
                    _make(connection)
                _check(connection, path)
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            if made:  # several may write while others read; where the file system cannot do that, they take turns
                with suppress(sqlite3.Error):
                    connection.execute("PRAGMA journal_mode=WAL")


@contextmanager
def _remove_if_empty(path: Path) -> Iterator[None]:
    is_new = not os.path.lexists(path)
    try:
        yield
    except BaseException:
        if is_new and os.path.lexists(path) and not has_content(path):
            with suppress(OSError):
                path.unlink()
        raise


@contextmanager
def _connected(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    if os.path.lexists(path) and not stat.S_ISREG(path.stat().st_mode):
        raise ArtifactError(f"{path} is not a regular file, so it is not a journal of results. Choose another path.")
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=WAITS_S, isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        ends = time.monotonic() + READS_S
        connection.set_progress_handler(lambda: int(time.monotonic() > ends), 100_000)
        for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection
    finally:
        connection.close()


def _mode_of_readers(path: Path) -> str:
    """Return SQLite's mode for readers. They take part in the log and so need to write; where they cannot and there
    is no log, they read the file as immutable.
    """
    if os.access(path, os.W_OK) and os.access(path.absolute().parent, os.W_OK):
        return "rw"
    return "ro" if path.with_name(f"{path.name}-wal").exists() else "ro&immutable=1"


def _is_empty(connection: sqlite3.Connection) -> bool:
    objects: int = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    return objects == 0 and _number(connection, "user_version") == 0 == _number(connection, "application_id")


def _make(connection: sqlite3.Connection) -> None:
    for statement in (*SCHEMA, f"PRAGMA application_id={APPLICATION}", f"PRAGMA user_version={VERSION}"):
        connection.execute(statement)


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    value: int = connection.execute(f"PRAGMA {pragma}").fetchone()[0]
    return value


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raise ``ArtifactError`` unless the file holds our tables and nothing else: no views, no triggers."""
    application, version = _number(connection, "application_id"), _number(connection, "user_version")
    if application != APPLICATION:
        raise ArtifactError(f"{path} is a database of another program, so it is left alone. Choose another path.")
    if version > VERSION:
        raise OtherVersionError(
            f"{path} is a journal of version {version}; this prepbench reads {VERSION}. Open it with a newer "
            "prepbench, or choose another path."
        )
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY rootpage").fetchmany(50)
    if sorted(map(repr, found)) != sorted(map(repr, _expected())) or version != VERSION:
        raise DamagedJournalError(f"{path} is damaged or changed: it holds other tables than a journal does. {ASIDE}")


def _expected() -> list[tuple[str, str, str, str | None]]:
    rows: list[tuple[str, str, str, str | None]] = []
    for statement in SCHEMA:
        _, kind, name, *rest = statement.split()
        table = rest[1] if kind == "INDEX" else name
        rows.append((kind.lower(), name, table, statement))
        if kind == "TABLE":  # the primary key
            rows.append(("index", f"sqlite_autoindex_{name}_1", name, None))
    return rows


ASIDE = "Move it away: a new one is made at the next save, and the saved bench beside it has its own copy of the runs."


@contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _STORAGE:
            reason, remedy = _STORAGE[code]
            raise StorageError(
                f"The journal {path} cannot be used: {reason} ({sentence(error)}) What was in it before is still "
                f"there. {remedy}"
            ) from error
        raise DamagedJournalError(
            f"The journal {path} is damaged or not a journal: {sentence(error)} {ASIDE}"
        ) from error
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"The journal {path} cannot be used: {sentence(error)} Choose another folder.") from error
