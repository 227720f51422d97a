"""Files are whole or as they were, on full, read-only and missing disks too."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prepbench import storage
from prepbench.errors import PrepbenchError, StorageError
from prepbench.storage import (
    KeptFolder,
    folder_beside,
    nothing_left,
    remove_new_files_on_error,
    temporary_folder,
    write_file,
    write_folder,
)


def failing(number: int, after: int = 0) -> Callable[..., Any]:
    """A stand-in for a function of ``os`` that fails once it was called ``after`` times."""
    left = [after]

    def fail(*args: Any, **kwargs: Any) -> Any:
        if left[0]:
            left[0] -= 1
            return None
        raise OSError(number, os.strerror(number))

    return fail


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.html"
    assert write_file(path, "one") == path
    path.chmod(0o600)
    write_file(path, b"two")
    assert (path.read_text(), path.stat().st_mode & 0o777, names(tmp_path)) == ("two", 0o600, ["model.html"])


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_an_old_file_survives_a_full_disk(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.html"
    path.write_text("old")
    monkeypatch.setattr(storage.os, step, failing(errno.ENOSPC))
    with pytest.raises(StorageError) as caught:
        write_file(path, "new" * 1000)
    monkeypatch.undo()
    assert (path.read_text(), names(tmp_path)) == ("old", ["model.html"])
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, (OSError, PrepbenchError))
    for words in (str(path), "0.003 MB", "no space left", "are free", "still there", "Free some space"):
        assert words in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no such file or directory.*Nothing was left behind.*Create the folder"):
        write_file(tmp_path / "absent" / "x", "text")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory"):
        write_file(tmp_path, "text")


def fill(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "a").mkdir() or ((folder / "a" / "b").write_text(text) and None)


def test_a_device_or_pipe_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"pipe or socket is there\. .*Choose the path of a file"):
        write_file(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file is not a folder\. .*parent is a folder"):
        write_folder(tmp_path / "file" / "inside" / "model", lambda folder: None)
    assert (tmp_path / "file").read_text() == ""


def test_a_folder_is_written_and_replaced(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "model"
    write_folder(place, fill("one"))
    (place / "extra").write_text("gone afterwards")
    write_folder(place, fill("two"))
    assert (names(place), (place / "a" / "b").read_text(), names(place.parent)) == (["a"], "two", ["model"])


@pytest.mark.parametrize("after", [0, 1])
def test_an_old_folder_survives_a_failed_move(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "model"
    write_folder(place, fill("old"))
    real, calls = os.rename, [0]

    def rename(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == after + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(*args)

    monkeypatch.setattr(storage.os, "rename", rename)
    with pytest.raises(StorageError, match="still there"):
        write_folder(place, fill("new"))
    assert ((place / "a" / "b").read_text(), names(tmp_path)) == ("old", ["model"])


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_leaves_the_old_or_the_new(after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "model"
    write_folder(place, fill("old"))
    real, calls = os.rename, [0]

    def rename(*args: Any) -> None:
        real(*args)
        calls[0] += 1
        if calls[0] == after:
            raise KeyboardInterrupt

    monkeypatch.setattr(storage.os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write_folder(place, fill("new"))
    assert ((place / "a" / "b").read_text(), names(tmp_path)) == (("old", "new")[after - 1], ["model"])


def test_what_filling_raises_is_passed_on(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        write_folder(tmp_path / "model", broken)
    assert names(tmp_path) == []


def test_no_temporary_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    with pytest.raises(StorageError, match=r"no place for temporary files.*TMPDIR"):
        KeptFolder("onnx")


def test_a_temporary_folder_is_gone_afterwards() -> None:
    with temporary_folder("test") as folder:
        (folder / "file").write_text("text")
    assert not folder.exists()


def test_a_kept_folder_goes_with_its_object_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    kept = KeptFolder("test")
    path = kept.path
    (path / "file").write_text("text")
    del kept
    gc.collect()
    assert not path.exists()
    assert list(recwarn) == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_no_folder_although_its_exception_is_kept(kind: type[BaseException]) -> None:
    made: list[KeptFolder] = []

    @nothing_left()
    def work(error: BaseException | None) -> None:
        with nothing_left():  # what a model compiles for itself when it is called, and keeps
            made.append(KeptFolder("test"))
        made.append(KeptFolder("test"))
        if error is not None:
            raise error

    work(None)
    with pytest.raises(kind):
        work(kind())
    assert [kept.path.exists() for kept in made] == [True, True, True, False]


def test_folders_of_killed_processes_are_deleted(tmp_path: Path) -> None:
    script = "import sys; from prepbench.storage import KeptFolder as F; kept = F('test'); print(1); sys.stdin.read()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def started() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", script], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout
        process.stdout.readline()
        return process

    def folders() -> set[str]:
        return {path.name for path in tmp_path.iterdir()}

    (tmp_path / f"{storage.FOR_THE_USER}1").mkdir()
    (tmp_path / "of-others").mkdir()
    killed, living = started(), started()
    killed.kill()
    killed.wait()
    before = folders()
    for path in tmp_path.iterdir():  # the young may not be locked yet
        os.utime(path, (0, 0))
    with started() as latest:
        left = folders()
        latest.kill()
    living.communicate("")

    assert len(before) == 4
    assert len(left) == 4, "one of the killed process less, one more of the latest"
    assert len(before - left) == 1
    assert len(folders()) == 3, "what ends by itself leaves nothing"


def test_folders_above_go_again(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise ValueError("mine")

    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="mine"):
        write_folder(tmp_path / "mine" / "deep" / "deeper" / "model", broken)
    with pytest.raises(ValueError, match="mine"), folder_beside(tmp_path / "mine" / "other" / "model.onnx"):
        raise ValueError("mine")
    assert (names(tmp_path), names(tmp_path / "mine")) == (["mine"], [])


def test_what_comes_before_a_file_may_fail(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.write_text("old")

    def broken() -> None:
        write_file(first, "new")
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"), remove_new_files_on_error(first, second):
        write_file(second, "new", before=broken)
    assert (names(tmp_path), second.read_text()) == (["second"], "old")
