"""Tasks for other processes: a function by name, plain data, and folders known by digests; exclusive timing.

No object is pickled: only text and bytes are sent. A worker looks the function up by its name, and accepts only
functions that are marked as tasks.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import tempfile
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from prepbench import errors
from prepbench.errors import PrepbenchError, StorageError, printable, sentence
from prepbench.freed_memory import memory_kept
from prepbench.jobs import Progress, ProgressCallback, check_cancelled, report_nothing

F = TypeVar("F", bound=Callable[[dict[str, Any], Mapping[str, Path]], Any])
T = TypeVar("T")

_MARK = "_prepbench_task"
_KEPT = 2


class TaskError(PrepbenchError, RuntimeError):
    """A task failed in another process, or the processes that ran it died."""


class ExecutorError(PrepbenchError, RuntimeError):
    """An executor that cannot run tasks."""


def task(function: F) -> F:
    """Mark a function as one that other processes may run: ``function(payload, folders)``.

    Args:
        function: takes a dict of plain data and the folders by name, and returns plain data, all as JSON has it.
    """
    setattr(function, _MARK, True)
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which another process finds a function, ``"prepbench.search.sensitivity:exact_noise"``."""
    return f"{function.__module__}:{function.__qualname__}"


@dataclass(frozen=True)
class Folder:
    """A folder of files that tasks read: ``files`` has the SHA-256 and bytes of each, by its path in the folder."""

    path: Path
    files: Mapping[str, tuple[str, int]]

    @classmethod
    def of(cls, path: Path) -> Folder:
        """Read all files of a folder."""
        found = {}
        for file in sorted(one for one in path.rglob("*") if one.is_file()):
            data = file.read_bytes()
            found[file.relative_to(path).as_posix()] = (hashlib.sha256(data).hexdigest(), len(data))
        return cls(path, found)

    @property
    def digest(self) -> str:
        """The digest of the names and contents of all files."""
        return hashlib.sha256(json.dumps(self.files, sort_keys=True).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(size for _, size in self.files.values())


def run_task(name: str, payload: str, packages: str, folders: str, is_timing: bool) -> str:
    """Run a task in this process.

    Args:
        name: of the function, from :func:`name_of`.
        payload: its data, as JSON.
        packages: the versions that it was made with, from :func:`packages_here`.
        folders: paths by name, as JSON.
        is_timing: whether it measures time, and so needs the machine alone.

    Returns:
        JSON: ``{"value": ...}``, or ``{"error": class, "message": text, "trace": text}``.
    """
    try:
        if packages != packages_here():
            raise ExecutorError(
                f"A worker has {packages_here()}, and this process has {packages}. Install the same versions in both."
            )
        places = {key: Path(path) for key, path in json.loads(folders).items()}
        for place in places.values():
            if not place.is_dir():
                raise ExecutorError(
                    f"A worker does not see the folder {place}. Give an executor whose workers share this machine's "
                    "files, or a dask.distributed.Client, which sends them."
                )
        with timing_lock() if is_timing else computing_lock():
            value = function_of(name)(json.loads(payload), places)
        return json.dumps({"value": value})
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-6:])
        return json.dumps({"error": type(error).__name__, "message": str(error), "trace": printable(trace)})


def run_task_with_files(
    name: str, payload: str, packages: str, layout: str, digests: Sequence[str], contents: Sequence[bytes], timing: bool
) -> str:
    """Run a task in a Dask worker, which gets files as bytes and keeps them in a folder of its own.

    Args:
        name: of the function.
        payload: its data, as JSON.
        packages: the versions that it was made with.
        layout: the digests of files by their paths, for each folder by name, as JSON.
        digests: of ``contents``.
        contents: the files.
        timing: whether it measures time.
    """
    try:
        place = _place_of_worker()
        known = dict(zip(digests, contents, strict=True))
        folders = {key: str(_placed(place, files, known)) for key, files in json.loads(layout).items()}
    except Exception as error:
        return json.dumps({"error": type(error).__name__, "message": str(error), "trace": ""})
    with memory_kept():
        return run_task(name, payload, packages, json.dumps(folders), timing)


