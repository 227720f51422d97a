"""A limit on how long a block of Python may run, in any thread."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from prepbench.interrupts import raise_in_thread

_POLL = 0.01


class TimeLimitReached(BaseException):
    """Raised when the block's time is over. Not an ``Exception``, so that code which catches errors does not go on."""


class TimeLimit:
    """Raises :class:`TimeLimitReached` inside its block, in the thread that entered it, once the time is over.

    The exception appears at the next step of Python code; a long call into C++ finishes first.

    Args:
        seconds: the limit of the block.

    Example:
        >>> with TimeLimit(10):
        ...     total = sum(range(10))
    """

    def __init__(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._stop)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._thread = 0
        self._over = False

    def __enter__(self) -> TimeLimit:
        self._thread = threading.get_ident()
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            # from here on the timer does nothing, so that the exception cannot arrive after the block
            self._over = True
        self._timer.cancel()

    def _stop(self) -> None:
        while True:
            with self._lock:
                self._over = self._over or raise_in_thread(self._thread, TimeLimitReached)
                if self._over:
                    return
            time.sleep(_POLL)
