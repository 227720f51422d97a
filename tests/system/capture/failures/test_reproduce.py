"""failure.reproduce writes a script that stands alone and fails in the same way, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError
from prepbench.document.codec import from_json, to_json
from prepbench.errors import CaptureError, DocumentError

THRESHOLD = 0.25


def helper(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x) * THRESHOLD


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12)
        self.register_buffer("scale", torch.full((12,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = helper(self.norm(self.linear(x))) * self.scale
        if y.sum() > THRESHOLD:
            return y
        return -y


class Numpy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.clip(x.numpy(), 0, 1))


@dataclass
class Settings:
    limit: float = 1.5
    names: tuple[str, ...] = ("a", "b")


class Base(nn.Module):
    def factor(self) -> float:
        return 2.0


class Item(Base):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: torch.Tensor, *, names: list[str]) -> torch.Tensor:
        if x.max().item() > self.settings.limit:
            return x * self.factor()
        return x[:, : len(names)]


class Around(nn.Module):
    def __init__(self, inner: nn.Module, **further: Any) -> None:
        super().__init__()
        self.first, self.inner, self.further = nn.Linear(12, 12), inner, further

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x), **self.further)


SAMPLES = [torch.randn(2, 12), torch.randn(3, 12)]
CASES: dict[str, Any] = {
    "branch": lambda: Around(Branch()),
    "numpy": lambda: Around(Numpy()),
    "item": lambda: Around(Item(Settings(0.5)), names=["x", "y"]),
}


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script.name], capture_output=True, text=True, cwd=script.parent
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("name", CASES)
def test_the_script_fails_like_the_module(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = CASES[name]().eval()
    (failure,) = pb.recursive_trace(model, inputs=SAMPLES).failures
    path = failure.reproduce(tmp_path / "bug.py")
    assert failure.exception_type in run(path)
    assert "prepbench" not in path.read_text()
    assert failure.source is not None
    assert failure.source.code in path.read_text()


def test_without_inputs_the_script_traces_symbolically(tmp_path: Path) -> None:
    (failure,) = pb.recursive_trace(Around(Branch()).eval()).failures
    assert "TraceError" in run(failure.reproduce(tmp_path / "bug.py"))


def test_every_result_has_failures_that_reproduce(tmp_path: Path) -> None:
    model = Around(Branch()).eval()
    report = pb.check_traceability(model, SAMPLES)
    assert report.failures[0].reproduce(tmp_path / "a.py").exists()
    with pytest.raises(FullGraphError) as caught:
        pb.capture(model, SAMPLES)
    assert caught.value.failures[0].reproduce(tmp_path / "b.py").exists()


def test_failures_stay_data(tmp_path: Path) -> None:
    captured = pb.capture(Around(Branch()).eval(), SAMPLES, fullgraph=False)
    read = from_json(to_json(captured.document())).failures
    assert read == captured.failures
    with pytest.raises(DocumentError, match="without its module"):
        read[0].reproduce(tmp_path / "bug.py")


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.file = open(__file__)  # noqa: SIM115

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_what_a_script_cannot_hold_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    model = Around(Held())
    (failure,) = pb.recursive_trace(model, inputs=SAMPLES).failures
    with pytest.raises(CaptureError, match=r"'inner'\.file"):
        failure.reproduce(tmp_path / "bug.py")
    model.inner.file.close()
    assert list(tmp_path.iterdir()) == []
