"""Run tasks in this process, on an executor of ``concurrent.futures``, or on a Dask cluster."""

from __future__ import annotations

import concurrent.futures
import contextvars
import functools
import json
import multiprocessing
import sys
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prepbench.checks import described
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.search import tasks

# Run tasks on a Dask cluster: files go to each worker once, results are text, and timing has a machine to itself.


TIMING = "prepbench_timing"
"""The resource that a machine has one of: ``dask worker ... --resources "prepbench_timing=1"``."""

_DASK_POLL_S = 0.05
_WORKERS_S = 10.0
"""How long a cluster that is starting is waited for."""

_ALL_GONE_S = 120.0
"""How long tasks wait where all workers have gone; clusters that adapt start new ones."""


def run_on_dask(client: Any, work: tasks.Work) -> None:
    """Run tasks on a client's cluster.

    Raises:
        ExecutorError: the client is asynchronous or has no workers, or a worker cannot run prepbench's tasks.
        TaskError: a task failed, or ended its worker too often.
    """
    check_client(client)
    resources = {TIMING: 1} if work.is_timing and _has_resource(client) else None
    futures: dict[int, Any] = {}
    lost: dict[int, int] = {}
    try:
        files = _scattered(client, work)
        futures |= {number: _submitted(client, work, number, files, resources) for number in work.waiting}
        seen = time.monotonic()
        while futures:
            done = [number for number, future in futures.items() if future.status == "finished"]
            try:
                texts = client.gather([futures[number] for number in done])
            except concurrent.futures.CancelledError:  # a worker has died since, with what it had computed
                done, texts = [], []
            for number, text in zip(done, texts, strict=True):
                work.answer(number, text)
                futures.pop(number).release()
            gone = [number for number, future in futures.items() if future.status in ("cancelled", "lost")]
            if gone:  # the last worker with the files has left
                files = _scattered(client, work)
            for number in gone:
                lost[number] = lost.get(number, 0) + 1
                if lost[number] == tasks.DEATHS:
                    raise tasks.TaskError(tasks.death_message(work.names[number]))
                futures[number] = _submitted(client, work, number, files, resources)
            for number, future in futures.items():
                if future.status == "error":
                    _fail(work.names[number], future.exception())
            work.tell(work.names[done[-1]] if done else "")
            if futures and not done:
                time.sleep(_DASK_POLL_S)
                seen = time.monotonic() if client.nthreads() else seen
                if time.monotonic() - seen > _ALL_GONE_S:
                    raise tasks.ExecutorError(f"All workers of the cluster have gone. {_how_to_start(client)}")
    finally:
        if futures:
            client.cancel(list(futures.values()), force=True)


def check_client(client: Any) -> None:
    """Raise ``ExecutorError`` for a client that tasks cannot run on."""
    if client.asynchronous:
        raise tasks.ExecutorError("The Dask client is asynchronous. Give one that was made without asynchronous=True.")
    if client.status != "running":
        raise tasks.ExecutorError(f"The Dask client is {client.status}. Give one that is connected: Client(address).")
    ends = time.monotonic() + _WORKERS_S
    while not client.nthreads():
        if time.monotonic() > ends:
            raise tasks.ExecutorError(f"The Dask client has no workers. {_how_to_start(client)}")
        time.sleep(_DASK_POLL_S)


def _how_to_start(client: Any) -> str:
    address = getattr(client.scheduler, "address", "ADDRESS")
    return (
        f'Start one on each machine with `dask worker {address} --resources "{TIMING}=1"`, or call '
        "client.cluster.scale(2) where the client has a cluster of its own."
    )


def _has_resource(client: Any) -> bool:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return any(TIMING in (worker.get("resources") or {}) for worker in workers)


def _scattered(client: Any, work: tasks.Work) -> dict[str, Any]:
    """Send each file to all workers that exist now; later workers get it from them."""
    contents: dict[str, bytes] = {}
    for folder in work.folders.values():
        for path, (digest, _) in folder.files.items():
            contents.setdefault(digest, (folder.path / path).read_bytes())
    if not contents:
        return {}
    keys = {f"prepbench-file-{digest}": data for digest, data in contents.items()}
    scattered = client.scatter(keys, broadcast=True)
    return {digest: scattered[f"prepbench-file-{digest}"] for digest in contents}


