"""Loading a program in a process of its own first: ExecuTorch ends the process that loads a damaged one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prepbench.errors import ArtifactError
from prepbench.packages import installed

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
    """Raise ``ArtifactError`` when a process that loads the program does not survive it."""
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
