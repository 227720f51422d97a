"""Cross-process lock: timing is exclusive, computing is shared.

``computing_lock`` takes the lock shared, ``timing_lock`` takes it exclusively. A second lock, the gate, is taken
first, so that a stream of computing tasks cannot starve one that waits to measure.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prepbench.errors import StorageError, sentence
from prepbench.jobs import Progress, ProgressCallback, check_cancelled, report_nothing

_PAUSE_S = 0.05
_WAITING = "waiting until the machine is free"
_held = threading.local()  # the lock that this thread holds


@contextmanager
def computing_lock(progress: ProgressCallback = report_nothing) -> Iterator[None]:
    """Hold the lock shared: no prepbench process measures time on this machine during the block.

    Args:
        progress: called while another process measures; it may raise to cancel.

    Raises:
        StorageError: there is no place for temporary files.
    """
    if getattr(_held, "lock", None) is not None:
        yield
        return
    with _locked(progress, exclusive=False):
        yield


@contextmanager
def timing_lock(progress: ProgressCallback = report_nothing) -> Iterator[None]:
    """Hold the lock exclusively: no other prepbench thread or process computes or measures during it.

    Within :func:`computing_lock` of the same thread, the shared lock is released for the time of the block.

    Args:
        progress: called while others compute; it may raise to cancel.

    Raises:
        StorageError: there is no place for temporary files.
    """
    outer = getattr(_held, "lock", None)
    if outer == "exclusive":
        yield
        return
    lock = getattr(_held, "file", None)
    if outer is not None:
        _unlock(lock)
    try:
        with _locked(progress, exclusive=True):
            yield
    finally:
        if outer is not None and lock is not None:  # shared again, for the rest of the outer block
            _wait(lock, report_nothing, exclusive=False)
            _held.lock, _held.file = outer, lock


@contextmanager
def _locked(progress: ProgressCallback, *, exclusive: bool) -> Iterator[None]:
    gate, lock = _opened("gate"), _opened("lock")
    try:
        _wait(gate, progress, exclusive=exclusive)
        _wait(lock, progress, exclusive=exclusive)
        if not exclusive:
            _unlock(gate)
        _held.lock, _held.file = "exclusive" if exclusive else "shared", lock
        yield
    finally:
        _held.lock = _held.file = None
        os.close(lock)  # which gives both up
        os.close(gate)


def _opened(name: str) -> int:
    """Open a lock file of the machine; the first process creates it, for all users. Nothing is written to it."""
    path = Path(tempfile.gettempdir()) / f"prepbench-machine.{name}"
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
        return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise StorageError(
            f"{path}, by which processes that measure time wait for each other, cannot be used: {sentence(error)} Set "
            "TMPDIR to a folder that can be written to."
        ) from error


def _wait(file: int, progress: ProgressCallback, *, exclusive: bool) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where timing processes take turns by hand
        return
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            check_cancelled(_WAITING)
            progress(Progress(_WAITING))
            time.sleep(_PAUSE_S)


def _unlock(file: int | None) -> None:
    with suppress(ImportError):
        import fcntl

        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