def _submitted(client: Any, work: tasks.Work, number: int, files: dict[str, Any], resources: Any) -> Any:
    layout = {key: {path: digest for path, (digest, _) in folder.files.items()} for key, folder in work.folders.items()}
    digests = sorted({digest for paths in layout.values() for digest in paths.values()})
    return client.submit(
        tasks.run_task_with_files,
        work.name,
        json.dumps(work.payloads[number]),
        tasks.packages_here(),
        json.dumps(layout),
        digests,
        [files[digest] for digest in digests],
        work.is_timing,
        key=f"prepbench-task-{uuid.uuid4().hex}",
        pure=False,
        resources=resources,
    )


def _fail(name: str, error: Any) -> None:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        raise tasks.TaskError(tasks.death_message(name)) from error
    if isinstance(error, ImportError):
        raise tasks.ExecutorError(
            f"A worker cannot import prepbench: {error}. Install prepbench[dask] in the environment of the workers, in "
            "the same version as here."
        ) from error
    raise tasks.TaskError(
        f"The task {name} failed on the cluster: {type(error).__name__}: {error}. Restart the workers."
    )


_POLL_S = 0.1


def check_executor(executor: object) -> None:
    """Raise ``SettingsError`` unless tasks can run on this value."""
    if executor is None or isinstance(executor, concurrent.futures.Executor) or is_client(executor):
        return
    raise SettingsError(
        f"executor must be None, a concurrent.futures.Executor or a dask.distributed.Client, got "
        f"{described(executor)}. Write executor=concurrent.futures.ProcessPoolExecutor(2), for example."
    )


def is_client(executor: object) -> bool:
    """Return whether this is a Dask client, without importing Dask."""
    client = getattr(sys.modules.get("distributed"), "Client", None)
    return client is not None and isinstance(executor, client)


def run_tasks(
    executor: Any,
    function_name: str,
    payloads: Sequence[Mapping[str, Any]],
    artifacts: Mapping[str, Path],
    progress: ProgressCallback = report_nothing,
    *,
    names: Sequence[str] = (),
    is_timing: bool = False,
    stage: str = "tasks",
) -> list[Any]:
    """Run a function once for each payload on the executor.

    When a process dies, only the task that it ran is lost, and it runs again elsewhere. Cancelling, by ``progress`` or
    by :class:`prepbench.Job`, does not wait for running tasks, and starts no further ones.

    Args:
        executor: None for this process, a ``concurrent.futures.Executor``, or a ``dask.distributed.Client``.
        function_name: ``"module:function"``, marked with :func:`prepbench.search.tasks.task`.
        payloads: plain data for each task, as JSON has it.
        artifacts: folders of files that tasks read, by name; a worker of Dask gets each file once.
        progress: called after each task, and during waits; it may raise to cancel.
        names: the name of each task in messages; their numbers when omitted.
        is_timing: whether tasks measure time. Each then has its machine alone: by the resource ``prepbench_timing`` of
            Dask where workers have it, and by a lock between processes.
        stage: the stage in progress reports.

    Returns:
        What the tasks returned, in the order of the payloads.

    Raises:
        SettingsError: this is no executor.
        ExecutorError: it has no workers, was shut down, or its workers lack a requirement of the tasks.
        TaskError: a task failed, or ended its process three times.
        PrepbenchError: whatever a task raised that is ours.
    """
    check_executor(executor)
    function = tasks.function_of(function_name)
    work = tasks.Work(
        name=function_name,
        payloads=payloads,
        names=list(names) or [str(number) for number in range(len(payloads))],
        folders={key: tasks.Folder.of(path) for key, path in artifacts.items()},
        is_timing=is_timing,
        stage=stage,
        progress=progress,
    )
    try:
        if executor is None:
            _run_here(function, work)
        elif is_client(executor):
            run_on_dask(executor, work)
        else:
            _run_on(executor, work)
    finally:
        for path in artifacts.values():
            tasks.forget(path)
    return [work.answers[number] for number in range(len(payloads))]


def _run_here(function: Callable[..., Any], work: tasks.Work) -> None:
    """Run the tasks in sequence; errors are those of the function itself."""
    folders = {key: folder.path for key, folder in work.folders.items()}
    for number, payload in enumerate(work.payloads):
        work.tell(work.names[number])
        with tasks.timing_lock(work.progress) if work.is_timing else tasks.computing_lock(work.progress):
            value = function(json.loads(json.dumps(payload)), folders)
        work.answers[number] = json.loads(json.dumps(value))
    work.tell()


