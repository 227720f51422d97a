"""Open a journal for writing; a damaged file or one of another version is renamed first."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from prepbench.checks import check_path
from prepbench.errors import sentence
from prepbench.results.journal import Journal
from prepbench.results.journal_file import ASIDE, DamagedJournalError, OtherVersionError, files_of_journal

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
