"""Tasks for tests of executors: they add, sleep, fail, and end the process that they run in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepbench.errors import InputError
from prepbench.search.tasks import task


@task
def work(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """Do what the payload says, and return what is in the folder, twice ``number``, and the process."""
    once = payload.get("dies_once", "")
    if payload.get("dies") or (once and not os.path.exists(once)):
        if once:
            Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if payload.get("fails"):
        raise InputError("samples[3] holds NaN. Give others.")
    if payload.get("breaks"):
        raise ZeroDivisionError("by zero")
    time.sleep(payload.get("sleeps", 0.0))
    if payload.get("touches"):
        Path(payload["touches"]).touch()
    texts = {name: (folder / "sub" / "a.txt").read_text() for name, folder in folders.items()}
    return {"twice": 2 * payload["number"], "texts": texts, "process": os.getpid()}


@task
def timed(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """When it began and ended."""
    began = time.time()
    time.sleep(payload["sleeps"])
    return [began, time.time()]


def not_marked(payload: dict[str, Any], folders: Mapping[str, Path]) -> Any:
    """No task."""
