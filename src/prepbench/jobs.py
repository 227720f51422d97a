"""Progress, cancellation and background jobs, shared by every long-running stage."""

from __future__ import annotations

import atexit
import contextvars
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prepbench import interrupts
from prepbench._torch_compat.symbolic_fx import thread_local_fx_traces
from prepbench.checks import check_function, check_progress, check_seconds, check_switch
from prepbench.errors import PrepbenchError
from prepbench.internal_errors import internal_error

T = TypeVar("T")


class Cancelled(PrepbenchError, RuntimeError):
    """Raised after the user cancelled; no object of the caller has changed.

    Example:
        >>> def stop(progress):
        ...     raise Cancelled("enough")
        >>> try:
        ...     pb.compile_model(model, tracing_inputs=samples, progress=stop)
        ... except Cancelled as reason:
        ...     print(reason)
        enough
    """


@dataclass(frozen=True)
class Progress:
    """One step of a long-running call: ``done`` of ``total`` units of ``stage``.

    Example:
        >>> stages = []
        >>> compiled = pb.compile_model(
        ...     model,
        ...     tracing_inputs=samples,
        ...     deployment_settings=pb.EagerDeployment(),
        ...     progress=lambda step: stages.append(step.stage),
        ... )
        >>> "capture" in stages
        True
    """

    stage: str
    done: int = 0
    total: int = 1
    message: str = ""


STARTING = "starting"
"""The stage before the first step."""
CANCELLING = "cancelling"
"""The stage between asking a job to stop and its end."""

STAGES = {
    STARTING: "Starting",
    CANCELLING: "Cancelling",
    "capture": "Reading the model",
    "fix": "Trying changes",
    "prune": "Pruning",
    "prune layers": "Pruning",
    "solving for other budgets": "Choosing what to prune",
    "plan": "Choosing what to quantize",
    "check operators": "Looking for unsupported operators",
    "insert observers": "Choosing what to quantize",
    "smooth": "Moving outliers into weights",
    "equalise": "Equalising channels",
    "calibrate": "Choosing scales from samples",
    "measure": "Testing what rounding costs",
    "round weights": "Rounding weights",
    "convert": "Rounding weights",
    "lower": "Building",
    "accuracy": "Scoring",
    "score": "Scoring",
    "save": "Preparing the timing",
    "start": "Starting a process for each candidate",
    "warm up": "Warming up",
    "time": "Measuring time",
    "generate": "Generating text",
    "measure layers": "Testing layers one by one",
    "noise of layers": "Testing layers one by one",
    "time layers": "Measuring the time of layers",
    "front": "Weighing layers against each other",
    "search": "Trying the best mixtures",
    "sweep": "Compiling and comparing",
    "recover": "Training back",
    "watch": "Counting values",
    "samples": "Comparing both on each sample",
    "waiting for another compile": "Waiting for another compile",
    "waiting until the machine is free": "Waiting until the machine is free",
}
"""The stages as a person would call them."""


def stage_words(step: Progress) -> str:
    """Return what goes on in a step: ``"Testing layers one by one · layers.3.up: int8"``."""
    return " · ".join(filter(None, (STAGES.get(step.stage, step.stage), step.message)))


ProgressCallback = Callable[[Progress], None]


def report_nothing(progress: Progress) -> None:
    """The default progress callback."""


_cancelled: contextvars.ContextVar[threading.Event | None] = contextvars.ContextVar("cancelled", default=None)


def check_cancelled(stage: str = "") -> None:
    """Raise if the job that runs this code was cancelled, or if Ctrl-C is pending.

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
    words = STAGES.get(stage, stage)
    where = f" while {words[:1].lower()}{words[1:]}" if stage else ""
    return f"Cancelled{where}. Nothing was changed; start it again when ready."


_running: weakref.WeakSet[Job[Any]] = weakref.WeakSet()
_LAST = 3.0  # seconds that jobs have to end in when the process does


@atexit.register
def _end_all() -> None:
    """Cancel what runs when the interpreter exits: a thread that it stops within C++ code aborts the process."""
    last, jobs = time.monotonic() + _LAST, [job for job in _running if not job.done]
    for job in jobs:
        job._cancel.set()
    for job in jobs:
        job._thread.join(max(last - time.monotonic(), 0))


class Job(Generic[T]):
    """A function that runs in a thread, without blocking the notebook.

    The thread runs in a copy of the caller's context, so that widget updates made inside it
    reach the cell that started it on every ipykernel version.

    Args:
        function: called once with a progress callback. Cancellation is delivered by that callback, which
            raises :class:`Cancelled`, and by :func:`check_cancelled`, which loops call between two steps.
        progress: receives each step, in the job's thread.
        on_begin: called before the function, by who begins the job; not where it was cancelled before.
        on_end: called once at the end, with the error or None: in the job's thread, or in that of who cancels a job
            that has not begun.
        waits: begin only when :meth:`begin` is called.

    Example:
        >>> job = Job(lambda progress: 6 * 7)
        >>> job.result()
        42
    """

    def __init__(
        self,
        function: Callable[[ProgressCallback], T],
        progress: ProgressCallback = report_nothing,
        *,
        on_begin: Callable[[], None] | None = None,
        on_end: Callable[[BaseException | None], None] | None = None,
        waits: bool = False,
    ) -> None:
        check_function("function", function, "function(progress)")
        check_progress(progress)
        check_function("on_begin", on_begin, "on_begin()", optional=True)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        check_switch("waits", waits)
        self._function = function
        self._progress = progress
        self._on_begin, self._on_end = on_begin, on_end
        self._cancel, self._ended = threading.Event(), threading.Event()
        self._waits = threading.Lock()  # acquired by the one who starts the job, or cancels it before its start
        self._value: T | None = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        if not waits:
            self.begin()

    def begin(self) -> None:
        """Start a waiting job; do nothing if it has started or was cancelled."""
        if self._waits.acquire(blocking=False):
            if self._on_begin is not None:
                self._on_begin()
            _running.add(self)
            self._thread.start()

    def _run(self) -> None:
        _cancelled.set(self._cancel)
        try:
            with thread_local_fx_traces():
                self._value = self._function(self._step)
        except _Stop as stop:
            self._error = Cancelled(str(stop)).with_traceback(stop.__traceback__)
        except BaseException as error:  # delivered by result()
            self._error = internal_error(error, of_libraries=True) or error
        self._end()

    def _end(self) -> None:
        try:
            if self._on_end is not None:
                self._on_end(self._error)
        except BaseException as error:  # delivered by result(), too
            self._error = self._error or error
        finally:
            self._ended.set()

    def _step(self, progress: Progress) -> None:
        if self._cancel.is_set():
            raise Cancelled(_text(progress.stage))
        self._progress(progress)

    def cancel(self) -> None:
        """Ask the job to stop at its next step, which progress reports at once; a waiting job never starts."""
        if self.done or self._cancel.is_set():
            return
        self._cancel.set()
        if self._waits.acquire(blocking=False):
            self._error = Cancelled(_text(""))
            self._end()
        else:
            self._progress(Progress(CANCELLING, message="Cancelling ..."))

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value.

        Args:
            timeout: in seconds; None waits for ever.

        Returns:
            What the function returned.

        Raises:
            TimeoutError: it is still running.
            Exception: the error of the function.
        """
        check_seconds("timeout", timeout, optional=True)
        if not self._ended.wait(timeout):
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
            state = "cancelling" if self._cancel.is_set() else "running" if self._waits.locked() else "waiting"
        return f"Job({state})"
