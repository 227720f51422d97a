"""The queue of runs: choices of the moment, order, removing, cancelling, and what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench import compiling
from prepbench.errors import SettingsError, UnknownNameError


@pytest.fixture
def bench() -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    made = pb.Bench(net, tracing_inputs=samples, calibration_inputs=samples)
    made.set_target("PyTorch eager")
    return made


class Gates:
    """Lets compiles through one by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.free = threading.Semaphore(0), threading.Semaphore(0)
        real = compiling.compile_model

        def held(*args: Any, **kwargs: Any) -> Any:
            self.begun.release()
            while not self.free.acquire(timeout=0.01):
                kwargs["progress"](pb.Progress("capture"))
            return real(*args, **kwargs)

        monkeypatch.setattr(compiling, "compile_model", held)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gates]:
    made = Gates(monkeypatch)
    yield made
    for _ in range(20):
        made.free.release()


def test_runs_wait_with_the_choices_of_their_moment(bench: pb.Bench, gates: Gates) -> None:
    first = bench.start()
    assert gates.begun.acquire(timeout=60)
    assert bench.compiling.is_queued
    bench.set_precision("0", "float32")
    assert not bench.compiling.is_queued
    second = bench.start()
    bench.set_precision("2", "float32")
    third = bench.start()
    assert [run.name for run in bench.queue] == ["mixed int8", "float32"]
    assert [run.settings for run in bench.queue] == ["1 float · 1 int8 · batch dynamic", "2 float · batch dynamic"]
    assert repr(second) == "Job(waiting)"
    assert bench.jobs.turn == "1 of 3"
    assert [run.target for run in bench.summary().queue] == ["PyTorch eager"] * 2
    bench.undo()
    for number, job in enumerate((first, second, third), 1):
        assert bench.jobs.turn == f"{number} of 3"
        gates.free.release()
        job.result(timeout=120)
        assert number == 3 or gates.begun.acquire(timeout=60)
    assert [run.name for run in bench.runs] == [
        "int8 PyTorch eager", "mixed int8 PyTorch eager", "float32 PyTorch eager"]  # fmt: skip
    assert bench.jobs.turn == ""
    assert not bench.queue
    assert not bench.status.running
    assert any("float32 PyTorch eager" in line for line in bench.status.log), "one log tells of all three"


def test_cancelling_goes_on_with_the_next(bench: pb.Bench, gates: Gates) -> None:
    first = bench.start()
    bench.set_precision("0", "float32")
    second = bench.start()
    assert gates.begun.acquire(timeout=60)
    bench.cancel()
    with pytest.raises(pb.Cancelled):
        first.result(timeout=60)
    assert gates.begun.acquire(timeout=60)
    assert bench.status.running
    assert not bench.status.cancelling
    gates.free.release()
    second.result(timeout=120)
    assert [run.name for run in bench.runs] == ["mixed int8 PyTorch eager"]


def test_waiting_runs_are_removed(bench: pb.Bench, gates: Gates) -> None:
    ends: list[BaseException | None] = []
    running, removed, kept = bench.start(), bench.start(on_end=ends.append), bench.start()
    bench.jobs.remove_queued(bench.queue[0].id)
    with pytest.raises(pb.Cancelled):
        removed.result(timeout=1)
    assert [type(end) for end in ends] == [pb.Cancelled]
    assert len(bench.queue) == 1
    with pytest.raises(UnknownNameError, match="no run 'x' waits"):
        bench.jobs.remove_queued("x")
    kept.cancel()
    assert not bench.queue
    assert gates.begun.acquire(timeout=60)
    gates.free.release()
    running.result(timeout=120)
    assert not bench.status.running


def test_all_are_cancelled_at_once(bench: pb.Bench, gates: Gates) -> None:
    jobs = [bench.start() for _ in range(4)]
    assert gates.begun.acquire(timeout=60)
    bench.jobs.cancel_all()
    for job in jobs:
        with pytest.raises(pb.Cancelled):
            job.result(timeout=60)
    assert not bench.runs
    assert not bench.queue
    assert not bench.status.running
    gates.free.release()
    bench.start().result(timeout=120)
    assert len(bench.runs) == 1


def test_a_run_that_fails_does_not_hold_up_the_others(bench: pb.Bench, gates: Gates) -> None:
    def failing(error: BaseException | None) -> None:
        raise ValueError("the caller's own")

    first, second = bench.start(on_end=failing), bench.start()
    gates.free.release()
    gates.free.release()
    with pytest.raises(ValueError, match="the caller's own"):
        first.result(timeout=120)
    second.result(timeout=120)


def test_another_capture_does_not_wait(bench: pb.Bench, gates: Gates) -> None:
    bench.start()
    with pytest.raises(SettingsError, match="running already"):
        bench.jobs.in_background(bench.capture)
    gates.free.release()
    assert bench.job is not None
    bench.job.result(timeout=120)
    captured = bench.jobs.in_background(bench.capture)
    after = bench.start()
    gates.free.release()
    captured.result(timeout=120)
    after.result(timeout=120)


def test_every_listener_hears_of_runs_that_code_started(bench: pb.Bench) -> None:
    told: list[bool] = []
    stop = bench.jobs.on_status(lambda status: told.append(status.running))
    bench.start().result(timeout=120)
    assert told[0]
    assert not told[-1]
    stop()
    count = len(told)
    bench.start().result(timeout=120)
    assert len(told) == count


def test_many_threads_may_add_and_cancel(bench: pb.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.compiling, "compile_for", lambda state, progress: progress(pb.Progress("capture")))
    jobs: list[pb.Job[Any]] = []

    def press(number: int) -> None:
        for _ in range(25):
            jobs.append(bench.start())
            if number % 2:
                bench.cancel()

    threads = [threading.Thread(target=press, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for job in jobs:
        with suppress(pb.Cancelled):
            job.result(timeout=60)
    assert len(jobs) == 100
    assert not bench.queue
    assert not bench.status.running
