"""Processes that stay between timings: one model at a time, and none left behind."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from prepbench.inputs import Sample
from prepbench.jobs import Cancelled, report_nothing
from prepbench.measure import process
from prepbench.measure.artifacts import SAVED, Artifact
from prepbench.measure.latency import interleaved, measure_latency
from prepbench.measure.process import KeptWorkers, LatencyError, WorkerProcess

WORKER = """
import json, os, sys
log = open(sys.argv[1], "a", buffering=1)
for line in sys.stdin:
    request = json.loads(line)
    if "load" in request:
        log.write(json.dumps([os.getpid(), os.path.basename(request["load"][0])]) + "\\n")
        if request["load"][0].endswith("broken"):
            sys.exit(3)
        print(json.dumps({"ready": True}), flush=True)
    else:
        print(json.dumps({"times_ns": [1000] * request["calls"]}), flush=True)
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which processes note the models that they load."""
    log = tmp_path / "log"
    monkeypatch.setattr(process, "worker_command", lambda *_: [sys.executable, "-c", WORKER, str(log)])
    return log


def timed(kept: KeptWorkers, folder: Path, **targets: str) -> None:
    artifacts = {name: Artifact(folder / name, 1, SAVED, target) for name, target in targets.items()}
    place = folder / str(time.monotonic_ns())
    place.mkdir()
    candidates = dict.fromkeys(targets, nn.Identity())
    sample = Sample((torch.ones(1),))
    measure_latency(candidates, artifacts, sample, place, rounds=1, timeout=60.0, progress=report_nothing, kept=kept)


def loads(log: Path) -> list[tuple[int, str]]:
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_loads_one_model_after_the_other_and_the_first_stays(loaded: Path, tmp_path: Path) -> None:
    with KeptWorkers(tmp_path, 60.0) as kept:
        kept.begin(2)
        timed(kept, tmp_path, first="a", second="a", third="a")
        timed(kept, tmp_path, first="a", fourth="a")
        found = {name: pid for pid, name in loads(loaded)}
        assert [name for _, name in loads(loaded)].count("first") == 1
        assert found["fourth"] == found["second"]
        assert len(set(found.values())) == 3
        assert not is_there(found["third"])
        assert is_there(found["first"])
    assert not any(map(is_there, found.values()))


def test_who_cancels_does_not_wait_for_a_process_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(process, "worker_command", lambda *_: command)
    started: list[WorkerProcess] = []

    def noted(*given: Any, **more: Any) -> WorkerProcess:
        started.append(WorkerProcess(*given, **more))
        monkeypatch.setattr(started[-1]._process, "terminate", lambda: pytest.fail("it was waited for"))
        return started[-1]

    monkeypatch.setattr(process, "WorkerProcess", noted)

    def cancelled() -> None:
        with KeptWorkers(tmp_path, 60.0) as kept:
            kept.begin(1)
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        cancelled()
    assert not is_there(started[0].pid)


def test_runtimes_do_not_share_a_process(loaded: Path, tmp_path: Path) -> None:
    with KeptWorkers(tmp_path, 60.0) as kept:
        timed(kept, tmp_path, first="a", second="a")
        timed(kept, tmp_path, first="a", other="b")
    found = {name: pid for pid, name in loads(loaded)}
    assert len(set(found.values())) == 3


def test_after_a_failure_all_have_ended_and_new_ones_begin(loaded: Path, tmp_path: Path) -> None:
    with KeptWorkers(tmp_path, 60.0) as kept:
        with pytest.raises(LatencyError, match="candidate 'broken': its timing process ended with exit code 3"):
            timed(kept, tmp_path, first="a", broken="a")
        assert not any(is_there(pid) for pid, _ in loads(loaded))
        timed(kept, tmp_path, first="a")
    assert [name for _, name in loads(loaded)].count("first") == 2


class Timer:
    """Takes some nanoseconds, in each turn others."""

    def __init__(self, *turns: int) -> None:
        self.turns, self.asked = turns, 0

    def times_ns(self, settle: int, calls: int) -> list[int]:
        self.asked += 1
        return [self.turns[self.asked % len(self.turns)]] * calls


def test_rounds_end_when_times_are_exact_enough() -> None:
    times, rounds = interleaved({"a": Timer(10**8), "b": Timer(10**7)}, 20, report_nothing, exact=0.01)
    assert rounds == 5
    assert {len(values) for values in times.values()} == {5}
    unsteady = Timer(10**8, 2 * 10**8, 3 * 10**8)
    assert interleaved({"a": Timer(10**8), "b": unsteady}, 20, report_nothing, exact=0.01)[1] == 20
    assert interleaved({"a": Timer(10**8), "b": Timer(10**7)}, 20, report_nothing)[1] == 20
