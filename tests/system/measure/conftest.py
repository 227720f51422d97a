from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from prepbench.measure import latency
from prepbench.measure.artifacts import SAVED, Artifact

HERE = Path(__file__).parent


class ExportedModel(torch.nn.Module):
    """What a compiled model is to ``compare``: callable, with a target, and able to save itself."""

    target = "exported"
    size_bytes = 0

    def __init__(self, module: torch.nn.Module, *args: torch.Tensor) -> None:
        super().__init__()
        batch = torch.export.Dim("batch", min=1)
        self.program = torch.export.export(module.eval(), args, dynamic_shapes=tuple({0: batch} for _ in args))
        self._run = self.program.module()

    def forward(self, *args, **kwargs):
        return self._run(*args, **kwargs)

    def save(self, folder: Path) -> None:
        torch.export.save(self.program, folder / "model.pt2")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> type[ExportedModel]:
    """The class of saveable candidates, with real workers that can load them."""
    script = str(HERE / "exported_worker.py")
    monkeypatch.setattr(latency, "worker_command", lambda *given: [sys.executable, script, *map(str, given)])
    return ExportedModel


class FakeWorkers:
    """Workers whose behaviour is the first word of their folder's name; keeps the order in which they were asked."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "order.log"

    def artifact(self, mode: str, name: str) -> Artifact:
        return Artifact(Path(f"{mode}@{name}"), 1000, SAVED, "fake")

    def command(self, artifact: Path, inputs: Path, threads: int) -> list[str]:
        mode, name = str(artifact).split("@")
        return [sys.executable, str(HERE / "fake_worker.py"), mode, name, str(self.log)]

    def events(self) -> list[tuple[str, str, int]]:
        return [tuple(json.loads(line)) for line in self.log.read_text().splitlines()]

    def requests(self) -> list[tuple[str, str]]:
        return [(name, event) for name, event, _ in self.events() if event != "start"]

    def assert_all_ended(self) -> None:
        started = [pid for _, event, pid in self.events() if event == "start"]
        assert started
        for pid in started:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.fixture
def fake_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeWorkers:
    fakes = FakeWorkers(tmp_path)
    monkeypatch.setattr(latency, "worker_command", fakes.command)
    return fakes


@pytest.fixture
def temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary folders are made, to see that none is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
