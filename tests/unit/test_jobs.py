"""Background jobs: results, errors, cancellation between steps, context."""

from __future__ import annotations

import ast
import asyncio
import contextvars
import threading
from pathlib import Path

import pytest

import prepbench
from prepbench.jobs import STAGES, Cancelled, Job, Progress, ProgressCallback


def test_result_and_progress() -> None:
    seen: list[Progress] = []

    def work(step: ProgressCallback) -> int:
        for i in range(3):
            step(Progress("calibrate", i, 3))
        return 42

    job = Job(work, seen.append)
    assert job.result(timeout=10) == 42
    assert [p.done for p in seen] == [0, 1, 2]
    assert job.done
    assert repr(job) == "Job(done)"


def test_error_is_raised_where_the_result_is_asked_for() -> None:
    def work(step: ProgressCallback) -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        Job(work).result(timeout=10)


def test_cancel_stops_at_the_next_step() -> None:
    started, cancelled = threading.Event(), threading.Event()
    steps: list[int] = []

    def work(step: ProgressCallback) -> None:
        for i in range(1000):
            step(Progress("calibrate", i, 1000))
            steps.append(i)
            started.set()
            cancelled.wait(10)

    job = Job(work)
    assert started.wait(10)
    job.cancel()
    cancelled.set()
    with pytest.raises(Cancelled, match="while choosing scales from samples"):
        job.result(timeout=10)
    assert steps == [0]


def test_timeout_while_running() -> None:
    release = threading.Event()
    job = Job(lambda step: release.wait(10))
    with pytest.raises(TimeoutError):
        job.result(timeout=0.01)
    release.set()
    assert job.result(timeout=10)


def test_job_runs_in_a_copy_of_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("the cell")
    assert Job(lambda step: variable.get()).result(timeout=10) == "the cell"


def test_job_can_be_awaited() -> None:
    async def cell() -> int:
        return await Job(lambda step: 7)

    assert asyncio.run(cell()) == 7


def test_every_stage_has_words() -> None:
    tellers = {"Progress", "timer", "check_cancelled", "measure_channels"}
    named = set()
    for path in Path(prepbench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (name := getattr(node.func, "id", "")) in tellers:
                at = 3 if name == "measure_channels" else 0
                named |= {arg.value for arg in node.args[at : at + 1] if isinstance(arg, ast.Constant)}
    words = {name for name in named if isinstance(name, str)}
    assert {"capture", "smooth", "time"} <= words
    assert words - {""} - set(STAGES) == set()
