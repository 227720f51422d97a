"""Atomic writes of files and folders.

What is written goes to a file or folder beside its place, is synced to the disk, and is moved in. An old one is set
aside until the new one is in place. When that fails, the old one is still there, and the error says so.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import functools
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from prepbench import interrupts
from prepbench.errors import StorageError

Name = str | os.PathLike[str]

FOR_THE_USER = "prepbench-wrong-"
"""How the names of folders begin that an error names: they stay when the process ends."""

_REMEDIES = {
    errno.ENOSPC: "Free some space, or choose a folder on another disk.",
    errno.EDQUOT: "Free some of your quota, or choose a folder on another disk.",
    errno.EROFS: "The disk is read-only: choose a folder that can be written to.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.ENOENT: "Create the folder first, or choose one that exists.",
    errno.ENOTDIR: "Choose a path whose parent is a folder.",
    errno.EISDIR: "Choose the path of a file.",
    errno.ENODEV: "Choose the path of a file.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
_REMEDY = "Check the disk, or choose another folder."


def write_file(path: Name, data: bytes | str, before: Callable[[], object] | None = None) -> Path:
    """Write a file atomically; text is written as UTF-8.

    Args:
        path: of the file.
        data: its content.
        before: called once the file is complete beside its place, for what has to be written before it is moved in.

    Returns:
        The path as it was given.

    Raises:
        StorageError: it cannot be written. What was there before is still there.
        Exception: an error of ``before``, with the same guarantee.

    Example:
        >>> import tempfile
        >>> write_file(f"{tempfile.mkdtemp()}/model.txt", "ready").read_text()
        'ready'
    """
    given, content = Path(path), data.encode() if isinstance(data, str) else data
    place = Path(os.path.realpath(given))  # a link stays, and its target is written
    with typed_errors(given, len(content)), interrupts.held():
        _check_place(place)
        beside = ""
        try:
            with interrupts.restoring():
                handle, beside = tempfile.mkstemp(prefix=f".{place.name[:64]}.", dir=place.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(beside, stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o644)
            if before is not None:
                before()
            os.replace(beside, place)
        finally:
            with interrupts.restoring(), contextlib.suppress(FileNotFoundError):  # it was moved away
                os.unlink(beside)
        _sync_folder(place.parent)
    return given


@contextlib.contextmanager
def remove_new_files_on_error(*paths: Path) -> Iterator[None]:
    """Delete the files that the block created if it raises."""
    new = [path for path in paths if not os.path.lexists(path)]
    with interrupts.held():
        try:
            yield
        except BaseException:
            with interrupts.restoring():
                for path in new:
                    with contextlib.suppress(OSError):
                        path.unlink()
            raise


def move_file(source: Name, path: Name) -> Path:
    """Move a finished file on the same disk to its place, atomically.

    Returns:
        The path as it was given.

    Raises:
        StorageError: it cannot be moved. What was there before is still there.
    """
    given = Path(path)
    place = Path(os.path.realpath(given))
    with typed_errors(given, Path(source).stat().st_size), interrupts.held():
        _check_place(place)
        with Path(source).open("rb") as file:
            os.fsync(file.fileno())
        os.chmod(source, stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o644)
        os.replace(source, place)
        _sync_folder(place.parent)
    return given


def write_folder(path: Name, fill: Callable[[Path], None]) -> Path:
    """Write a folder atomically; parent folders are created, and stay only on success.

    Args:
        path: of the folder; one that is there is replaced as a whole once the new one is complete.
        fill: writes the contents into an empty folder.

    Raises:
        StorageError: it cannot be written. What was there before is still there.
        Exception: an error of ``fill``, with the same guarantee.
    """
    given = Path(path)
    place = Path(os.path.realpath(given))
    with typed_errors(given), interrupts.held(), _folders_above(place):
        beside = None
        try:
            with interrupts.restoring():
                beside = Path(tempfile.mkdtemp(prefix=f".{place.name[:64]}.", dir=place.parent))
            with interrupts.interruptible():
                fill(beside)
            os.chmod(beside, 0o755)
            _sync_tree(beside)
            with interrupts.restoring():
                _move_in(beside, place)
        finally:
            if beside is not None:
                _remove_folder(beside)
        _sync_folder(place.parent)
    return given


def _move_in(new: Path, place: Path) -> None:
    """Replace the existing file or folder by ``new``; the existing one is set aside until then."""
    aside = new.with_name(f"{new.name}.old")
    try:
        if place.exists():
            os.rename(place, aside)
        os.rename(new, place)
    finally:
        # also after an interrupt between the two steps: either the new one is in place, or the old one goes back
        if aside.exists() and not place.exists():
            os.rename(aside, place)
        shutil.rmtree(aside, ignore_errors=True)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder and its subfolders."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def folder_beside(path: Name) -> Iterator[Path]:
    """Create a temporary folder on the same disk as ``path``, for files that will be moved there.

    Inside the block interrupts wait for safe points.

    Raises:
        StorageError: the place is a folder, or cannot be written to.
    """
    given = Path(path)
    place = Path(os.path.realpath(given))
    with interrupts.held(), contextlib.ExitStack() as undo:
        with typed_errors(given):
            _check_place(place)
            undo.enter_context(_folders_above(place))
            with interrupts.restoring():
                beside = Path(tempfile.mkdtemp(prefix=f".{place.name[:64]}.", dir=place.parent))
                undo.callback(_remove_folder, beside)
        yield beside


def _remove_folder(folder: Path) -> None:
    with interrupts.restoring():
        shutil.rmtree(folder, ignore_errors=True)


def _check_place(place: Path) -> None:
    """Refuse a folder, and what is no file at all: a file moved onto a device would take the device away."""
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if place.exists() and not place.is_file():
        raise OSError(errno.ENODEV, "a device, pipe or socket is there")


@contextlib.contextmanager
def _folders_above(place: Path) -> Iterator[None]:
    """Create the parent folders of a place; remove the new ones if the block fails."""
    missing = [folder for folder in place.parents if not folder.exists()]
    lowest = next(folder for folder in place.parents if folder.exists())
    if not lowest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{lowest} is not a folder")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with interrupts.restoring():
            for folder in missing:
                with contextlib.suppress(OSError):  # it was not created, or is in use elsewhere
                    folder.rmdir()
        raise


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Create a temporary folder, which is deleted afterwards.

    Raises:
        StorageError: there is no place for temporary files, or it is full.
    """
    kept = KeptFolder(purpose)
    try:
        yield kept.path
    finally:
        with interrupts.restoring():
            kept.remove()


