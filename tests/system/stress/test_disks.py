"""Full, read-only and missing disks, at every write: the old file stays, nothing is left half-written."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile import stages
from prepbench.errors import StorageError, TargetError
from tests.system.stress.faults import Disk
from tests.system.stress.models import Small, samples

ROOT = Path(__file__).parents[3]
TARGETS = {
    "eager": pb.EagerDeployment(),
    "onnxruntime": pb.OnnxRuntimeDeployment(),
    "openvino": pb.OpenVinoDeployment(),
    "executorch": pb.ExecuTorchDeployment(),
    "inductor": pb.InductorDeployment(),
}


def _compile(target: str, **options: Any) -> Any:
    return pb.compile_model(Small(1).eval(), tracing_inputs=samples(), deployment_settings=TARGETS[target], **options)


@functools.cache
def _compiled(target: str) -> Any:
    return _compile(target)


@functools.cache
def _traced() -> pb.GraphCollection:
    return pb.recursive_trace(Small(1).eval(), inputs=samples())


def _writer(name: str, place: Path, target: str) -> Callable[[], Any]:
    """What writes the file or folder of this name, and needs a model that is compiled once only."""
    path = place / name
    if name == "logs":
        return lambda: _compile(target, logs_dir=path)
    if name in ("model", "model.onnx"):
        compiled = _compiled(target)
        return lambda: compiled.save(path) if name == "model" else compiled.export(path)
    if name == "page.html":
        diagram = _traced().diagram()
        return lambda: diagram.to_html(str(path))
    return lambda: _traced().save(str(path))


def _contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def _check_each_write(
    name: str, write: Callable[[], Any], place: Path, points: int | None, number: int = errno.ENOSPC
) -> int:
    """Fail the n-th write of a call for every n, or for some; returns how many are refused."""
    with Disk().used() as disk:
        write()
    before, refused = _contents(place), 0
    for failing in _chosen(disk.count, points):
        refused += _is_refused(write, failing, number)
        if name != "logs":  # a log is what was written until then
            assert _contents(place).keys() == before.keys(), f"{name}: write {failing} of {disk.count}"
            assert _is_whole(name, place), f"{name}: write {failing} of {disk.count}"
    write()  # the disk works again
    return refused


def _chosen(count: int, points: int | None) -> range:
    """All writes, or about so many of them."""
    return range(0, count, 1 if points is None else math.ceil(count / points))


def _is_refused(write: Callable[[], Any], failing: int, number: int) -> bool:
    """Whether there is an error of ours; torch goes on without some files, such as those of its logs and caches."""
    try:
        with Disk(failing, number).used():
            write()
    except StorageError:
        return True
    finally:
        gc.collect()
    return False


def _is_whole(name: str, place: Path) -> bool:
    if name == "model":
        return pb.load_compiled(place / name, allow_code=True)(samples()[1]).shape[0] == 5
    if name == "model.onnx":
        import onnx

        onnx.checker.check_model(str(place / name))
        return True
    return (place / name).read_text().rstrip().endswith(("</html>", "}"))


NAMES = ("model", "model.onnx", "page.html", "model.graph.json", "logs")
NUMBERS = (errno.ENOSPC, errno.EROFS, errno.EACCES)


def _check_writer(
    name: str,
    tmp_path: Path,
    temporary: Path,
    points: int | None,
    target: str = "onnxruntime",
    number: int = errno.ENOSPC,
) -> None:
    place = tmp_path / "place"
    place.mkdir(parents=True)
    write = _writer(name, place, target)
    write()  # torch makes folders of its own at first
    kept = set(os.listdir(temporary))
    assert _check_each_write(name, write, place, points, number) > 0
    gc.collect()
    assert set(os.listdir(temporary)) <= kept


@pytest.mark.parametrize("name", NAMES[:-1])
def test_some_writes_may_fail(name: str, tmp_path: Path, temporary: Path) -> None:
    _check_writer(name, tmp_path, temporary, points=4)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_write_may_fail(name: str, number: int, tmp_path: Path, temporary: Path) -> None:
    _check_writer(name, tmp_path, temporary, points=None, number=number)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", ["executorch", "inductor"])
def test_every_write_of_what_other_libraries_save_may_fail(target: str, tmp_path: Path, temporary: Path) -> None:
    _check_writer("model", tmp_path, temporary, None, target)
    _check_writer("logs", tmp_path / "other", temporary, 12, target)


def _check_comparisons(target: str, number: int, points: int | None, temporary: Path) -> None:
    compiled = _compiled(target)

    def compare() -> Any:
        return pb.compare({"float32": Small(1).eval(), "compiled": compiled}, samples(), rounds=1)

    with Disk().used() as disk:
        expected = [(row.timed_in, row.size_of) for row in compare().rows]
    kept = set(os.listdir(temporary))
    for failing in _chosen(disk.count, points):
        with Disk(failing, number).used(), contextlib.suppress(StorageError):
            found = compare()
            assert [(row.timed_in, row.size_of) for row in found.rows] == expected, failing
        gc.collect()
        assert {name for name in os.listdir(temporary) if name.startswith("prepbench")} <= kept


def test_a_disk_that_fills_up_while_models_are_compared(temporary: Path) -> None:
    _check_comparisons("onnxruntime", errno.ENOSPC, 3, temporary)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_write_of_a_comparison_may_fail(target: str, number: int, temporary: Path) -> None:
    _check_comparisons(target, number, None, temporary)


def _check_compiles(target: str, temporary: Path, number: int = errno.ENOSPC, points: int | None = None) -> None:
    with Disk().used() as disk:
        _compile(target)
    gc.collect()
    kept = set(os.listdir(temporary))
    refused = 0
    for failing in _chosen(disk.count, points):
        refused += _is_refused(lambda: _compile(target), failing, number)
        assert {name for name in os.listdir(temporary) if name.startswith("prepbench")} <= kept
    assert refused
    _compile(target)


@pytest.mark.parametrize("target", ["onnxruntime"])
def test_some_writes_of_a_compile_may_fail(target: str, temporary: Path) -> None:
    _check_compiles(target, temporary, points=4)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_write_of_every_compile_may_fail(target: str, number: int, temporary: Path) -> None:
    _check_compiles(target, temporary, number)


class NoOperator(nn.Module):
    """Has an operator that ONNX and ExecuTorch lack."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.i1e(x)


