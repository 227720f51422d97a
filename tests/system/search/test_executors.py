"""Tasks give the same wherever they run; a process that dies costs its task only, and cancelling returns at once."""

from __future__ import annotations

import itertools
import multiprocessing
import pickle
import pickletools
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import prepbench as pb
from prepbench.errors import InputError, SettingsError
from prepbench.jobs import Progress
from prepbench.search.executors import run_tasks
from prepbench.search.tasks import ExecutorError, TaskError, computing_lock, name_of, timing_lock
from tests.compile.search import worker_tasks

WORK, TIMED = name_of(worker_tasks.work), name_of(worker_tasks.timed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "artifact" / "sub").mkdir(parents=True)
    (tmp_path / "artifact" / "sub" / "a.txt").write_text("weights")
    return tmp_path / "artifact"


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as made:
        yield made


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", resources={"prepbench_timing": 1}
    ) as c:
        with Client(c) as made:
            yield made


@pytest.fixture(params=["here", "threads", "processes", "dask"])
def executor(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "threads":
        with ThreadPoolExecutor(2) as made:
            yield made
    else:
        names = {"processes": "pool", "dask": "client"}
        yield request.getfixturevalue(names[request.param]) if request.param in names else None


def test_results_come_in_order_with_what_folders_hold(executor: Any, folder: Path) -> None:
    steps: list[Progress] = []
    payloads = [{"number": number, "sleeps": 0.02 * (3 - number)} for number in range(3)]
    found = run_tasks(executor, WORK, payloads, {"model": folder}, steps.append, stage="layers")
    assert [one["twice"] for one in found] == [0, 2, 4]
    assert all(one["texts"] == {"model": "weights"} for one in found)
    assert (steps[-1].stage, steps[-1].done, steps[-1].total) == ("layers", 3, 3)
    assert run_tasks(executor, WORK, [], {}) == []


def test_errors_are_those_of_the_task(executor: Any) -> None:
    with pytest.raises(InputError, match="holds NaN"):
        run_tasks(executor, WORK, [{"number": 1, "fails": True}], {})
    with pytest.raises((TaskError, ZeroDivisionError), match="by zero"):
        run_tasks(executor, WORK, [{"number": 1, "breaks": True}], {})
    with pytest.raises(ExecutorError, match="is not a task"):
        run_tasks(executor, name_of(worker_tasks.not_marked), [{}], {})


def test_cancelling_returns_at_once_and_begins_nothing_more(executor: Any, tmp_path: Path) -> None:
    payloads = [{"number": n, "sleeps": 0.3, "touches": str(tmp_path / f"ran{n}")} for n in range(40)]
    job = pb.Job(lambda progress: run_tasks(executor, WORK, payloads, {}, progress))
    while not list(tmp_path.glob("ran*")):
        time.sleep(0.02)
    began = time.monotonic()
    job.cancel()
    with pytest.raises(pb.Cancelled):
        job.result(30)
    assert time.monotonic() - began < 3
    time.sleep(1)
    assert len(list(tmp_path.glob("ran*"))) < 15
    if executor is not None:  # it can be used again
        assert run_tasks(executor, WORK, [{"number": 4}], {})[0]["twice"] == 8


def test_a_worker_of_a_cluster_that_dies_costs_its_task_only(client: Any, folder: Path, tmp_path: Path) -> None:
    payloads = [{"number": number, "sleeps": 0.05} for number in range(12)]
    payloads[5]["dies_once"] = str(tmp_path / "died")  # type: ignore[assignment]
    found = run_tasks(client, WORK, payloads, {"model": folder})
    assert (tmp_path / "died").exists()
    assert [one["twice"] for one in found] == [2 * number for number in range(12)]
    assert all(one["texts"] == {"model": "weights"} for one in found)


def test_files_that_died_with_all_workers_are_sent_again(client: Any, folder: Path) -> None:
    payloads = [{"number": number, "sleeps": 0.4} for number in range(8)]
    job = pb.Job(lambda progress: run_tasks(client, WORK, payloads, {"model": folder}, progress))
    time.sleep(0.6)
    client.restart_workers(list(client.nthreads()), timeout=60)
    assert [one["texts"]["model"] for one in job.result(120)] == ["weights"] * 8


def test_results_that_die_before_they_are_fetched_are_computed_again(
    client: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather, restarted = client.gather, []

    def after_a_restart(futures: Any) -> Any:
        if futures and not restarted:
            restarted.append(client.restart_workers(list(client.nthreads()), timeout=60))
            while any(future.status == "finished" for future in futures):
                time.sleep(0.02)
        return gather(futures)

    monkeypatch.setattr(client, "gather", after_a_restart)
    found = run_tasks(client, WORK, [{"number": number} for number in range(4)], {"model": folder})
    assert restarted
    assert [one["twice"] for one in found] == [0, 2, 4, 6]


def test_a_task_that_ends_every_worker_fails_with_its_name() -> None:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        with pytest.raises(TaskError, match="The task layer conv1 ended its process"):
            run_tasks(client, WORK, [{"number": 1, "dies": True}], {}, names=["layer conv1"])
        cluster.scale(0)
        while client.nthreads():
            time.sleep(0.05)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("prepbench.search.executors._WORKERS_S", 0.1)
            with pytest.raises(ExecutorError, match=r"no workers\. Start one on each machine with `dask worker tcp"):
                run_tasks(client, WORK, [{"number": 1}], {})


def test_a_pool_of_which_a_process_dies_goes_on_in_new_ones(folder: Path, tmp_path: Path) -> None:
    payloads: list[dict[str, Any]] = [{"number": number, "sleeps": 0.05} for number in range(8)]
    payloads[3]["dies_once"] = str(tmp_path / "died")
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as broken:
        with pytest.warns(UserWarning, match="of 8 tasks were done and are kept, and the other"):
            found = run_tasks(broken, WORK, payloads, {"model": folder})
        assert [one["twice"] for one in found] == [2 * number for number in range(8)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(TaskError, match="The task conv2 ended its process 3 times"):
                run_tasks(broken, WORK, [{"number": 0}, {"number": 1, "dies": True}], {}, names=["conv1", "conv2"])


def test_what_is_no_executor_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"executor must be None, a concurrent.futures.Executor or a dask"):
        run_tasks("tcp://127.0.0.1:8786", WORK, [{"number": 1}], {})
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    with pytest.raises(ExecutorError, match="open"):
        run_tasks(closed, WORK, [{"number": 1}], {})


class Recorder(Executor):
    """Keeps the pickles of what is submitted, and runs it."""

    def __init__(self) -> None:
        self.pickles: list[bytes] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.pickles.append(pickle.dumps((fn, args, kwargs)))
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_what_travels_is_text_and_bytes(folder: Path) -> None:
    recorder = Recorder()
    run_tasks(recorder, WORK, [{"number": 1, "list": [1.5, None, {"a": True}]}], {"model": folder})
    [sent] = recorder.pickles
    operations = {operation.name for operation, _, _ in pickletools.genops(sent)}
    assert not operations & {"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "GLOBAL", "EXT1"}
    named = [argument for operation, argument, _ in pickletools.genops(sent) if "UNICODE" in operation.name]
    assert named[:2] == ["prepbench.search.tasks", "run_task"], "the function goes by its name"
    assert sum(operation.name == "STACK_GLOBAL" for operation, _, _ in pickletools.genops(sent)) == 1


def test_workers_of_other_versions_are_told(monkeypatch: pytest.MonkeyPatch, pool: ProcessPoolExecutor) -> None:
    monkeypatch.setattr("prepbench.search.tasks.packages_here", lambda: "prepbench 99")
    with pytest.raises(ExecutorError, match=r"prepbench 99.*Install the same versions"):
        run_tasks(pool, WORK, [{"number": 1}], {})


def test_timing_never_overlaps(pool: ProcessPoolExecutor, client: Any) -> None:
    for executor in (pool, client):
        times = sorted(run_tasks(executor, TIMED, [{"sleeps": 0.15}] * 4, {}, is_timing=True))
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(times))


HOLDS = """
import sys, time
from prepbench.search.tasks import computing_lock, timing_lock
with (timing_lock if sys.argv[1] == "alone" else computing_lock)():
    print("in", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("other", "waits"), [("alone", True), ("computing", False)])
def test_the_lock_is_one_for_all_processes(other: str, waits: bool) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, other], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "in\n"
        entered = threading.Event()

        def enter() -> None:
            with computing_lock():
                entered.set()

        thread = threading.Thread(target=enter, daemon=True)
        thread.start()
        assert entered.wait(0.5) is not waits
        with pytest.raises(ZeroDivisionError), timing_lock(lambda step: 1 / 0):  # it is told while it waits
            pass
        holder.kill()  # who dies holds nothing any more
        assert entered.wait(10)
        with computing_lock(), timing_lock(), timing_lock(), computing_lock():
            pass
    finally:
        holder.kill()
        holder.wait()
