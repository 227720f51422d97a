"""Limit time, and defer Ctrl-C while something is replaced or restored, to raise it at the next safe point.

Python raises ``KeyboardInterrupt`` between any two steps of the main thread, also in the middle of a ``finally``. So
code that has to restore state runs inside :func:`held`, which defers interrupts. :func:`safe_point` raises a deferred
one, and so does the end of the block. Python never interrupts other threads.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

_PATIENCE = 3
"""The number of Ctrl-C presses that interrupts at once, without a safe point."""

_ANSWERING = ("/torch/_subclasses/", "/torch/fx/experimental/", "/torch/utils/weak.py", "/sympy/")
"""Code of which C++ or the garbage collector may wait for an answer, or that fills tables step by step: an exception
there can end the process, be lost, or leave torch unusable."""

_BLOCKS = ("__enter__", "__exit__", "enter_context")
"""Functions of ``contextlib`` that begin and end blocks."""

_AGAIN = 0.05
"""Seconds until an interrupt is tried again that came where it must not be raised, and no safe point follows."""


class _State:
    """The main thread's state of interrupts."""

    def __init__(self) -> None:
        self.depth = 0
        self.noted = 0
        self.open = False
        self.around: list[bool] = []
        """For each held block, the outermost first, whether Ctrl-C acts at once around it."""
        self.is_again = False
        self.previous: Callable[[int, Any], Any] | None = None
        self.told: Callable[[], None] | None = None


_state = _State()
_restoring: dict[int, int] = {}
_restoring_lock = threading.Lock()


def _is_main() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _on_interrupt(number: int, frame: Any) -> None:
    _state.noted += not _state.is_again
    _state.is_again = False
    if _state.open or _state.noted >= _PATIENCE:
        if _may_raise(frame) and (_state.open or not _is_between_blocks(frame)):
            _raise(frame)
        _try_again_soon()
    if _state.told is not None and _state.noted == 1:
        # a handler runs between any two steps, perhaps inside the very code that shows progress
        threading.Thread(target=contextvars.copy_context().run, args=(_state.told,), daemon=True).start()


def _may_raise(frame: Any) -> bool:
    """Return whether nothing is put back here, nothing is freed, and torch does not trace, which has safe points."""
    if threading.get_ident() in _restoring:
        return False
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or any(part in code.co_filename for part in _ANSWERING):
            return False
        frame = frame.f_back
    return True


def _is_between_blocks(frame: Any) -> bool:
    """Return whether a block begins or ends here: one that an exception leaves between its replacement and the step
    that undoes it is put back late, behind the blocks around it, and so brings back what these replaced.
    """
    while frame is not None:
        if frame.f_code.co_filename == contextlib.__file__ and frame.f_code.co_name in _BLOCKS:
            return True
        frame = frame.f_back
    return False


def _try_again_soon() -> None:
    """Send the noted interrupt once more; in vain if a safe point has raised it by then."""

    def send() -> None:
        if _state.noted and _state.depth:
            _state.is_again = True
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    if hasattr(signal, "pthread_kill"):
        timer = threading.Timer(_AGAIN, send)
        timer.daemon = True
        timer.start()


def _raise(frame: Any = None) -> None:
    """Run the previous signal handler: for the usual one, raise ``KeyboardInterrupt``."""
    _state.noted, _state.open = 0, False
    handler = _state.previous or signal.default_int_handler
    handler(signal.SIGINT, frame)


@contextmanager
def held() -> Iterator[None]:
    """Defer Ctrl-C during the block; :func:`safe_point` or the end of the outermost block raises it.

    The third Ctrl-C is raised at once, but not while torch traces. A handler that ignores interrupts, or ends the
    process, stays as it is.

    Example:
        >>> with held():
        ...     safe_point()
    """
    if not _is_main():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)
    outermost = previous is not _on_interrupt and callable(previous)
    was_open, before = _state.open, _state.previous
    if outermost:
        _state.previous = previous  # type: ignore[assignment]
        signal.signal(signal.SIGINT, _on_interrupt)
    _state.open = False
    _state.depth += 1
    _state.around.append(was_open or outermost)
    try:
        yield
    finally:
        _state.around.pop()
        _state.depth -= 1
        _state.open = was_open
        if outermost:
            pending, _state.noted, _state.previous = _state.noted, 0, before
            # from here on interrupts reach the previous handler
            signal.signal(signal.SIGINT, previous)
            if pending:
                previous(signal.SIGINT, None)  # type: ignore[operator, misc]


def safe_point() -> None:
    """Raise a deferred interrupt; call it where no change is half done."""
    if _state.noted and _is_main():
        _raise()


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Ctrl-C at once during the block, which lies inside a :func:`held` one: no change is half done here."""
    if not _is_main() or not _state.depth:
        yield
        return
    safe_point()
    before = _state.open
    try:
        _state.open = True
        yield
    finally:
        _state.open = before


@contextmanager
def as_around() -> Iterator[None]:
    """Let Ctrl-C act in the block, which lies directly inside a :func:`held` one, as it does around that."""
    if _is_main() and _state.around and _state.around[-1]:
        with interruptible():
            yield
    else:
        yield


@contextmanager
def restoring() -> Iterator[None]:
    """Hold back the third Ctrl-C and time limits during the block, which must be short."""
    thread = threading.get_ident()
    with held():
        with _restoring_lock:
            _restoring[thread] = _restoring.get(thread, 0) + 1
        try:
            yield
        finally:
            with _restoring_lock:
                _restoring[thread] -= 1
                if not _restoring[thread]:
                    del _restoring[thread]


def raise_in_thread(thread: int, kind: type[BaseException]) -> bool:
    """Raise an exception in another thread, at its next step of Python; return False if it is restoring state now."""
    with _restoring_lock:
        if thread in _restoring:
            return False
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
        return True


@contextmanager
def told_of_interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` when an interrupt is deferred during the block, so that the user sees a response."""
    before = _state.told
    try:
        if _is_main():
            _state.told = tell
        yield
    finally:
        if _is_main():
            _state.told = before


_POLL = 0.01


class TimeLimitReached(BaseException):
    """Raised when the block's time is over. Not an ``Exception``, so that code which catches errors does not go on."""


class TimeLimit:
    """Raises :class:`TimeLimitReached` inside its block, in the thread that entered it, once the time is over.

    The exception appears at the next step of Python code; a long call into C++ finishes first.

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
