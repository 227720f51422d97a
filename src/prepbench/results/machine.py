"""On which machine something was measured, in words: latencies of two machines say nothing about each other."""

from __future__ import annotations

import platform


def this_machine() -> str:
    """The kind, the system and the name of this machine.

    Example:
        >>> this_machine()
        'x86_64 Linux, laptop'
    """
    return f"{platform.machine()} {platform.system()}, {platform.node()}"
