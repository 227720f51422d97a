"""A child process that times one candidate, as the parent sees it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prepbench.errors import PrepbenchError
from prepbench.measure.forked import WORKER, start
from prepbench.storage import temporary_space

_HEARTBEAT_S = 0.2
_TAIL_LINES = 15


class LatencyError(PrepbenchError, RuntimeError):
    """The process that times a candidate failed."""


class LatencyTimeoutError(LatencyError, TimeoutError):
    """The process that times a candidate did not answer in time."""


class WorkerProcess:
    """One worker process. It starts at once; :meth:`times_ns` asks it for times, and :meth:`close` ends it.

    Args:
        name: the candidate's name, for error messages.
        command: the program and its arguments.
        log: file for the worker's standard error.
        threads: number of threads for the worker's libraries.
        timeout: seconds to wait for each answer; None waits for ever.
        heartbeat: called about five times a second while waiting; it may raise to cancel.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        threads: int,
        timeout: float | None,
        heartbeat: Callable[[], None],
    ) -> None:
        self._name = name
        self._log = log
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._lines: queue.Queue[str | None] = queue.Queue()
        with temporary_space():
            written = log.open("wb")
        with written as errors:
            self._process = start(command, errors, environment(threads), heartbeat)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def load(self, name: str, artifact: Path, inputs: Path, heartbeat: Callable[[], None]) -> None:
        """Ask the process to drop its model and load another one; :meth:`wait_until_ready` waits for that.

        Args:
            name: the candidate's name, for error messages.
            artifact: folder of the saved model.
            inputs: folder of its inputs.
            heartbeat: called about five times a second while waiting, from now on.
        """
        self._name, self._heartbeat = name, heartbeat
        self._ask({"load": [str(artifact), str(inputs)]})

    @property
    def pid(self) -> int:
        """The process number."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded."""
        self._answer("ready", "while it loaded the model")

    def times_ns(self, settle: int, calls: int) -> list[int]:
        """Return the nanoseconds of ``calls`` calls after ``settle`` untimed ones.

        Raises:
            LatencyError: the process ended or its answer was unreadable.
            LatencyTimeoutError: no answer came in time.
        """
        self._ask({"settle": settle, "calls": calls})
        return [int(t) for t in self._answer("times_ns", "while it ran the model")]

    def generated(self, new_tokens: int, prompt: int) -> tuple[list[int], int]:
        """Return the nanoseconds of each token after a prompt of the inputs, and the process's peak memory in bytes.

        Raises:
            LatencyError: the process ended or its answer was unreadable.
            LatencyTimeoutError: no answer came in time.
        """
        self._ask({"prompt": prompt, "new_tokens": new_tokens})
        answer = self._answer("generated", "while it generated text")
        return [int(t) for t in answer["times_ns"]], int(answer["peak_bytes"])

    def _ask(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended: reading its answer finds that out and tells why
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """Ask the process to end, without waiting: its standard input is closed."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):  # a request was still buffered for a process that has ended
                self._process.stdin.close()

    def kill(self) -> None:
        """End the process at once; :meth:`close` still has to be called."""
        self._process.kill()

    def close(self) -> None:
        """End the process, by force if it does not end by itself, and wait until it has ended."""
        self.dismiss()
        for grace, harder in ((1.0, self._process.terminate), (2.0, self._process.kill)):
            try:
                self._process.wait(grace)
                break
            except subprocess.TimeoutExpired:
                harder()
        self._process.wait()
        self._reader.join(1.0)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _answer(self, key: str, doing: str) -> Any:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            try:
                line = self._lines.get(timeout=_HEARTBEAT_S)
                break
            except queue.Empty:
                self._heartbeat()
                if deadline is not None and time.monotonic() > deadline:
                    raise self._timed_out(doing) from None
        try:
            return json.loads(line or "")[key]
        except (ValueError, KeyError, TypeError) as error:
            if line is not None:
                raise LatencyError(
                    f"candidate {self._name!r}: its timing process answered {line[:80]!r}.{self._tail()}"
                ) from error
            raise self._ended(doing) from None

    def _ended(self, doing: str) -> LatencyError:
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        hint = " (often: out of memory)" if code == -signal.SIGKILL else ""
        return LatencyError(
            f"candidate {self._name!r}: its timing process ended with {how}{hint} {doing}. Save the candidate and "
            "load it in a fresh Python to see the failure alone, or pass rounds=0 to compare without timing."
            f"{self._tail()}"
        )

    def _timed_out(self, doing: str) -> LatencyTimeoutError:
        return LatencyTimeoutError(
            f"candidate {self._name!r}: its timing process gave no answer within {self._timeout:g} s {doing}. "
            f"Raise timeout=, give a smaller first batch, or pass rounds=0 to compare without timing.{self._tail()}"
        )

    def _tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        return " Last lines of its error output:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def worker_command(artifact: Path | str, inputs: Path | str, threads: int) -> list[str]:
    """Return the command that times ``artifact``; an empty one is set later by :meth:`WorkerProcess.load`."""
    return [*WORKER, str(artifact), str(inputs), str(threads)]


def environment(threads: int) -> dict[str, str]:
    """Return the parent's environment, with this prepbench importable and the number of threads fixed."""
    home = str(Path(__file__).resolve().parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    count = str(threads)
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
    }
