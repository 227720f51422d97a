"""``info``: versions, targets with what installs them, and the machine."""

from __future__ import annotations

import importlib
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from prepbench._torch_compat import scans
from prepbench.command_line import info
from prepbench.command_line.main import main
from prepbench.packages import TESTED
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


def _abilities(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What is not here, by ability."""
    assert main(["info"]) == 0
    section = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert section[0] == "Abilities"
    rows = [re.split(r"  +", line.strip(), maxsplit=1) for line in section[1:]]
    return {name: value for name, value in rows if value != "here"}


def test_versions_are_told_with_those_that_are_tested(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(info, "_abilities", lambda: {"none": dict})
    monkeypatch.setitem(TESTED, "plotly", ("1.0", "1.2"))
    monkeypatch.setitem(TESTED, "pandas", ("1.0", "99.0"))
    assert main(["info", "--json", str(tmp_path / "info.json")]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"  plotly +{version('plotly')} \(newer than tested with: 1\.0 to 1\.2\)", out)
    assert re.search(rf"  pandas +{version('pandas')} \(tested with 1\.0 to 99\.0\)", out)
    assert json.loads((tmp_path / "info.json").read_text())["tested"]["plotly"] == ["1.0", "1.2"]


def test_what_is_missing_costs_one_ability(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _abilities(capsys) == {}
    qat_utils = importlib.import_module("torchao.quantization.pt2e.qat_utils")
    monkeypatch.delattr(qat_utils, "_fold_conv_bn_qat_helper")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, scans.__name__, None)
    monkeypatch.delattr("transformers.masking_utils.prepare_padding_mask")
    lost = _abilities(capsys)
    assert list(lost) == [
        "quick conversion",
        "loops as scans",
        "caches of transformers",
        "adapters (PEFT)",
        "static pictures (dot)",
    ]
    assert "torchao.quantization.pt2e.qat_utils._fold_conv_bn_qat_helper" in lost["quick conversion"]
    assert "prepare_padding_mask" in lost["caches of transformers"]
    assert "pip install 'prepbench[peft]'" in lost["adapters (PEFT)"]


def test_capture_is_missing_where_it_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prepbench.capture.aten.export_program.quiet_export", None)
    lost = _abilities(capsys)
    assert list(lost) == ["capture", "strict capture (dynamo)"]
    assert "prepbench itself failed at capture/aten/export_program.py" in lost["capture"]
