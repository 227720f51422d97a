"""What cells have shown, and what follows them: which widgets are kept, and which are closed because no page shows
them any more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ipywidgets

KEPT = 64
"""Widgets that no page shows and that are kept: a closed tab may be opened again, and a cell may still be running."""

_shown: dict[ipywidgets.Widget, tuple[Callable[[], None], Callable[[], None]]] = {}  # oldest first


def _nothing() -> None:
    """Nothing has to be done."""


def add_display(widget: ipywidgets.Widget, close: Callable[[], None], rest: Callable[[], None] = _nothing) -> None:
    """Take in a widget that a cell shows, and close the oldest of those that no page shows.

    Args:
        widget: what is shown; from now on its views are counted.
        close: closes it with all that belongs to it.
        rest: called when another is shown while no page shows this one.
    """
    if widget._view_count is None:
        widget._view_count = 0
    _shown.pop(widget, None)
    for each in [each for each in _shown if each.comm is None]:
        del _shown[each]
    unseen = [each for each in _shown if not each._view_count]
    for each in unseen[: max(0, len(unseen) + 1 - KEPT)]:
        _shown.pop(each)[0]()
    for each in unseen:
        if each in _shown:
            _shown[each][1]()
    _shown[widget] = (close, rest)


def is_replaced(widget: ipywidgets.Widget) -> bool:
    """Return whether no page shows a widget and another one was shown after it, as when its cell ran again."""
    return widget in _shown and not widget._view_count and next(reversed(_shown)) is not widget


def close_all(*widgets: ipywidgets.Widget) -> None:
    """Close widgets and their layouts, which ipywidgets leaves open."""
    for widget in widgets:
        layout = getattr(widget, "layout", None)
        widget.close()
        if layout is not None:
            layout.close()


def call_after_cells(call: Callable[[], object]) -> Callable[[], None]:
    """Call a function after each further cell of IPython; call the result, as often as you like, to end this."""
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
