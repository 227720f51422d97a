"""The lock around tracing, export, patching and lowering, which torch supports in one thread at a time."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prepbench import interrupts
from prepbench._torch_compat.exporting import graphs_let_go, sources_let_go
from prepbench._torch_compat.threads import is_traced_elsewhere, locks, others_wait, safe_points, torch_traces_here
from prepbench.jobs import CANCELLING, Progress, ProgressCallback, check_cancelled, report_nothing
from prepbench.patching import undoing
from prepbench.storage import check_temporary_space

WAITING = "waiting for another compile"
_POLL = 0.1

_CALLS = 4000
"""Nested calls while tracing: each module around an operation takes some more than when the model runs."""

_depth = threading.local()
_waiting: set[int] = set()
"""Threads that wait here for a lock. Who holds it must not wait for them."""


@contextmanager
def tracing(progress: ProgressCallback = report_nothing, *, with_dynamo: bool = True) -> Iterator[None]:
    """Hold the process-wide, re-entrant tracing lock during the block.

    A waiting thread reports "waiting for another compile" as progress and can be cancelled. Inside, Ctrl-C takes effect
    at the next :func:`prepbench.jobs.check_cancelled`, and torch's patches for tracing apply to this thread only. Other
    threads that export or trace with torch itself wait, as this one waits for theirs.

    Args:
        progress: told when this thread has to wait.
        with_dynamo: false where only ``torch.fx`` traces, and loading dynamo would take longer than that.

    Raises:
        StorageError: dynamo has to be loaded, and there is no place for temporary files.

    Example:
        >>> with tracing():
        ...     graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    """
    outermost = not getattr(_depth, "value", 0)
    with undoing() as undo:
        check_cancelled()
        if with_dynamo and "torch._dynamo" not in sys.modules:
            check_temporary_space()  # where dynamo looks for a folder of its own when it is imported
        for lock in locks(with_dynamo):
            _wait(lock, progress)
            undo.add(lock.release)
        undo.add(lambda: setattr(_depth, "value", _depth.value - 1))
        _depth.value = getattr(_depth, "value", 0) + 1
        if not outermost:
            yield
            return

        undo.add(functools.partial(sys.setrecursionlimit, sys.getrecursionlimit()))
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _CALLS))

        def tell() -> None:
            progress(Progress(CANCELLING, message="Cancelling ..."))

        with interrupts.told_of_interrupts(tell), others_wait():
            _wait_for_others(progress)
            with torch_traces_here(), safe_points(check_cancelled), graphs_let_go(), sources_let_go():
                yield


def _wait(lock: Any, progress: ProgressCallback) -> None:
    if lock.acquire(blocking=False):
        return
    progress(Progress(WAITING, message="Another compile is running; this one starts when it ends."))
    here = threading.get_ident()
    _waiting.add(here)
    try:
        while not lock.acquire(timeout=_POLL):
            check_cancelled(WAITING)
    finally:
        _waiting.discard(here)


def _wait_for_others(progress: ProgressCallback) -> None:
    """Wait until no other thread traces that began before this one and does not use the lock."""
    if is_traced_elsewhere(_waiting):
        progress(Progress(WAITING, message="Another thread traces; this compile starts when it ends."))
        while is_traced_elsewhere(_waiting):
            time.sleep(_POLL / 10)
            check_cancelled(WAITING)
