"""Keeping ExecuTorch's messages out of the user's output."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

from prepbench.patching import logs_dropped_here, output_here, undoing, warnings_ignored_here

_LOCK = threading.RLock()


class Heard:
    """What was written to standard error meanwhile: by C++ to the descriptor, by Python bindings to ``sys.stderr``."""

    def __init__(self, file: IO[bytes], text: io.StringIO) -> None:
        self._file = file
        self._text = text

    def text(self) -> str:
        """The messages in one line; call it inside the block."""
        self._file.seek(0)
        return " ".join((self._text.getvalue() + self._file.read().decode(errors="replace")).split())


@contextlib.contextmanager
def quiet() -> Iterator[Heard]:
    """Inside the block nothing is shown: neither warnings and logs of Python nor messages of C++.

    The package also configures the root logger when it is imported; its handlers and level are put back.
    """
    root = logging.getLogger()
    handlers, level, text = list(root.handlers), root.level, io.StringIO()
    with _LOCK, tempfile.TemporaryFile() as file, warnings_ignored_here(), logs_dropped_here(), undoing() as undo:
        undo.add(lambda: root.setLevel(level))
        undo.add(lambda: root.handlers.__setitem__(slice(None), handlers))
        with output_here(sys.stdout, text), _descriptor_2(file):
            yield Heard(file, text)


@contextlib.contextmanager
def _descriptor_2(file: IO[bytes]) -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
