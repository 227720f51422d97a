"""Loading a program in a process of its own first: ExecuTorch ends the process that loads a damaged one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from prepbench.errors import ArtifactError

SECONDS = 60.0
_PROGRAM = """
import sys
from executorch.runtime import Runtime

assert Runtime.get().load_program(sys.argv[1]).load_method("forward") is not None
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
            f"{file} is damaged: a process that loads it ends with status {done.returncode}, and says: {said}. Copy "
            "the folder again, or compile and save the model again."
        )
