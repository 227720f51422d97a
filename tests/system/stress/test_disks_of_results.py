"""Full, read-only and missing disks under saved benches, reports, leaves, fixed sources and folders for other tools."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import importlib
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import prepbench as pb
from prepbench.errors import StorageError
from prepbench.measure.run import compare
from tests.compile.generate.generating import compile_for, make_model
from tests.compile.package.leaf_models import Branching
from tests.system.stress.faults import Disk
from tests.system.stress.models import Small, samples

ROOT = Path(__file__).parents[3]
NUMBERS = (errno.ENOSPC, errno.EROFS, errno.EACCES)
TOOLS = {"ONNX Runtime": pb.OnnxRuntimeDeployment(), "OpenVINO": pb.OpenVinoDeployment()}
SOURCE = "import torch\n\n\nclass Gate(torch.nn.Module):\n    def forward(self, x):\n        if x.sum() > 0:\n"
SOURCE += "            x = x * 2\n        return x + 1\n"

Writer = tuple[Callable[[], Any], Callable[[], bool]]


@functools.cache
def _bench() -> pb.Bench:
    bench = pb.Bench(Small(1).eval(), calibration_inputs=samples())
    bench.set_target("PyTorch eager")
    with mock.patch("prepbench.bench.compiling.compare", functools.partial(compare, rounds=0)):  # nothing is timed
        bench.compile()
    return bench


@functools.cache
def _partly() -> tuple[pb.CompiledModel, Branching, list[torch.Tensor]]:
    model, wide = Branching().eval(), [torch.linspace(-1, 1, 8 * size).reshape(size, 8) for size in (2, 5)]
    target = pb.EagerDeployment()
    return pb.compile_model(model, tracing_inputs=wide, deployment_settings=target, fullgraph=False), model, wide


@functools.cache
def _language_model(target: str) -> pb.CompiledModel:
    return compile_for(make_model(1), {target: TOOLS[target]})[target]


def _saved_bench(path: Path) -> Writer:
    ids = [run.id for run in _bench().runs]
    load = functools.partial(pb.Bench.load, path, model=Small(1).eval(), calibration_inputs=samples())
    return lambda: _bench().save(path), lambda: [run.id for run in load().runs] == ids


def _report(path: Path) -> Writer:
    return lambda: _bench().report(path), lambda: path.read_text().rstrip().endswith("</html>")


def _leaves(path: Path) -> Writer:
    compiled, model, wide = _partly()
    expected = compiled(wide[1])
    return lambda: compiled.save(path), lambda: torch.equal(pb.load_compiled(path, model=model)(wide[1]), expected)


def _for_tools(path: Path) -> Writer:
    compiled = _language_model(path.name)
    names = {"config.json", "generation_config.json"}
    return lambda: compiled.export(path, style="transformers"), lambda: names < set(os.listdir(path))


WRITERS = {"net.bench.json": _saved_bench, "net.html": _report, "leaves": _leaves, **dict.fromkeys(TOOLS, _for_tools)}


def _names(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def _check(name: str, place: Path, temporary: Path, number: int, points: int | None) -> None:
    """Fail the n-th write for every n, or for some, of writing anew and of writing over an old one."""
    place.mkdir()
    write, is_whole = WRITERS[name](place / name)
    with Disk().used() as disk:
        write()
    whole, kept = _names(place), _names(temporary)
    refused = 0
    for failing in range(0, disk.count, 1 if points is None else math.ceil(disk.count / points)):
        with Disk(failing, number).used(), contextlib.suppress(StorageError):
            refused += 1
            write()
            refused -= 1
        gc.collect()
        assert (_names(place), is_whole()) == (whole, True), f"{name}: write {failing} of {disk.count}"
        assert _names(temporary) <= kept
    assert refused
    write()
    assert is_whole()


@pytest.mark.parametrize("name", ["net.bench.json", "net.html", "leaves"])
def test_some_writes_may_fail(name: str, tmp_path: Path, temporary: Path) -> None:
    _check(name, tmp_path / "place", temporary, errno.ENOSPC, 4)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", WRITERS)
def test_every_write_may_fail(name: str, number: int, tmp_path: Path, temporary: Path) -> None:
    _check(name, tmp_path / "place", temporary, number, None)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_fixed_source_is_old_or_new(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"gates_on_disk_{number}.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    fixed = pb.fix(importlib.import_module(file.stem).Gate(), [torch.ones(2), -torch.ones(2)])
    with Disk().used() as disk:
        fixed.write()
    new = file.read_text()
    assert "torch.where" in new
    refused = 0
    for failing in range(disk.count):
        file.write_text(SOURCE)
        with Disk(failing, number).used(), contextlib.suppress(StorageError):
            refused += 1
            fixed.write()
            refused -= 1
        assert file.read_text() in (SOURCE, new)
        assert os.listdir(tmp_path) in ([file.name], [file.name, "__pycache__"], ["__pycache__", file.name])
    assert refused >= disk.count // 2


_WORK = """
import sys
from pathlib import Path
from prepbench.errors import StorageError
from tests.system.stress.test_disks_of_results import WRITERS, limited
name, place = sys.argv[1], Path(sys.argv[2])
write, is_whole = WRITERS[name](place / name)
write()
limited(int(sys.argv[3]))
try:
    write()
    said = "worked"
except StorageError:
    said = "StorageError"
limited(-1)  # the old one is read on a disk that works again
print(said, is_whole())
"""


def limited(count: int) -> None:
    """From now on no file may grow beyond so many bytes (-1: any), also those that C writes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _said(name: str, place: Path, limits: Iterable[int]) -> list[str]:
    said = []
    for limit in limits:
        own = place / f"{name} {limit}"
        own.mkdir()
        command = [sys.executable, "-W", "ignore", "-c", _WORK, name, str(own), str(limit)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        said.append(done.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.stress
def test_a_journal_that_may_not_grow(tmp_path: Path) -> None:
    """SQLite writes in C, and is refused there."""
    assert all(said == "StorageError True" for said in _said("net.bench.json", tmp_path, [100]))


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", WRITERS)
def test_files_that_may_not_grow(name: str, tmp_path: Path) -> None:
    for said in _said(name, tmp_path, (0, 100, 3000, 20_000)):
        assert said in ("StorageError True", "worked True"), said
