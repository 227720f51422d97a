"""The example for GitHub Actions: its steps run as plain shell, in a copy of its folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "continuous_integration"
STEPS: list[dict[str, Any]] = yaml.safe_load((EXAMPLE / "models.yml").read_text())["jobs"]["models"]["steps"]
COMMANDS = [step["run"] for step in STEPS if "run" in step]


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a step as GitHub does, with this Python."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    options = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command]
    return subprocess.run(options, cwd=folder, env=environment, capture_output=True, text=True)


def test_what_it_installs_is_what_this_is() -> None:
    """Installing needs a network, so the line is compared with the package's own metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (line,) = [command for command in COMMANDS if command.startswith("pip ")]
    found = re.fullmatch(r"pip install '?(\w+)(?:\[([\w,]+)\])?'?", line.strip())
    assert found is not None
    assert found[1] == project["name"]
    assert set((found[2] or "").split(",")) - {""} <= set(project["optional-dependencies"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project"))


@pytest.mark.stress
def test_the_steps_run(folder: Path) -> None:
    steps = [command for command in COMMANDS if not command.startswith("pip ")]
    assert len(steps) >= 4
    for command in steps:
        done = shell(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    reports = sorted((folder / "reports").glob("*.xml"))
    assert [path.name for path in reports] == ["check.xml", "compare.xml"]
    assert {ElementTree.parse(path).getroot().get("failures") for path in reports} == {"0"}
