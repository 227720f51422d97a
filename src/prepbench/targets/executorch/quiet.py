"""Keeping ExecuTorch's messages out of the user's output."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Iterator
from typing import IO

_LOCK = threading.RLock()


class Heard:
    """What was written to standard error meanwhile: by C++ to the descriptor, by Python bindings to ``sys.stderr``."""

    def __init__(self, file: IO[bytes], text: io.StringIO) -> None:
        self._file = file
        self._text = text

    def text(self) -> str:
        """The messages in one line; to be asked inside the block."""
        self._file.seek(0)
        return " ".join((self._text.getvalue() + self._file.read().decode(errors="replace")).split())


@contextlib.contextmanager
def quiet() -> Iterator[Heard]:
    """Inside the block nothing is shown: neither warnings and logs of Python nor messages of C++.

    The package also configures the root logger when it is imported; its handlers and level are put back.
    """
    root = logging.getLogger()
    with _LOCK, tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handlers, level, disabled = list(root.handlers), root.level, logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            with contextlib.redirect_stderr(io.StringIO()) as text, _descriptor_2(file):
                yield Heard(file, text)
        finally:
            logging.disable(disabled)
            root.handlers[:] = handlers
            root.setLevel(level)


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
