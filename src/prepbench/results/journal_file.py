"""The file of a journal: SQLite with a schema of our own, which is verified before anything in it is read."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prepbench import interrupts
from prepbench.errors import ArtifactError, StorageError, sentence

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