def value_of(answer: str, what: str) -> Any:
    """Return the value of a task from the text that :func:`run_task` returned.

    Raises:
        TaskError: the task failed with an error other than a ``PrepbenchError``.
        PrepbenchError: it failed with this error.
    """
    found = json.loads(answer)
    if "value" in found:
        return found["value"]
    kinds = {**vars(errors), "ExecutorError": ExecutorError, "TaskError": TaskError}
    kind = kinds.get(found["error"])
    if isinstance(kind, type) and issubclass(kind, PrepbenchError):
        raise kind(found["message"])
    message = sentence(RuntimeError(found["message"]))
    raise TaskError(
        f"The task {what} failed in its worker with {found['error']}: {message} Run it with executor=None to see it "
        f"fail here.\n{found['trace']}"
    )


def function_of(name: str) -> Callable[[dict[str, Any], Mapping[str, Path]], Any]:
    """Return the function of a task.

    Raises:
        ExecutorError: it is not a task.
    """
    module, _, attribute = name.partition(":")
    found: Any = getattr(importlib.import_module(module), attribute, None)
    if not getattr(found, _MARK, False):
        raise ExecutorError(f"{name!r} is not a task. Mark a function of a module with @task.")
    return found  # type: ignore[no-any-return]


def packages_here() -> str:
    """Return the package versions that affect a task's result."""
    return f"prepbench {version('prepbench')} with torch {version('torch')}"


