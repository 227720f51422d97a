"""Measure how much other programs load the machine during timing."""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType

import psutil

_LEAST = 0.5
"""Fewer cores than this are what a browser with a notebook takes anyway."""


class OtherPrograms:
    """Counts the cores that other programs keep busy in a block; this process and its children do not count.

    Attributes:
        cores: how many, on average; 0 until the block ends, and where less than half of one was busy.

    Example:
        >>> with OtherPrograms() as others:
        ...     pass
        >>> others.cores >= 0
        True
    """

    def __init__(self) -> None:
        self.cores = 0.0

    def __enter__(self) -> OtherPrograms:
        self._start = time.perf_counter(), _busy_seconds() - _own_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        began, before = self._start
        seconds = max(time.perf_counter() - began, 1e-9)
        # the system counts in hundredths of a second
        cores = (_busy_seconds() - _own_seconds() - before) / seconds if seconds > 0.1 else 0.0
        self.cores = cores if cores >= _LEAST else 0.0


def load_warning(cores: float, threads: int) -> str:
    """Return a warning if other programs leave fewer cores than ``threads``; else ""."""
    count = os.cpu_count() or 1
    if cores == 0 or cores + threads <= count:
        return ""
    return f"other programs kept {min(cores, count):.1f} of {count} cores busy meanwhile"


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # time of guests is in that of users, too
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    return float(sum(times) - idle - twice)


def _own_seconds() -> float:
    own = psutil.Process()
    times = [own.cpu_times()]
    for child in own.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times.append(child.cpu_times())
    return float(sum(sum(each[:4]) for each in times))
