"""A bench that is shown takes in the runs that others write to its journal, and watches no longer than that."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench import saved
from prepbench.bench.saved import JournalWatch
from prepbench.results.journal import Journal
from prepbench.widgets.bench import BenchControls
from tests.unit.results.test_run import RUN

OTHER = """
import sys
from dataclasses import replace
from prepbench.results.journal import Journal
journal = Journal(sys.argv[1])
(first,) = journal.runs()
journal.write(replace(first, id="other", name="of somebody else", made=first.made + 1))
journal.update(first.id, name="renamed elsewhere")
"""


def until(found: Callable[[], object], seconds: float = 30) -> None:
    ends = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def watching() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "prepbench journal"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved.JournalWatch.__init__, "__defaults__", (0.02,))


@pytest.fixture
def bench(tmp_path: Path) -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    made = pb.Bench(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval(), calibration_inputs=samples)
    made.set_target("PyTorch eager")
    made.compile()
    made.save(tmp_path / "net.bench.json")
    return made


def write_as_another(bench: pb.Bench) -> None:
    subprocess.run([sys.executable, "-c", OTHER, str(bench.journal_path)], check=True, timeout=120)


def click(controls: BenchControls, **content: Any) -> None:
    controls._handle_custom_msg(content, [])


def test_a_shown_bench_has_what_another_process_wrote(bench: pb.Bench) -> None:
    controls = BenchControls(bench)
    assert not watching(), "nobody sees it"
    click(controls, action="shown", shown=True)
    click(controls, action="shown", shown=True)  # a second view of it
    assert len(watching()) == 1
    write_as_another(bench)
    until(lambda: len(controls.runs) == 2)
    assert [run.name for run in bench.runs] == ["renamed elsewhere", "of somebody else"]
    assert list(bench.results) == ["renamed elsewhere"], "the compiled model stays with its run"
    assert bench.journal_path is not None
    Journal(bench.journal_path).delete("other")
    until(lambda: [run["name"] for run in controls.runs] == ["renamed elsewhere"])
    click(controls, action="shown", shown=False)
    assert len(watching()) == 1
    click(controls, action="shown", shown=False)
    until(lambda: not watching())


def test_a_bench_that_is_saved_while_shown_is_watched_from_then_on(bench: pb.Bench, tmp_path: Path) -> None:
    controls = BenchControls(bench)
    click(controls, action="shown", shown=True)
    bench.save(tmp_path / "other.bench.json")
    until(lambda: len(watching()) == 1)
    write_as_another(bench)
    until(lambda: len(controls.runs) == 2)
    assert [path.name for path in tmp_path.glob("other.bench.sqlite*")] == ["other.bench.sqlite"], "nothing stays open"
    controls.close()
    until(lambda: not watching())


def test_what_others_wrote_is_taken_in_on_request(bench: pb.Bench) -> None:
    assert not bench.update_runs(), "its own runs are nothing new"
    write_as_another(bench)
    assert bench.update_runs()
    assert not bench.update_runs()
    assert len(bench.runs) == 2
    assert bench.runs[0].score is not None
    bench.restore_run("other")


def test_a_watch_survives_files_that_come_go_and_are_damaged(tmp_path: Path) -> None:
    path, told = tmp_path / "net.bench.sqlite", threading.Semaphore(0)
    watch = JournalWatch(path, lambda: told.release() is None)
    assert not told.acquire(timeout=0.2)
    Journal(path).write(RUN)
    assert told.acquire(timeout=10)
    path.unlink()
    path.write_bytes(b"no database at all" * 100)
    time.sleep(0.1)
    path.unlink()
    Journal(path).write(RUN)
    while told.acquire(timeout=0.3):
        pass
    Journal(path).update(RUN.id, name="another")
    assert told.acquire(timeout=10)
    watch.stop()
    assert watch.is_over


def test_a_watch_ends_with_its_bench(bench: pb.Bench) -> None:
    click(BenchControls(bench), action="shown", shown=True)
    assert len(watching()) == 1
    ended = JournalWatch(bench.journal_path or Path(), lambda: False)
    until(lambda: ended.is_over)
    ipywidgets.Widget.close_all()
    gc.collect()
    until(lambda: not watching())
