"""Where a target runs on other hardware than its own, whose times say nothing about it."""

from __future__ import annotations

from prepbench.targets.registry import TARGETS


def not_timed(target: str) -> str:
    """Return why the target of this name is not timed here; "" where it is."""
    place = _elsewhere(target)
    return f"not timed: it ran {place}, not on its own hardware" if place else ""


def doubtful_times(target: str) -> str:
    """Return why times of the target of this name say nothing about it here, for a search, which needs some; "" where
    they do.
    """
    place = _elsewhere(target)
    return f"timed {place}, not on its own hardware, so its times say nothing about that" if place else ""


def _elsewhere(name: str) -> str:
    return next((target.runs_elsewhere() for target in TARGETS if target.name == name), "")
