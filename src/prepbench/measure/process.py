"""Processes that time candidates, as the parent sees them: started, forked, kept; and the load of the machine."""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn, Protocol, TextIO

import psutil
import torch

from prepbench import interrupts
from prepbench.errors import PrepbenchError
from prepbench.jobs import Progress, ProgressCallback
from prepbench.measure.artifacts import Artifact
from prepbench.measure.transfer import inputs_of
from prepbench.results.speed_up import is_busy
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
        """Ask the process to drop its model and load another one; :meth:`wait_until_ready` waits for that."""
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


# Repeat progress reports during waits for a process.


class Steps:
    """Reports progress, and repeats the last step during waits for a worker, so that cancelling works at any time."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self._last: Progress | None = None

    def __call__(self, step: Progress) -> None:
        """Report a new step."""
        self._last = step
        self._progress(step)

    def again(self) -> None:
        """Report the last step again."""
        if self._last is not None:
            self._progress(self._last)


# Timing processes that are reused: starting one takes longer than timing does.


_STAY = 2
"""Processes that keep their model after a timing; the others end, because a model takes memory."""


class KeptWorkers:
    """Processes that load one saved model after another; each holds one model at a time, so no two share a process.

    Args:
        folder: an existing folder for their logs.
        timeout: seconds to wait for each answer; None waits for ever.

    Example:
        >>> with KeptWorkers(folder, 60.0) as kept:  # doctest: +SKIP
        ...     kept.begin(2)
        ...     times = measure_latency(candidates, artifacts, sample, folder, kept=kept, **others)
    """

    def __init__(self, folder: Path, timeout: float | None) -> None:
        self._folder, self._timeout = folder, timeout
        self._started = 0
        self._idle: list[WorkerProcess] = []
        self._loaded: dict[Path, WorkerProcess] = {}
        self._targets: dict[Path, str] = {}

    def __enter__(self) -> KeptWorkers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(at_once=kind is not None)  # cancelling does not wait for a process that is still starting

    def begin(self, count: int) -> None:
        """Start this many processes without waiting for them, unless some exist.

        On Linux only the template starts, from which they are forked at once when needed.
        """
        threads = torch.get_num_threads()
        if begin(worker_command("", "", threads), environment(threads)):
            return
        with interrupts.held():
            while len(self._idle) + len(self._loaded) < count:
                self._idle.append(self._new(lambda: None))

    @contextlib.contextmanager
    def serving(
        self, artifacts: Mapping[str, Artifact], folder: Path, steps: Steps
    ) -> Iterator[dict[str, WorkerProcess]]:
        """Yield a process for every saved candidate, with its model loaded; models that are loaded already stay.

        A process that has held a model loads further ones of the same target only: runtimes disturb each other.
        """
        saved = {name: each.folder for name, each in artifacts.items() if each.folder is not None}
        self._targets.update({path: artifacts[name].target for name, path in saved.items()})
        try:
            with interrupts.held():
                new = [name for name, path in saved.items() if path not in self._loaded]
                for name in new:
                    self._load(name, saved[name], folder, steps, saved)
            for position, name in enumerate(new):
                steps(Progress("start", position, len(new), name))
                self._loaded[saved[name]].wait_until_ready()
            yield {name: self._loaded[path] for name, path in saved.items()}
        except BaseException:  # one has failed, or the others are in the middle of an answer
            self.close(at_once=True)
            raise
        with interrupts.held():
            self._idle += [self._loaded.pop(path) for path in list(self._loaded)[_STAY:]]
            self._end(self._idle)
            self._idle = []

    def close(self, *, at_once: bool = False) -> None:
        """End all processes."""
        with interrupts.held():
            workers = [*self._idle, *self._loaded.values()]
            if at_once:
                for worker in workers:
                    worker.kill()
            self._end(workers)
            self._idle, self._loaded = [], {}

    def _load(self, name: str, path: Path, folder: Path, steps: Steps, saved: Mapping[str, Path]) -> None:
        others = [each for each in self._loaded if each not in saved.values()]
        same = [each for each in others if self._targets[each] == self._targets[path]]
        idle = self._idle.pop() if self._idle and not same else None
        worker = self._loaded.pop(same[0]) if same else idle or self._new(steps.again)
        self._loaded[path] = worker
        own = inputs_of(path)
        worker.load(name, path, own if own.exists() else folder / "inputs", steps.again)

    def _new(self, heartbeat: Callable[[], None]) -> WorkerProcess:
        threads, self._started = torch.get_num_threads(), self._started + 1
        return WorkerProcess(
            "",
            worker_command("", "", threads),
            self._folder / f"worker{self._started}.log",
            threads=threads,
            timeout=self._timeout,
            heartbeat=heartbeat,
        )

    @staticmethod
    def _end(workers: list[WorkerProcess]) -> None:
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.close()


# Start timing processes quickly by forking one that has loaded PyTorch.
#
# Loading takes seconds of a core for each candidate. Where forking is unsafe (other systems than Linux), and where the
# template process fails, processes are started afresh.


_COPIED_S = 60.0
_LOADED_S = 300.0


class Process(Protocol):
    """The part of ``subprocess.Popen`` that is needed here."""

    @property
    def pid(self) -> int:
        """The process number."""

    @property
    def stdin(self) -> IO[str] | None:
        """The process's standard input."""

    @property
    def stdout(self) -> IO[str] | None:
        """The process's standard output."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, or minus the number of the signal that ended it."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


def start(
    command: Sequence[str], errors: IO[bytes], environment: Mapping[str, str], heartbeat: Callable[[], None]
) -> Process:
    """Start a timing process, with pipes as its standard input and output and ``errors`` as its standard error.

    Args:
        command: the program and its arguments.
        errors: an open file.
        environment: all of the variables that it sees.
        heartbeat: called about five times a second while the process to copy loads; it may raise to cancel.
    """
    if _is_copied(command):
        with contextlib.suppress(TemplateError):  # then in the usual way, which tells what is wrong
            made = _template(environment)
            with interrupts.interruptible():
                made.wait_until_ready(heartbeat)
            return made.copy(list(command[len(WORKER) :]), errors)
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=dict(environment),
        text=True,
        encoding="utf-8",
    )


def begin(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start the template process without waiting for it; return False where ``command`` cannot be forked from it."""
    if not _is_copied(command):
        return False
    with contextlib.suppress(TemplateError):
        _template(environment)
        return True
    return False


