"""Progress, cancellation and background jobs, shared by every long-running stage."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prepbench import interrupts
from prepbench.checks import check_function, check_progress, check_seconds
from prepbench.errors import PrepbenchError

T = TypeVar("T")


class Cancelled(PrepbenchError, RuntimeError):
    """The user cancelled; nothing that the caller owns was changed."""


@dataclass(frozen=True)
class Progress:
    """One step of a long-running call: ``done`` of ``total`` units of ``stage``."""

    stage: str
    done: int = 0
    total: int = 1
    message: str = ""


CANCELLING = "cancelling"
"""The stage between asking a job to stop and its end."""

ProgressCallback = Callable[[Progress], None]


def report_nothing(progress: Progress) -> None:
    """The default progress callback."""


_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancelled", default=None)


def check_cancelled(stage: str = "") -> None:
    """Raise if the job that this code is part of was cancelled, or if Ctrl-C waits to be acted on.

    Called in loops, where nothing is half done: for each operation traced, each batch, each layer.

    Raises:
        KeyboardInterrupt: somebody pressed Ctrl-C.
        BaseException: the job was cancelled; its ``result()`` raises :class:`Cancelled`.
    """
    interrupts.safe_point()
    flag = _cancelled.get()
    if flag is not None and flag.is_set():
        raise _Stop(_text(stage))


class _Stop(BaseException):
    """The job was cancelled; not an ``Exception``, so that no model and no fallback takes it for an error."""


def _text(stage: str) -> str:
    return f"Cancelled{f' during {stage}' if stage else ''}. Nothing was changed; start it again when ready."


class Job(Generic[T]):
    """A function that runs in a thread while the notebook stays usable.

    The thread runs in a copy of the caller's context, so that widget updates made inside it
    reach the cell that started it on every ipykernel version.

    Args:
        function: called once with a progress callback. Cancellation is delivered by that callback, which
            raises :class:`Cancelled`, and by :func:`check_cancelled`, which loops call between two steps.
        progress: receives each step, in the job's thread.

    Example:
        >>> job = Job(lambda progress: 6 * 7)
        >>> job.result()
        42
    """

    def __init__(self, function: Callable[[ProgressCallback], T], progress: ProgressCallback = report_nothing) -> None:
        check_function("function", function, "function(progress)")
        check_progress(progress)
        self._function = function
        self._progress = progress
        self._cancel = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _cancelled.set(self._cancel)
        try:
            self._value = self._function(self._step)
        except _Stop as stop:
            self._error = Cancelled(str(stop)).with_traceback(stop.__traceback__)
        except BaseException as error:  # delivered by result()
            self._error = error

    def _step(self, progress: Progress) -> None:
        if self._cancel.is_set():
            raise Cancelled(_text(progress.stage))
        self._progress(progress)

    def cancel(self) -> None:
        """Ask the job to stop at its next step; progress says at once that it was heard."""
        if not self.done and not self._cancel.is_set():
            self._cancel.set()
            self._progress(Progress(CANCELLING, message="Cancelling ..."))

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return not self._thread.is_alive()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value; raises what the function raised, or ``TimeoutError`` after ``timeout`` seconds."""
        check_seconds("timeout", timeout, optional=True)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"The job is still running after {timeout} s.")
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        state = "failed" if self._error is not None else "done"
        if not self.done:
            state = "cancelling" if self._cancel.is_set() else "running"
        return f"Job({state})"
