"""Unit tests export nothing and start no process: what does belongs to `tests/compile` or `tests/system`."""

from __future__ import annotations

import subprocess

import pytest
import torch.export._trace


@pytest.fixture(autouse=True)
def _neither_exports_nor_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*given: object, **named: object) -> None:
        pytest.fail("a unit test exported a model or started a process: move it to tests/compile or tests/system")

    monkeypatch.setattr(torch.export._trace, "_export", refused)
    monkeypatch.setattr(subprocess, "Popen", refused)
