"""Watch a journal for changes by others, as long as the bench is shown."""

from __future__ import annotations

import contextvars
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

from prepbench.errors import PrepbenchError

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
