"""``info``: versions, targets with what installs them, and the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from prepbench.command_line.main import main
from prepbench.targets.registry import TARGETS


def test_it_names_every_target_and_version(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["info", "--json", str(tmp_path / "info.json")]) == 0
    out = capsys.readouterr().out
    assert [target.display_name for target in TARGETS if target.display_name not in out] == []
    data = json.loads((tmp_path / "info.json").read_text())
    assert data["versions"]["torch"] == torch.__version__
    assert set(data["machine"]) == {"system", "processor", "cores", "memory", "GPU"}


def test_a_target_that_is_missing_comes_with_its_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *a: None if name == "openvino" else find(name, *a))
    assert main(["info"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  OpenVINO"))
    assert 'pip install "prepbench[openvino]"' in line
