"""The process that timing processes are copied from: ``python -m prepbench.measure.template SOCKET``.

Loading PyTorch takes seconds of a core, and a comparison needs a process for each candidate. This one loads it once,
and never runs an operation, so that it has no thread and a copy of it (``fork``) is as good as a new process. Each
message on the socket is a list of arguments of :mod:`prepbench.measure.worker` with four files: the copy's standard
input, output and errors, and one on which this process tells its number and, once it has ended, how.

It says when it is ready. It ends when the socket is closed, also when the parent is killed, once its copies have ended,
and when nothing was asked of it for a while.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

IDLE_S = 300.0
"""After so many seconds without a copy and without a message it ends."""
MOST_BYTES = 1 << 16
"""Longer messages are not read."""
FILES = 4
READY = b"ready"


def main(number: int) -> None:
    """Copy this process for each message on the socket with that file number."""
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
            _tell_of_ended(told)
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


def _tell_of_ended(told: dict[int, int]) -> None:
    """Tell of every copy that has ended: its exit code, or minus the number of the signal that ended it."""
    while told:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        file = told.pop(pid)
        with suppress(BrokenPipeError):
            os.write(file, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(file)


def _become(run: Callable[[list[str]], None], arguments: list[str], files: list[int]) -> NoReturn:
    """Go on as a process of its own, with the given standard files."""
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
    except BaseException:  # as the interpreter does with what reaches the end of a program
        traceback.print_exc()
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    # at once: the libraries' own endings take long, and there is nothing to keep
    os._exit(code)


if __name__ == "__main__":
    main(int(sys.argv[1]))
