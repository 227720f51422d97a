"""Where something was measured, in words: latencies of two machines say nothing about each other."""

from __future__ import annotations

import os
import platform
import re


def this_machine() -> str:
    """The kind, the system and the name of this machine.

    Example:
        >>> this_machine().count(", ")
        1

    So ``"x86_64 Linux, laptop"``.
    """
    return f"{platform.machine()} {platform.system()}, {platform.node()}"


def this_notebook() -> str:
    """The file name of the notebook that runs here, as Jupyter tells it to kernels; "" where none is known."""
    return re.split(r"[/\\]", os.environ.get("JPY_SESSION_NAME", ""))[-1]
