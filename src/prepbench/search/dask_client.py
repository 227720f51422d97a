"""Run tasks on a Dask cluster: files go to each worker once, results are text, and timing has a machine to itself."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from prepbench.search.tasks import ExecutorError, TaskError, packages_here, run_task_with_files
from prepbench.search.work import DEATHS, Work, death_message

TIMING = "prepbench_timing"
"""The resource that a machine has one of: ``dask worker ... --resources "prepbench_timing=1"``."""

_POLL_S = 0.05
_WORKERS_S = 10.0
"""How long a cluster that is starting is waited for."""

_ALL_GONE_S = 120.0
"""How long tasks wait where all workers have gone; clusters that adapt start new ones."""


def run_on_dask(client: Any, work: Work) -> None:
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
            for number, text in zip(done, client.gather([futures[number] for number in done]), strict=True):
                work.answer(number, text)
                futures.pop(number).release()
            gone = [number for number, future in futures.items() if future.status in ("cancelled", "lost")]
            if gone:  # the last worker with the files has left
                files = _scattered(client, work)
            for number in gone:
                lost[number] = lost.get(number, 0) + 1
                if lost[number] == DEATHS:
                    raise TaskError(death_message(work.names[number]))
                futures[number] = _submitted(client, work, number, files, resources)
            for number, future in futures.items():
                if future.status == "error":
                    _fail(work.names[number], future.exception())
            work.tell(work.names[done[-1]] if done else "")
            if futures and not done:
                time.sleep(_POLL_S)
                seen = time.monotonic() if client.nthreads() else seen
                if time.monotonic() - seen > _ALL_GONE_S:
                    raise ExecutorError(f"All workers of the cluster have gone. {_how_to_start(client)}")
    finally:
        if futures:
            client.cancel(list(futures.values()), force=True)


def check_client(client: Any) -> None:
    """Raise ``ExecutorError`` for a client that tasks cannot run on."""
    if client.asynchronous:
        raise ExecutorError("The Dask client is asynchronous. Give one that was made without asynchronous=True.")
    if client.status != "running":
        raise ExecutorError(f"The Dask client is {client.status}. Give one that is connected: Client(address).")
    ends = time.monotonic() + _WORKERS_S
    while not client.nthreads():
        if time.monotonic() > ends:
            raise ExecutorError(f"The Dask client has no workers. {_how_to_start(client)}")
        time.sleep(_POLL_S)


def _how_to_start(client: Any) -> str:
    address = getattr(client.scheduler, "address", "ADDRESS")
    return (
        f'Start one on each machine with `dask worker {address} --resources "{TIMING}=1"`, or call '
        "client.cluster.scale(2) where the client has a cluster of its own."
    )


def _has_resource(client: Any) -> bool:
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    return any(TIMING in (worker.get("resources") or {}) for worker in workers)


def _scattered(client: Any, work: Work) -> dict[str, Any]:
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


def _submitted(client: Any, work: Work, number: int, files: dict[str, Any], resources: Any) -> Any:
    layout = {
        key: {path: digest for path, (digest, _) in work.folders[key].files.items()} for key in work.needs[number]
    }
    digests = sorted({digest for paths in layout.values() for digest in paths.values()})
    return client.submit(
        run_task_with_files,
        work.name,
        json.dumps(work.payloads[number]),
        packages_here(),
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
        raise TaskError(death_message(name)) from error
    if isinstance(error, ImportError):
        raise ExecutorError(
            f"A worker cannot import prepbench: {error}. Install prepbench[dask] in the environment of the workers, in "
            "the same version as here."
        ) from error
    raise TaskError(f"The task {name} failed on the cluster: {type(error).__name__}: {error}. Restart the workers.")