def _run_on(executor: concurrent.futures.Executor, work: tasks.Work) -> None:
    run: Callable[..., str] = tasks.run_task
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        run = functools.partial(_in_context, tasks.run_task)  # so that tasks in threads hear of cancelling
    futures: dict[concurrent.futures.Future[str], int] = {}
    try:
        try:
            for number in work.waiting:
                futures[executor.submit(run, *_for(executor, work, number))] = number
            _collect(futures, work)
        except concurrent.futures.BrokenExecutor as error:
            _collect_finished(futures, work)
            _run_rest(executor, work, error)
        except RuntimeError as error:
            if isinstance(error, tasks.ExecutorError | tasks.TaskError) or "shutdown" not in str(error):
                raise
            raise tasks.ExecutorError(
                f"The executor cannot run tasks: {error}. Give one that is open, or run this inside of its with block."
            ) from error
    finally:
        for future in futures:
            future.cancel()


def _for(executor: concurrent.futures.Executor, work: tasks.Work, number: int) -> tuple[Any, ...]:
    arguments = work.arguments(number)
    if isinstance(executor, concurrent.futures.ThreadPoolExecutor):
        return (contextvars.copy_context(), *arguments)
    return arguments


def _in_context(run: Callable[..., str], context: contextvars.Context, *arguments: Any) -> str:
    return context.run(run, *arguments)


def _collect(futures: Mapping[concurrent.futures.Future[str], int], work: tasks.Work) -> None:
    pending = set(futures)
    work.tell()
    while pending:
        done, pending = concurrent.futures.wait(
            pending, timeout=_POLL_S, return_when=concurrent.futures.FIRST_COMPLETED
        )
        for future in done:
            work.answer(futures[future], future.result())
        work.tell(work.names[futures[next(iter(done))]] if done else "")


def _collect_finished(futures: Mapping[concurrent.futures.Future[str], int], work: tasks.Work) -> None:
    for future, number in futures.items():
        if number not in work.answers and future.done() and not future.cancelled() and future.exception() is None:
            work.answer(number, future.result())


def _run_rest(executor: concurrent.futures.Executor, work: tasks.Work, error: Exception) -> None:
    """Run the remaining tasks in processes of their own: a pool that lost a process accepts no more tasks."""
    left = work.waiting
    count = min(max(1, getattr(executor, "_max_workers", 1)), len(left))
    warnings.warn(
        f"A process of the executor died ({error}), and Python ends such an executor: {len(work.answers)} of "
        f"{len(work.payloads)} tasks were done and are kept, and the other {len(left)} run in {count} new "
        f"process{'es' * (count > 1)}. Make a new executor for the next call; a process that dies is often out of "
        "memory.",
        stacklevel=6,
    )
    _run_in_own_processes(count, getattr(executor, "_mp_context", None) or multiprocessing.get_context(), work)


def _run_in_own_processes(count: int, context: Any, work: tasks.Work) -> None:
    """Run each task in a process of its own, so that a crash is blamed on one task and repeats only that one."""
    waiting, deaths = deque(work.waiting), dict.fromkeys(work.waiting, 0)
    pools = [_pool(context) for _ in range(count)]
    running: dict[concurrent.futures.Future[str], tuple[int, int]] = {}
    try:
        while waiting or running:
            idle = set(range(count)) - {place for place, _ in running.values()}
            for place in idle:
                if waiting:
                    number = waiting.popleft()
                    running[pools[place].submit(tasks.run_task, *work.arguments(number))] = (place, number)
            done, _ = concurrent.futures.wait(running, timeout=_POLL_S, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                place, number = running.pop(future)
                try:
                    work.answer(number, future.result())
                except concurrent.futures.BrokenExecutor as error:
                    pools[place].shutdown(wait=False)
                    pools[place] = _pool(context)
                    deaths[number] += 1
                    if deaths[number] == tasks.DEATHS:
                        raise tasks.TaskError(tasks.death_message(work.names[number])) from error
                    waiting.append(number)
            work.tell()
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(context: Any) -> concurrent.futures.ProcessPoolExecutor:
    return concurrent.futures.ProcessPoolExecutor(1, mp_context=context)
