"""One process that reads what others damaged: a line of JSON says what, a line of JSON says what came of it.

``python -m tests.system.stress.reader``: started anew by :class:`Reader` when it dies or hangs.
"""

from __future__ import annotations

import collections
import json
import os
import queue
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
MEMORY = 12 * 2**30
STARTUP = 300.0
LONGEST = 20_100
"""Characters of an error: nobody reads more."""


class Reader:
    """The process, seen from the test.

    Args:
        limit: seconds for each answer.
        intact: folders that it loads first, by kind, so that libraries are loaded when the clock runs.
    """

    def __init__(self, limit: float, intact: dict[str, str]) -> None:
        self._limit, self._intact = limit, intact
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.system.stress.reader"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._said: collections.deque[bytes] = collections.deque(maxlen=8)  # it may write without an end
        streams = (self._process.stdout, self._answers.put), (self._process.stderr, self._said.append)
        self._threads = [threading.Thread(target=_pump, args=each, daemon=True) for each in streams]
        for thread in self._threads:
            thread.start()
        for kind, folder in self._intact.items():
            ready = self._answer({"kind": kind, "intact": folder}, STARTUP)
            assert ready["outcome"] == "ready", ready

    def ask(self, question: dict[str, str]) -> dict[str, Any]:
        """What came of reading: "typed", "equal", "other", "raw", "hang" or "crash", and what was said."""
        return self._answer(question, self._limit)

    def _answer(self, question: dict[str, str], limit: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        started = time.monotonic()
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        while time.monotonic() - started < limit:
            try:
                answer: dict[str, Any] = json.loads(self._answers.get(timeout=0.2))
                return answer
            except queue.Empty:
                if self._process.poll() is not None and self._answers.empty():
                    outcome = {"outcome": "crash", "text": f"exit code {self._process.returncode}: {self._last()}"}
                    self._start()
                    return outcome
        self.close()
        outcome = {"outcome": "hang", "text": f"no answer within {limit:g} s: {self._last()}"}
        self._start()
        return outcome

    def _last(self) -> str:
        return b"".join(self._said).decode(errors="replace")[-1500:]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()


def _pump(stream: Any, put: Any) -> None:
    for line in iter(lambda: stream.readline(100_000), b""):
        put(line)
    stream.close()


def _read_folder(kind: str, folder: str) -> Any:
    import prepbench as pb
    from tests.system.stress.models import samples
    from tests.system.stress.saved import model_of

    return pb.load_compiled(folder, model=model_of(kind))(samples()[1])


def _read_document(text: str) -> Any:
    from prepbench.document.codec import from_json, to_json
    from prepbench.document.model import GraphCollectionDocument
    from prepbench.views.dot import to_dot
    from prepbench.views.page import page
    from prepbench.views.scene import scene

    document = from_json(text)
    parts = (document,) if isinstance(document, GraphCollectionDocument) else document.documents
    for part in parts:
        to_dot(scene(part)).encode()
    page(document).encode()
    return to_json(document)


def _outcome(question: dict[str, str], results: dict[str, Any]) -> dict[str, Any]:
    from prepbench.errors import PrepbenchError
    from tests.system.stress.models import same

    started = time.monotonic()
    try:
        kind = question["kind"]
        found = _read_folder(kind, question["folder"]) if "folder" in question else _read(kind, question["file"])
        outcome = "equal" if same(found, results[question["kind"]]) else "other"
        said = ""
    except PrepbenchError as error:
        outcome, said = "typed", f"{type(error).__name__}: {error}"
        if len(said) > LONGEST:
            outcome = f"a message of {len(said)} characters"
    except BaseException as error:
        import traceback

        outcome, said = "raw", "".join(traceback.format_exception(error))[-3000:]
    return {"outcome": outcome, "text": said[-3000:], "seconds": time.monotonic() - started}


def _text(file: str) -> str:
    return Path(file).read_bytes().decode(errors="replace")


def main() -> None:
    """Answer each line of standard input."""
    from prepbench.errors import PrepbenchError

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    results: dict[str, Any] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "intact" in question:
            place, kind = question["intact"], question["kind"]
            try:
                results[kind] = _read_folder(kind, place) if Path(place).is_dir() else _read(kind, place)
                answer: dict[str, Any] = {"outcome": "ready"}
            except PrepbenchError as error:  # machine code, which is not loaded
                results[question["kind"]] = None
                answer = {"outcome": "ready" if "machine code" in str(error) else str(error)}
        else:
            answer = _outcome(question, results)
        replies.write(json.dumps(answer) + "\n")
        replies.flush()


def _read(kind: str, file: str) -> Any:
    from tests.system.stress import bench_files

    return (
        bench_files.read(kind, file)
        if kind in (bench_files.BENCH, bench_files.JOURNAL)
        else _read_document(_text(file))
    )


if __name__ == "__main__":
    main()
