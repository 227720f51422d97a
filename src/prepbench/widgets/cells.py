"""What follows the cells of the notebook that the kernel runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def call_after_cells(call: Callable[[], object]) -> Callable[[], None]:
    """Call a function after each further cell; does nothing outside of IPython.

    Returns:
        What ends it; it may be called more than once.
    """
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return lambda: None

    def ran(result: object = None) -> None:
        call()

    shell.events.register("post_run_cell", ran)

    def end() -> None:
        if ran in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", ran)

    return end