_made: contextvars.ContextVar[list[Callable[[], object]] | None] = contextvars.ContextVar("made", default=None)


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Delete temporary folders made in the block if it fails, also those that objects were to keep.

    An exception holds the objects of the calls that it came through, and a notebook holds the last exception. A block
    within this one that succeeded keeps its folders: a model that calls a compiled model may make and keep one.
    """
    own: list[Callable[[], object]] = []
    token = _made.set(own)
    try:
        yield
    except BaseException:
        with interrupts.restoring():
            for remove in own:
                remove()
        raise
    finally:
        _made.reset(token)


class KeptFolder:
    """A temporary folder that lives as long as this object, or until :func:`nothing_left` fails.

    A process that is killed leaves its folders, which may hold the weights of large models: the next process that makes
    one deletes those that no living process holds a lock on.

    Args:
        purpose: part of its name, e.g. ``"onnx"``.

    Raises:
        StorageError: there is no place for temporary files.
    """

    def __init__(self, purpose: str) -> None:
        with interrupts.held():  # a folder without an owner would never be deleted
            self.path = _temporary(f"prepbench-{purpose}-")
            self.remove = weakref.finalize(self, _remove, self.path, _locked(self.path, shared=True))
            if (made := _made.get()) is not None:
                made.append(self.remove)


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)


def _locked(folder: Path, *, shared: bool) -> int | None:
    """Lock a folder for as long as its descriptor is open; None where that is not possible, also on Windows."""
    try:
        import fcntl

        lock = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


@functools.cache
def _delete_abandoned(place: str) -> None:
    """Delete folders of processes that were killed, once in a process. Young ones may not be locked yet."""
    for folder, changed in own_folders(place, "prepbench-*-*").items():
        is_young = time.time() - changed < _YOUNG_S
        if is_young or folder.name.startswith(FOR_THE_USER):
            continue
        lock = _locked(folder, shared=False)
        if lock is not None:
            _remove(folder, lock)


_YOUNG_S = 3600


def own_folders(place: Name, pattern: str) -> dict[Path, float]:
    """Return the folders of this user in ``place`` whose names match, with the times when they changed, in seconds."""
    found = {}
    for folder in Path(place).glob(pattern):
        with contextlib.suppress(OSError):  # it is gone
            status = folder.lstat()
            own = getattr(os, "getuid", lambda status=status: status.st_uid)()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == own:
                found[folder] = status.st_mtime
    return found


def check_temporary_space() -> None:
    """Check that temporary files can be written.

    Raises:
        StorageError: there is none.
    """
    _temporary("prepbench-").rmdir()


def _temporary(prefix: str) -> Path:
    with _place_for_files():
        _delete_abandoned(tempfile.gettempdir())
        return Path(tempfile.mkdtemp(prefix=prefix))


@contextlib.contextmanager
def _place_for_files() -> Iterator[None]:
    place = os.environ.get("TMPDIR", "")
    try:
        place = place or tempfile.gettempdir()
        yield
    except OSError as error:
        raise StorageError(
            f"There is no place for temporary files: {place or 'no folder'} cannot be written to "
            f"({_reason(error)}). Set TMPDIR to a folder with free space."
        ) from error


@contextlib.contextmanager
def typed_errors(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn the system's errors into :class:`StorageError`, with operation, path, needed bytes and remaining files."""
    existed = os.path.lexists(path)
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _storage_error(path, needed, existed, error) from error