@pytest.mark.parametrize(
    "target",
    ["onnxruntime", "executorch", *(pytest.param(each, marks=pytest.mark.stress) for each in ("openvino", "inductor"))],
)
def test_what_failed_leaves_no_folder_while_its_error_is_kept(
    target: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook keeps the last error, and with it the objects of all calls that it came through."""
    settings = {"tracing_inputs": samples(), "deployment_settings": TARGETS[target]}
    if target != "inductor":
        with pytest.raises(TargetError) as refused:
            pb.compile_model(NoOperator(), **settings)
        assert refused.value.__cause__ is not None
    for kind in (ValueError, KeyboardInterrupt):
        monkeypatch.setattr(stages, "LoweredCheck", mock.Mock(side_effect=kind))
        with pytest.raises(kind):
            pb.compile_model(Small(1).eval(), **settings)
    assert [name for name in os.listdir(temporary) if name.startswith("prepbench")] == []


_WORK = """
import sys, tempfile
import prepbench as pb
from prepbench.errors import StorageError
from tests.system.stress.models import Small, samples
from tests.system.stress.test_disks import TARGETS
model = Small(1).eval()
tempfile.tempdir = sys.argv[3] if len(sys.argv) > 3 else None
try:
    compiled = pb.compile_model(model, tracing_inputs=samples(), deployment_settings=TARGETS[sys.argv[1]])
    compiled.save(sys.argv[2])
    pb.compare({"float32": model, "compiled": compiled}, samples(), rounds=1)
    print("worked")
except StorageError as error:
    print("StorageError", error)
"""


def _said(target: str, place: Path, *temporary: str, limit: int | None = None) -> str:
    """What a process says that compiles, saves and compares, with files of at most ``limit`` bytes."""

    def restrict() -> None:
        import signal

        if limit is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _WORK, target, str(place), *temporary],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        preexec_fn=restrict,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("target", ["onnxruntime"])
def test_no_temporary_space(target: str, tmp_path: Path) -> None:
    assert _said(target, tmp_path / "model", "/proc/nowhere").startswith("StorageError")
    assert os.listdir(tmp_path) == []


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("target", TARGETS)
def test_files_that_may_not_grow(target: str, tmp_path: Path) -> None:
    """The limit also holds for what C++ writes, which a full disk stops in the same way."""
    for limit in (0, 100, 1000):
        said = _said(target, tmp_path / f"model {limit}", limit=limit)
        assert said.startswith("StorageError"), said
        assert os.listdir(tmp_path) == []
