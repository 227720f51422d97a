"""Repeat progress reports during waits for a process."""

from __future__ import annotations

from prepbench.jobs import Progress, ProgressCallback


class Steps:
    """Reports progress, and repeats the last step during waits for a worker, so that cancelling works at any time."""

    def __init__(self, progress: ProgressCallback) -> None:
        self._progress = progress
        self._last: Progress | None = None

    def __call__(self, step: Progress) -> None:
        """Report a new step."""
        self._last = step
        self._progress(step)

    def again(self) -> None:
        """Report the last step again."""
        if self._last is not None:
            self._progress(self._last)
