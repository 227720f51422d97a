"""Logs of a compile in a folder: text for people and JSON lines for programs."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepbench.errors import StorageError
from prepbench.jobs import Progress, ProgressCallback, check_cancelled
from prepbench.package.report import CompileReport
from prepbench.settings import CompileOptions, DeploymentSettings, QuantizationSettings

TEXT = "compile.log"
EVENTS = "events.jsonl"


class CompileLog:
    """Writes events to ``compile.log`` and ``events.jsonl``; without a folder it writes nothing.

    Each compile appends to both files. An event is ``{"time": seconds since 1970, "event": name, ...}``.

    Args:
        folder: where the files are; made if it does not exist.
        name: the name of the graph, which is in each line.

    Raises:
        StorageError: the folder cannot be written to.
    """

    def __init__(self, folder: str | Path | None, name: str) -> None:
        self._folder = None if folder is None else Path(folder)
        self._name = name
        if self._folder is not None:
            with _writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, text: str = "", **data: Any) -> None:
        """Write one event; ``text`` is its line, or lines, for people."""
        if self._folder is None:
            return
        now = time.time()
        stamp = datetime.datetime.fromtimestamp(now).isoformat(sep=" ", timespec="milliseconds")
        with _writing(self._folder):
            with (self._folder / EVENTS).open("a", encoding="utf-8") as file:
                record = {"time": round(now, 3), "event": event, "graph": self._name, **data}
                file.write(json.dumps(record, default=str) + "\n")
            if text:
                with (self._folder / TEXT).open("a", encoding="utf-8") as file:
                    file.write("".join(f"{stamp} {self._name}: {line}\n" for line in text.splitlines()))

    def start(
        self,
        target: str,
        settings: DeploymentSettings,
        quantization: QuantizationSettings | None,
        options: CompileOptions,
    ) -> None:
        """Log the start of a compile, with its settings."""
        self.write(
            "start",
            f"compiling for {target}, {'float' if quantization is None else 'int'}",
            target=target,
            deployment_settings=settings.to_dict(),
            quantization_settings=None if quantization is None else quantization.to_dict(),
            compile_options=options.to_dict(),
        )

    def done(self, report: CompileReport) -> None:
        """Log the end of the compile, with its report."""
        self.write("done", repr(report), report=report.to_dict())

    @contextlib.contextmanager
    def failures(self) -> Iterator[None]:
        """Log an exception of the block before it propagates."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(Exception):  # the original error matters more than a failure to log it
                self.write("failed", f"failed: {type(error).__name__}: {error}", error=type(error).__name__)
            raise

    def logged(self, progress: ProgressCallback) -> ProgressCallback:
        """Return ``progress`` with logging of each step."""

        def step(value: Progress) -> None:
            self.write("progress", stage=value.stage, done=value.done, total=value.total)
            progress(value)

        return step if self._folder is not None else progress


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The log in logs_dir={str(folder)!r} cannot be written: {error.strerror or error}. The compile "
            "stopped; the model is unchanged. Free space or choose another folder, and compile again."
        ) from error


# The stages of a compile: progress, log lines and seconds of each.


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
