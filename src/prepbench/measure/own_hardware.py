"""Where a target runs on other hardware than its own, whose times say nothing about it."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping

from prepbench.targets.tensorrt import has_tensorrt

_SMALL = ("arm", "aarch64")  # as processors of phones and small computers begin


def elsewhere(target: str) -> str:
    """Return where a target runs here instead of on its own hardware, e.g. ``"in ONNX Runtime"``; "" where it is its
    own.

    Args:
        target: its name, e.g. ``"tensorrt"``.
    """
    return _PLACES.get(target, lambda: "")()


def not_timed(target: str) -> str:
    """Return why a target is not timed here; "" where it is."""
    place = elsewhere(target)
    return f"not timed: it ran {place}, not on its own hardware" if place else ""


def doubtful_times(target: str) -> str:
    """Return why the times of a target here say nothing about it, for a search, which needs some; "" where they do."""
    place = elsewhere(target)
    return f"timed {place}, not on its own hardware, so its times say nothing about that" if place else ""


def _of_tensorrt() -> str:
    return "" if has_tensorrt() else "in ONNX Runtime"


def _of_executorch() -> str:
    is_own = platform.system() in ("Linux", "Android") and platform.machine().lower().startswith(_SMALL)
    return "" if is_own else "on a desktop"


_PLACES: Mapping[str, Callable[[], str]] = {"tensorrt": _of_tensorrt, "executorch": _of_executorch}
