"""The stages of a compile: progress, log lines and seconds of each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prepbench.compile.compile_log import CompileLog
from prepbench.jobs import Progress, ProgressCallback, check_cancelled


class StageTimer:
    """Reports each stage, logs it, and measures its seconds.

    Args:
        progress: called at the beginning and end of each stage, and within.
        log: the log.

    Attributes:
        seconds: the seconds of each stage so far.
        reused: the results reused from an earlier compile, in words.
    """

    def __init__(self, progress: ProgressCallback, log: CompileLog) -> None:
        self.progress = progress
        self._log = log
        self.seconds: dict[str, float] = {}
        self.reused: list[str] = []

    def reuse(self, *what: str) -> None:
        """Record that a stage, or a part of one, is reused."""
        for text in what:
            self.reused.append(text)
            self._log.write("reused", f"reused from an earlier compile: {text}", what=text)

    @contextlib.contextmanager
    def __call__(self, name: str, reports_progress: bool = False) -> Iterator[None]:
        """Time one stage: ``with timer("capture"):``.

        Args:
            name: of the stage.
            reports_progress: what runs inside reports its own beginning and end.
        """
        check_cancelled(name)
        if not reports_progress:
            self.progress(Progress(name, 0, 1))
        start = time.perf_counter()
        yield
        taken = time.perf_counter() - start
        self.seconds[name] = self.seconds.get(name, 0.0) + taken  # of all variants
        self._log.write("stage", f"{name}: {taken:.2f} s", stage=name, seconds=taken)
        if not reports_progress:
            self.progress(Progress(name, 1, 1))
