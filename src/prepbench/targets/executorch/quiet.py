"""Keep ExecuTorch's messages out of the user's output."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from prepbench.errors import ArtifactError
from prepbench.packages import installed
from prepbench.patching import logs_dropped_here, output_here, undoing, warnings_ignored_here

_LOCK = threading.RLock()


class Heard:
    """The messages on standard error during a block: by C++ to the descriptor, by Python bindings to ``sys.stderr``."""

    def __init__(self, file: IO[bytes], text: io.StringIO) -> None:
        self._file = file
        self._text = text

    def text(self) -> str:
        """Return the messages in one line; call it inside the block."""
        self._file.seek(0)
        return " ".join((self._text.getvalue() + self._file.read().decode(errors="replace")).split())


@contextlib.contextmanager
def quiet() -> Iterator[Heard]:
    """Suppress warnings and logs of Python and messages of C++ during the block.

    The package also configures the root logger at import; its handlers and level are restored.
    """
    root = logging.getLogger()
    handlers, level, text = list(root.handlers), root.level, io.StringIO()
    with _LOCK, tempfile.TemporaryFile() as file, warnings_ignored_here(), logs_dropped_here(), undoing() as undo:
        undo.add(lambda: root.setLevel(level))
        undo.add(lambda: root.handlers.__setitem__(slice(None), handlers))
        with output_here(sys.stdout, text), _descriptor_2(file):
            yield Heard(file, text)


@contextlib.contextmanager
def _descriptor_2(file: IO[bytes]) -> Iterator[None]:
    try:
        saved = os.dup(2)
    except OSError:  # a process without standard error
        yield
        return
    try:
        os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# Loading a program in a process of its own first: ExecuTorch ends the process that loads a damaged one.


SECONDS = 60.0
_PROGRAM = """
import ctypes, importlib.util, sys

try:
    # the Python of torch and ExecuTorch takes seconds to import, and only their libraries are needed; ExecuTorch 1.3,
    # which has no _C, finds no backend once a library of torch was loaded before its own Python
    if importlib.util.find_spec("executorch.extension.pybindings._C") is None:
        raise ImportError
    home = importlib.util.find_spec("torch").submodule_search_locations[0]
    ctypes.CDLL(home + "/lib/libtorch_python.so", mode=ctypes.RTLD_GLOBAL)
    from executorch.extension.pybindings import _C

    check = _C.Verification.InternalConsistency
    program = _C._load_program(sys.argv[1], program_verification=check)
except (ImportError, OSError, AttributeError, TypeError):  # another version
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(sys.argv[1])
assert program.load_method("forward") is not None
"""


def check_loads(file: Path) -> None:
    """Raise ``ArtifactError`` if a process that loads the program does not survive it."""
    command = [sys.executable, "-P", "-W", "ignore", "-c", _PROGRAM, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, errors="replace")
    except subprocess.TimeoutExpired as error:
        raise ArtifactError(
            f"{file} cannot be loaded within {SECONDS:.0f} s. Copy the folder again, or compile and save again."
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1][:300]
        raise ArtifactError(
            f"{file} is damaged, or of a newer ExecuTorch than {installed('executorch')}, which is here: a process "
            f"that loads it ends with status {done.returncode}, and says: {said}. Copy the folder again, install the "
            "executorch that wrote it, or compile and save the model again."
        )