def _is_copied(command: Sequence[str]) -> bool:
    return sys.platform == "linux" and tuple(command[: len(WORKER)]) == WORKER


class TemplateError(Exception):
    """The template process could not be started."""


WORKER = (sys.executable, "-P", "-m", "prepbench.measure.worker")
"""The program of a timing process; ``-P`` keeps files in the notebook's folder from shadowing modules."""


class ForkedProcess:
    """A fork of the template. See :class:`Process`."""

    def __init__(self, stdin: TextIO, stdout: TextIO, told: IO[bytes]) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._told = told
        self._rest = b""
        self._code: int | None = None
        self._waiting = threading.Lock()
        line = self._line(_COPIED_S)
        if not line:
            raise TemplateError("no timing process was made")
        self.pid = int(line)
        try:
            self._handle = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended already
            self._handle = -1

    def wait(self, timeout: float | None = None) -> int:
        """See :class:`Process`."""
        with self._waiting:
            if self._code is None:
                line = self._line(timeout)
                if line is None:
                    raise subprocess.TimeoutExpired("prepbench.measure.worker", timeout or 0.0)
                # the template has ended, and only it knew the exit code
                self._code = int(line) if line else -signal.SIGKILL
                self._send(signal.SIGKILL)
                if self._handle >= 0:
                    os.close(self._handle)
                    self._handle = -1
                self._told.close()
        return self._code

    def terminate(self) -> None:
        """See :class:`Process`."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """See :class:`Process`."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def _line(self, timeout: float | None) -> bytes | None:
        """Return the next line, b"" at the end of input, None at the timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._told], [], [], left)[0]:
                return None
            found = self._told.read(64)
            if not found:
                return b""
            self._rest += found
        line, self._rest = self._rest.split(b"\n", 1)
        return line


class Template:
    """The process that is forked for each timing process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "prepbench.measure.process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
            )
        self._ready = False
        self._reading = threading.Lock()

    def wait_until_ready(self, heartbeat: Callable[[], None]) -> None:
        """Wait until the template has loaded PyTorch.

        Raises:
            TemplateError: it ended, or takes too long.
        """
        deadline = time.monotonic() + _LOADED_S
        while not self._ready:
            with self._reading:
                if not self._ready and select.select([self._requests], [], [], _HEARTBEAT_S)[0]:
                    self._ready = self._received() == READY
                    if not self._ready:
                        raise TemplateError("it ended")
            heartbeat()
            if time.monotonic() > deadline:
                raise TemplateError("it takes too long")

    def _received(self) -> bytes:
        try:
            return self._requests.recv(len(READY))
        except OSError:
            return b""

    def copy(self, arguments: list[str], errors: IO[bytes]) -> ForkedProcess:
        """Return a timing process with these arguments.

        Raises:
            TemplateError: this one has ended, or does not answer; or the arguments are too long for a message.
        """
        message = json.dumps(arguments).encode()
        if len(message) > MOST_BYTES:
            raise TemplateError("the arguments are too long")
        with contextlib.ExitStack() as ours:
            theirs_in, our_in = os.pipe()
            our_out, theirs_out = os.pipe()
            our_told, theirs_told = os.pipe()
            stdin = ours.enter_context(os.fdopen(our_in, "w", encoding="utf-8"))
            stdout = ours.enter_context(os.fdopen(our_out, encoding="utf-8"))
            told = ours.enter_context(os.fdopen(our_told, "rb", buffering=0))
            try:
                socket.send_fds(self._requests, [message], [theirs_in, theirs_out, errors.fileno(), theirs_told])
            except OSError as error:
                raise TemplateError(str(error)) from error
            finally:
                for file in (theirs_in, theirs_out, theirs_told):
                    os.close(file)
            process = ForkedProcess(stdin, stdout, told)
            ours.pop_all()
        return process

    def ended(self) -> bool:
        """Return whether the template has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """Let the template end when its forks have ended."""
        self._requests.close()
        _CLOSED.append(self._process)


_LOCK = threading.Lock()
_KEPT: dict[int, tuple[Any, Template]] = {}
_CLOSED: list[subprocess.Popen[bytes]] = []


def _template(environment: Mapping[str, str]) -> Template:
    """Return this process's template for these inherited settings; a new one if there is none or another."""
    with contextlib.suppress(OSError):
        folder = os.getcwd()
        taken_over = dict(environment), folder, os.sched_getaffinity(0)
        with _LOCK:
            _CLOSED[:] = [one for one in _CLOSED if one.poll() is None]
            own, kept = _KEPT.get(os.getpid(), (None, None))
            if kept is not None and own == taken_over and not kept.ended():
                return kept
            if kept is not None:
                kept.close()
            _KEPT.clear()  # also one of a process that this one was copied from
            _KEPT[os.getpid()] = taken_over, (made := Template(environment))
            return made
    raise TemplateError("it cannot be started")