@contextlib.contextmanager
def temporary_space() -> Iterator[None]:
    """Turn other libraries' errors on a full or read-only disk into :class:`StorageError`, for temporary files."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        cause = _disk_error(error)
        if cause is None:
            raise
        place = Path(cause.filename or tempfile.gettempdir())
        made = StorageError(
            f"The temporary file {place} cannot be written: {_reason(cause)}{_missing(place, None, cause)}. Nothing "
            "was changed. Free some space, or set TMPDIR to a folder that has some and can be written to."
        )
        made.errno, made.filename = cause.errno, cause.filename
        raise made from error


_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


def _disk_error(error: BaseException | None) -> OSError | None:
    """Return the operating system's error behind another one, if the disk is the cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _DISK:
            return error
        error = error.__cause__ or error.__context__
    return None


def _storage_error(path: Path, needed: int | None, existed: bool, error: OSError) -> StorageError:
    size = f" ({_megabytes(needed)})" if needed else ""
    still = "What was there before is still there." if existed else "Nothing was left behind."
    made = StorageError(
        f"{path}{size} cannot be written: {_reason(error)}{_missing(path, needed, error)}. {still} "
        f"{_REMEDIES.get(error.errno or 0, _REMEDY)}"
    )
    made.errno, made.filename = error.errno, str(path)
    return made


def _reason(error: OSError) -> str:
    text = error.strerror or str(error) or type(error).__name__
    return text[0].lower() + text[1:]


def _missing(path: Path, needed: int | None, error: OSError) -> str:
    """Return the free space in words, if space is what is missing."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(path.absolute().parent).free
        lacking = f", {_megabytes(needed - free)} are missing" if needed and needed > free else ""
        return f", {_megabytes(free)} are free{lacking}"
    return ""


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        else:
            _sync_folder(path)
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Sync renames in a folder to disk; file systems that cannot sync a folder need no help."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
