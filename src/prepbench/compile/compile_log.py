"""Logs of a compile in a folder: a text for people and JSON lines for programs."""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prepbench.errors import ArtifactError
from prepbench.jobs import Progress, ProgressCallback

TEXT = "compile.log"
EVENTS = "events.jsonl"


class Journal:
    """Writes what happens to ``compile.log`` and ``events.jsonl``; without a folder, nowhere.

    Each compile appends; a line is on disk once it is written. An event is ``{"time": seconds since 1970, "event":
    name, ...}``.

    Args:
        folder: where; made when it does not exist.
        name: of the graph, for the lines.

    Raises:
        ArtifactError: the folder cannot be written to.
    """

    def __init__(self, folder: str | Path | None, name: str) -> None:
        self._folder = None if folder is None else Path(folder)
        self._name = name
        if self._folder is not None:
            with _writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, text: str = "", **data: Any) -> None:
        """One event; ``text`` is its line for people, or several."""
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

    def watching(self, progress: ProgressCallback) -> ProgressCallback:
        """``progress``, with each step written as an event."""

        def step(value: Progress) -> None:
            self.write("progress", stage=value.stage, done=value.done, total=value.total)
            progress(value)

        return step if self._folder is not None else progress


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(
            f"The log in logs_dir={str(folder)!r} cannot be written: {error.strerror or error}. The compile "
            "stopped; the model is unchanged. Free space or choose another folder, and compile again."
        ) from error
