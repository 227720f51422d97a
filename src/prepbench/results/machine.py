"""Describe the machine and the notebook of a measurement: latencies of different machines cannot be compared."""

from __future__ import annotations

import os
import platform
import re


def this_machine() -> str:
    """Return the processor, the system and the name of this machine.

    Example:
        >>> this_machine().count(", ")
        1

    So ``"x86_64 Linux, laptop"``.
    """
    return f"{platform.machine()} {platform.system()}, {platform.node()}"


def this_notebook() -> str:
    """Return the file name of this notebook, as Jupyter passes it to kernels; "" where unknown."""
    return re.split(r"[/\\]", os.environ.get("JPY_SESSION_NAME", ""))[-1]
