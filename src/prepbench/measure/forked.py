"""Start timing processes quickly by forking one that has loaded PyTorch.

Loading takes seconds of a core for each candidate. Where forking is unsafe (other systems than Linux), and where the
template process fails, processes are started afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, NoReturn, Protocol, TextIO

from prepbench import interrupts

_COPIED_S = 60.0
_LOADED_S = 300.0
_HEARTBEAT_S = 0.2


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
                [sys.executable, "-P", "-m", "prepbench.measure.forked", str(theirs.fileno())],
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


# The process that timing processes are copied from: ``python -m prepbench.measure.forked SOCKET``.
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

    from prepbench.compile import load_compiled  # noqa: F401
    from prepbench.measure import worker
    from prepbench.measure.transfer import load_call  # noqa: F401

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