@atexit.register
def _end() -> None:
    for pid, (_, kept) in _KEPT.items():
        if pid == os.getpid():
            kept.close()
    for process in _CLOSED:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


# The process that timing processes are copied from: ``python -m prepbench.measure.process SOCKET``.
#
# Loading PyTorch takes seconds of a core, and a comparison needs a process for each candidate. This one loads it once,
# and never runs an operation, so that it has no thread and a copy of it (``fork``) is as good as a new process. Each
# message on the socket is a list of arguments of :mod:`prepbench.measure.worker` with four files: the copy's standard
# input, output and errors, and one on which this process tells its number and, once it has ended, how.
#
# It says when it is ready. It ends when the socket is closed, also when the parent is killed, once its copies have
# ended, and when nothing was asked of it for a while.


IDLE_S = 300.0
"""After so many seconds without a copy and without a message it ends."""
MOST_BYTES = 1 << 16
"""Longer messages are not read."""
FILES = 4
READY = b"ready"


def main(number: int) -> None:
    """Fork this process for each message on the socket with that file number."""
    import torch  # noqa: F401

    from prepbench.measure import worker
    from prepbench.measure.transfer import load_call  # noqa: F401
    from prepbench.package import load_compiled  # noqa: F401

    # an interrupt at the terminal reaches the whole process group; the parent decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # the copies share what is there, and do not look through it for garbage
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=number) as requests:
        requests.send(READY)
        _serve(requests, woken, wake, worker.main)


def _serve(requests: socket.socket, woken: int, wake: int, run: Callable[[list[str]], None]) -> None:
    told: dict[int, int] = {}
    listening = True
    while listening or told:
        watched: list[Any] = [requests, woken] if listening else [woken]
        ready, _, _ = select.select(watched, [], [], None if told else IDLE_S)
        if not ready:
            return
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            _report_exits(told)
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, MOST_BYTES, FILES)
            listening = bool(message)
            if not message:
                continue
            pid = os.fork()
            if pid == 0:
                for other in (requests.detach(), woken, wake, *told.values(), files[3]):
                    os.close(other)
                _become(run, json.loads(message), files[:3])
            for file in files[:3]:
                os.close(file)
            told[pid] = files[3]
            with suppress(BrokenPipeError):
                os.write(files[3], b"%d\n" % pid)


def _report_exits(told: dict[int, int]) -> None:
    """Report the exit code of every fork that has ended, or minus the number of the signal that ended it."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        file = told.pop(pid)
        with suppress(BrokenPipeError):
            os.write(file, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(file)


def _become(run: Callable[[list[str]], None], arguments: list[str], files: list[int]) -> NoReturn:
    """Become a process of its own, with the given standard files."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for standard, file in enumerate(files):
            os.dup2(file, standard)
            os.close(file)
        run(arguments)
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # as the interpreter does with exceptions that reach the end of a program
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    # at once: the libraries' own endings take long, and there is nothing to keep
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))


# Measure how much other programs load the machine during timing.


class OtherPrograms:
    """Counts the cores that other programs keep busy in a block; this process and its children do not count.

    Attributes:
        cores: how many, on average; 0 until the block ends.

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
        self.cores = max((_busy_seconds() - _own_seconds() - before) / seconds, 0.0) if seconds > 0.1 else 0.0


def busy_share(cores: float) -> float:
    """Return cores that were busy as a share of all, 0 to 1."""
    return min(cores / (os.cpu_count() or 1), 1.0)


def load_warning(cores: float) -> str:
    """Return a warning if other programs kept more than a tenth of the cores busy; else ""."""
    if not is_busy(busy_share(cores)):
        return ""
    count = os.cpu_count() or 1
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
