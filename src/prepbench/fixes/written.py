"""Writing changes into the user's files."""

from __future__ import annotations

import os
import tokenize
from collections.abc import Iterable, Sequence
from pathlib import Path

from prepbench.errors import StorageError
from prepbench.fixes.source_text import SourceText
from prepbench.storage import typed_errors, write_file


def write_sources(sources: Iterable[SourceText]) -> list[Path]:
    """Write the changed texts of files, all or none: each is complete beside its place before one is moved in.

    Raises:
        StorageError: a file has changed since it was read, is no file, or cannot be written.
    """
    changed = [source for source in sources if source.text != source.original]
    encodings = {source.file: _checked(source) for source in changed}
    _write_all([(Path(source.file), source.text.encode(encodings[source.file])) for source in changed])
    return [Path(source.file) for source in changed]


def _write_all(files: Sequence[tuple[Path, bytes]]) -> None:
    if files:
        (path, data), *others = files
        write_file(path, data, before=lambda: _write_all(others))


def _checked(source: SourceText) -> str:
    """The encoding of a file that is as it was read."""
    path = Path(source.file)
    if not path.is_file():
        raise StorageError(
            f"{source.file} is no file, so nothing was written. Print .code() and run it in a cell of its own."
        )
    with typed_errors(path), tokenize.open(path) as opened:
        text, encoding = opened.read(), opened.encoding
    if text != source.original:
        raise StorageError(
            f"{source.file} has changed since it was read, so nothing was written. Import it again and call pb.fix "
            "again."
        )
    if not os.access(path, os.W_OK):
        raise StorageError(f"{source.file} is read-only, so nothing was written. Make it writable, or use .code().")
    return encoding
