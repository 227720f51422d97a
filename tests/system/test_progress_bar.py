"""Long calls show a bar in a terminal and in a notebook, and leave nothing of it behind."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
import termios
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import prepbench as pb
from prepbench import progress_bar
from prepbench.errors import SettingsError
from prepbench.jobs import Progress, ProgressCallback, report_nothing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@progress_bar.shows_progress("work")
def work(seconds: float, *, progress: ProgressCallback = report_nothing) -> int:
    """A stage that counts, and one that does not."""
    progress(Progress("first", 1, 3, "batch"))
    time.sleep(seconds)
    progress(Progress("second"))
    time.sleep(seconds)
    return 7


@progress_bar.shows_progress("outer")
def outer() -> int:
    time.sleep(0.3)
    return work(0.3)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    stream = Terminal()
    # pytest puts a stream of its own in the place of standard error after this
    monkeypatch.setattr(progress_bar, "sys", types.SimpleNamespace(stderr=stream, modules=sys.modules))
    monkeypatch.setattr(progress_bar, "DELAY", 0.05)
    monkeypatch.setattr(progress_bar, "_EVERY", 0.02)
    monkeypatch.delenv("PREPBENCH_PROGRESS", raising=False)
    progress_bar._terminal_bar()  # loading it takes longer than the calls here
    return stream


def test_a_long_call_shows_its_stages_and_removes_the_bar(terminal: Terminal) -> None:
    before = threading.active_count()
    assert work(0.3) == 7
    text = terminal.getvalue()
    assert "work · first · batch |" in text
    assert "1/3" in text
    assert "work · second [" in text
    assert not text.split("\r")[-1].strip(), "the line is empty at the end"
    assert "\n" not in text
    assert threading.active_count() == before, "no thread of tqdm stays"


def test_a_short_call_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "DELAY", 5.0)
    before = threading.active_count()
    start = time.perf_counter()
    work(0.01)
    assert time.perf_counter() - start < 1, "it does not wait for the bar"
    assert terminal.getvalue() == ""
    assert threading.active_count() == before


def test_a_call_inside_another_shows_no_bar_of_its_own(terminal: Terminal) -> None:
    outer()
    assert "outer [" in terminal.getvalue()
    assert "work" not in terminal.getvalue()


def test_who_gives_progress_gets_it_and_no_bar(terminal: Terminal) -> None:
    seen: list[Progress] = []
    work(0.2, progress=seen.append)
    assert terminal.getvalue() == ""
    assert [step.stage for step in seen] == ["first", "second"]


def test_a_bar_ends_with_the_error_of_the_call(terminal: Terminal) -> None:
    @progress_bar.shows_progress("fails")
    def fails() -> None:
        time.sleep(0.2)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert "fails [" in terminal.getvalue()
    assert not terminal.getvalue().split("\r")[-1].strip()


@pytest.mark.parametrize("how", ["option", "environment", "no terminal"])
def test_bars_can_be_switched_off(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "environment":
        monkeypatch.setenv("PREPBENCH_PROGRESS", "0")
    if how == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    try:
        pb.show_progress(how != "option")
        work(0.2)
    finally:
        pb.show_progress(True)
    assert terminal.getvalue() == ""


def test_the_switch_takes_booleans_only() -> None:
    with pytest.raises(SettingsError, match="on must be True or False, got 'no'"):
        pb.show_progress("no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "function", [pb.compile_model, pb.compare, pb.capture, pb.recursive_trace, pb.prepare_model, pb.check_traceability]
)
def test_the_long_functions_show_progress(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, function: object
) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 2)), [torch.ones(2, 4), torch.ones(3, 4)]
    monkeypatch.setattr(progress_bar, "DELAY", 0.0)
    monkeypatch.setattr(progress_bar, "_EVERY", 0.001)
    calls = {
        pb.compile_model: lambda: pb.compile_model(model, tracing_inputs=x),
        pb.compare: lambda: pb.compare({"float": model}, x, rounds=0),
        pb.capture: lambda: pb.capture(model, x),
        pb.recursive_trace: lambda: [pb.recursive_trace(model, inputs=x) for _ in range(5)],
        pb.prepare_model: lambda: pb.prepare_model(model, inputs=x),
        pb.check_traceability: lambda: pb.check_traceability(model, x),
    }
    calls[function]()  # type: ignore[index]
    assert "[00:0" in terminal.getvalue()


_SCRIPT = """
import torch, prepbench as pb
from prepbench import progress_bar
progress_bar.DELAY = 0.1
samples = [torch.ones(2, 8), torch.ones(3, 8)]
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(12)))
pb.compile_model(model, tracing_inputs=samples)
print("done")
"""


def test_a_script_in_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("PREPBENCH_PROGRESS", None)
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the other end is closed
        pass
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "done\n")
    text = shown.decode()
    assert "compile · Reading the model" in text
    assert "compile · Building" in text
    assert not text.split("\r")[-1].strip()


@pytest.mark.parametrize("looks", [True, False], ids=["a page", "a program"])
def test_in_a_notebook_a_bar_leaves_no_text_and_nobody_else_gets_one(looks: bool) -> None:
    import nbformat
    from nbclient import NotebookClient

    source = (
        "import time\nfrom prepbench import progress_bar\nfrom prepbench.jobs import Progress, report_nothing\n"
        "progress_bar.DELAY, progress_bar._EVERY = 0.1, 0.05\n"
        + "progress_bar.is_asked_by_program = lambda: False\n"
        * looks
        + "@progress_bar.shows_progress('work')\n"
        "def work(*, progress=report_nothing):\n    progress(Progress('first', 1, 3))\n"
        "    time.sleep(1)\n    return 7\n"
        "work()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    seen: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg, cell, cell_index):  # type: ignore[no-untyped-def]
            if "data" in msg["content"]:
                seen.append(msg["content"]["data"].get("text/plain", ""))
            return super().process_message(msg, cell, cell_index)

    Client(notebook, kernel_name="python3").execute()
    assert any("work · first |" in text and "1/3" in text for text in seen) == looks
    outputs = [dict(output.data) for output in notebook.cells[0].outputs]
    assert outputs == [{}, {"text/plain": "7"}][not looks :]