class _Loaded:
    """The object that was loaded from folders last: tasks of one model come one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def get(self, folder: Path, load: Callable[[Path], T]) -> T:
        key = (str(folder), name_of(load))
        with self._lock:
            if key not in self._values:
                self._values[key] = load(folder)
            self._values.move_to_end(key)
            while len(self._values) > _KEPT:
                self._values.popitem(last=False)
            return self._values[key]  # type: ignore[no-any-return]

    def forget(self, folder: Path) -> None:
        with self._lock:
            for key in [key for key in self._values if key[0] == str(folder)]:
                del self._values[key]


_loaded = _Loaded()


def loaded(folder: Path, load: Callable[[Path], T]) -> T:
    """Load an object from a folder once for consecutive tasks that need it."""
    return _loaded.get(folder, load)


def forget(folder: Path) -> None:
    """Drop the objects that were loaded from a folder that is going to be deleted."""
    _loaded.forget(folder)


def _place_of_worker() -> Path:
    from distributed import get_worker

    return Path(get_worker().local_directory) / "prepbench"


def _placed(place: Path, files: Mapping[str, str], contents: Mapping[str, bytes]) -> Path:
    """Return the folder with these files; write it first if it is missing."""
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    folder = place / digest
    if folder.is_dir():
        return folder
    place.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".new-", dir=place))
    try:
        for path, known in files.items():
            data = contents[known]
            if hashlib.sha256(data).hexdigest() != known:
                raise TaskError(f"The file {path} of a task came damaged. Try again, or restart the workers.")
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            (beside / path).write_bytes(data)
        try:
            os.rename(beside, folder)
        except OSError:
            if not folder.is_dir():  # else another thread of this worker was faster
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


# The state of running tasks: arguments, answers, and the error of a task that kills its processes.


DEATHS = 3
"""A task that ends its process this often fails."""


@dataclass
class Work:
    """The state of running tasks."""

    name: str
    payloads: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    folders: Mapping[str, Folder]
    is_timing: bool
    stage: str
    progress: ProgressCallback
    answers: dict[int, Any] = field(default_factory=dict)

    @property
    def waiting(self) -> list[int]:
        """Return the numbers of the tasks without an answer."""
        return [number for number in range(len(self.payloads)) if number not in self.answers]

    def arguments(self, number: int) -> tuple[str, str, str, str, bool]:
        """Return the arguments of :func:`run_task`, as text alone."""
        folders = json.dumps({key: str(folder.path) for key, folder in self.folders.items()})
        return self.name, json.dumps(self.payloads[number]), packages_here(), folders, self.is_timing

    def answer(self, number: int, text: str) -> None:
        """Record the answer of a task; raise its error."""
        self.answers[number] = value_of(text, self.names[number])

    def tell(self, name: str = "") -> None:
        """Report progress; raise if cancelled."""
        check_cancelled(self.stage)
        self.progress(Progress(self.stage, len(self.answers), len(self.payloads), name))


def death_message(name: str) -> str:
    """Return the message for a task that kills its processes."""
    return (
        f"The task {name} ended its process {DEATHS} times, so it is not tried again. Often there is too little "
        "memory: give smaller samples, or run fewer processes on a machine. With executor=None it fails here."
    )


# Cross-process lock: timing is exclusive, computing is shared.
#
# ``computing_lock`` takes the lock shared, ``timing_lock`` takes it exclusively. A second lock, the gate, is taken
# first, so that a stream of computing tasks cannot starve one that waits to measure.


_PAUSE_S = 0.05
_WAITING = "waiting until the machine is free"
_held = threading.local()  # the lock that this thread holds


@contextmanager
def computing_lock(progress: ProgressCallback = report_nothing) -> Iterator[None]:
    """Hold the lock shared: no prepbench process measures time on this machine during the block.

    Args:
        progress: called while another process measures; it may raise to cancel.

    Raises:
        StorageError: there is no place for temporary files.
    """
    if getattr(_held, "lock", None) is not None:
        yield
        return
    with _locked(progress, exclusive=False):
        yield


@contextmanager
def timing_lock(progress: ProgressCallback = report_nothing) -> Iterator[None]:
    """Hold the lock exclusively: no other prepbench thread or process computes or measures during it.

    Within :func:`computing_lock` of the same thread, the shared lock is released for the time of the block.

    Args:
        progress: called while others compute; it may raise to cancel.

    Raises:
        StorageError: there is no place for temporary files.
    """
    outer = getattr(_held, "lock", None)
    if outer == "exclusive":
        yield
        return
    lock = getattr(_held, "file", None)
    if outer is not None:
        _unlock(lock)
    try:
        with _locked(progress, exclusive=True):
            yield
    finally:
        if outer is not None and lock is not None:  # shared again, for the rest of the outer block
            _wait(lock, report_nothing, exclusive=False)
            _held.lock, _held.file = outer, lock


@contextmanager
def _locked(progress: ProgressCallback, *, exclusive: bool) -> Iterator[None]:
    gate, lock = _opened("gate"), _opened("lock")
    try:
        _wait(gate, progress, exclusive=exclusive)
        _wait(lock, progress, exclusive=exclusive)
        if not exclusive:
            _unlock(gate)
        _held.lock, _held.file = "exclusive" if exclusive else "shared", lock
        yield
    finally:
        _held.lock = _held.file = None
        os.close(lock)  # which gives both up
        os.close(gate)


def _opened(name: str) -> int:
    """Open a lock file of the machine; the first process creates it, for all users. Nothing is written to it."""
    path = Path(tempfile.gettempdir()) / f"prepbench-machine.{name}"
    try:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
        return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        raise StorageError(
            f"{path}, by which processes that measure time wait for each other, cannot be used: {sentence(error)} Set "
            "TMPDIR to a folder that can be written to."
        ) from error


def _wait(file: int, progress: ProgressCallback, *, exclusive: bool) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where timing processes take turns by hand
        return
    while True:
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            check_cancelled(_WAITING)
            progress(Progress(_WAITING))
            time.sleep(_PAUSE_S)


def _unlock(file: int | None) -> None:
    with suppress(ImportError):
        import fcntl

        if file is not None:
            fcntl.flock(file, fcntl.LOCK_UN)
