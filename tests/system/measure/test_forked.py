"""Timing processes are copies of one that has loaded PyTorch, and behave like processes that were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

import prepbench as pb
from prepbench.measure import process
from prepbench.measure.process import LatencyError, WorkerProcess, environment, worker_command
from prepbench.measure.transfer import save_sample
from tests.turns import in_turns

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux only")


def nothing() -> None:
    """No heartbeat."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("forked")
    compiled = pb.compile_model(torch.nn.Linear(4, 3), tracing_inputs=[torch.randn(2, 4)])
    compiled.save(folder / "model")
    (folder / "inputs").mkdir()
    save_sample(pb.Sample((torch.randn(2, 4),)), folder / "inputs")
    return folder / "model", folder / "inputs"


@pytest.fixture
def worker(saved: tuple[Path, Path], tmp_path: Path) -> Iterator[WorkerProcess]:
    made = WorkerProcess("m", worker_command(*saved, 1), tmp_path / "log", threads=1, timeout=120, heartbeat=nothing)
    yield made
    made.close()


def current() -> psutil.Process:
    """The process that is copied."""
    _, kept = process._KEPT[os.getpid()]
    return psutil.Process(kept._process.pid)


def test_a_copy_times_a_model_and_ends(worker: WorkerProcess) -> None:
    worker.wait_until_ready()
    assert psutil.Process(worker.pid).ppid() == current().pid
    assert len(worker.times_ns(settle=1, calls=5)) == 5
    worker.close()
    assert not psutil.pid_exists(worker.pid)
    assert current().num_threads() == 1, "with threads, copies would miss theirs"


def test_a_copy_that_is_killed_is_told_with_its_signal(worker: WorkerProcess) -> None:
    worker.wait_until_ready()
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(LatencyError, match="ended with signal SIGSEGV"):
        worker.times_ns(settle=0, calls=1)


def test_what_cannot_be_loaded_is_told_with_its_traceback(tmp_path: Path) -> None:
    command = worker_command(tmp_path / "nothing", tmp_path, 1)
    worker = WorkerProcess("m", command, tmp_path / "log", threads=1, timeout=120, heartbeat=nothing)
    try:
        with pytest.raises(LatencyError, match=r"exit code 1(?s:.*)ArtifactError"):
            worker.wait_until_ready()
    finally:
        worker.close()


@pytest.mark.stress
def test_without_one_to_copy_processes_are_started(
    saved: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: process.Template, *_: object) -> None:
        raise process.TemplateError("gone")

    monkeypatch.setattr(process.Template, "copy", refused)
    worker = WorkerProcess("m", worker_command(*saved, 1), tmp_path / "log", threads=1, timeout=120, heartbeat=nothing)
    try:
        worker.wait_until_ready()
        assert psutil.Process(worker.pid).ppid() == os.getpid()
    finally:
        worker.close()


def test_one_that_was_killed_is_replaced(worker: WorkerProcess, saved: tuple[Path, Path], tmp_path: Path) -> None:
    worker.wait_until_ready()
    old = current()
    old.kill()
    old.wait(10)
    # its copies go on, but nobody can tell how they end
    assert len(worker.times_ns(settle=0, calls=2)) == 2
    worker.close()
    command, log = worker_command(*saved, 1), tmp_path / "second"
    second = WorkerProcess("m", command, log, threads=1, timeout=120, heartbeat=nothing)
    try:
        second.wait_until_ready()
        assert current().pid != old.pid
    finally:
        second.close()


def test_threads_start_copies_side_by_side(saved: tuple[Path, Path], tmp_path: Path) -> None:
    found: list[int] = []

    def measure(number: int) -> None:
        log, command = tmp_path / f"{number}", worker_command(*saved, 1)
        worker = WorkerProcess(f"{number}", command, log, threads=1, timeout=120, heartbeat=nothing)
        try:
            worker.wait_until_ready()
            found.append(len(worker.times_ns(settle=0, calls=3)))
        finally:
            worker.close()

    threads = [threading.Thread(target=measure, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3, 3, 3]


@pytest.mark.stress
def test_another_environment_gets_another_one(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    first = process._template(environment(1))
    assert process._template(environment(1)) is first
    monkeypatch.setenv("PREPBENCH_OF_A_TEST", "1")
    second = process._template(environment(1))
    assert second is not first
    assert second.ended() is False
    worker.wait_until_ready()
    assert len(worker.times_ns(settle=0, calls=2)) == 2, "a copy of the old one goes on"


def test_cancelling_while_it_loads_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREPBENCH_OF_A_TEST", "2")  # a new one, which takes seconds to load

    def cancel() -> None:
        raise pb.Cancelled("enough")

    with pytest.raises(pb.Cancelled):
        WorkerProcess(
            "m", worker_command(tmp_path, tmp_path, 1), tmp_path / "log", threads=1, timeout=9, heartbeat=cancel
        )


@pytest.mark.parametrize("ending", in_turns(["pass", "os.kill(os.getpid(), 9)"], 1))
def test_it_ends_with_the_process_that_started_it(ending: str) -> None:
    program = (
        "import os; from prepbench.measure import process\n"
        "one = process._template(dict(os.environ)); one.wait_until_ready(lambda: None)\n"
        f"print(one._process.pid, flush=True)\n{ending}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    pid, deadline = int(done.stdout), time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
    assert done.stderr == ""
