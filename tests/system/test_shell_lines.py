"""Shell lines of README, CONTRIBUTING and the guides run, or are checked against what they name.

- ``make X``: the target exists and ``make -n`` knows how to build it, because most take minutes or open a browser.
- ``pip install``: a path is this project, and extras are its own, because installing needs a network.
- the steps of the example for continuous integration are run by ``tests/system/command_line/test_workflow.py``.
- everything else runs, in a copy of the example for continuous integration, which has a model and a saved graph.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import prepbench as pb

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
EXAMPLE = ROOT / "docs" / "examples" / "continuous_integration"
STEPS = {
    step["run"]
    for step in yaml.safe_load((EXAMPLE / "models.yml").read_text())["jobs"]["models"]["steps"]
    if "run" in step
}
_BLOCK = re.compile(r"^```(?:console|shell|bash|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def shell_lines(text: str) -> list[str]:
    """The lines of shell blocks, without prompts; lines that go on after a backslash are one."""
    lines = [line for block in _BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    return [line.strip().removeprefix("$ ") for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _runs(line: str) -> bool:
    return not re.match(r"make |(python -m )?pip install\b", line) and line not in STEPS


LINES = sorted({line for page in PAGES for line in shell_lines(page.read_text())})
MAKE = [line for line in LINES if line.startswith("make ")]
PIP = [line for line in LINES if re.match(r"(python -m )?pip install\b", line)]
PAGES_THAT_RUN = [page for page in PAGES if any(map(_runs, shell_lines(page.read_text())))]


def test_the_readme_has_such_lines() -> None:
    assert "make demo" in " ".join(MAKE)
    assert PIP


@pytest.mark.parametrize("line", MAKE)
def test_make_knows_the_target(line: str) -> None:
    command = shlex.split(line, comments=True)
    done = subprocess.run([command[0], "-n", *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_does_not_know_others() -> None:
    assert subprocess.run(["make", "-n", "no-such-target"], cwd=ROOT, capture_output=True).returncode != 0


@pytest.mark.parametrize(
    "target", sorted({name for page in PAGES for name in re.findall(r"`make ([\w-]+)", page.read_text())})
)
def test_targets_in_the_text_exist(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("line", PIP)
def test_what_pip_installs_is_this_project(line: str) -> None:
    wanted = [word for word in shlex.split(line, comments=True)[2:] if not word.startswith("-") and word != "install"]
    own = []
    for word in wanted:
        found = re.fullmatch(r"(\.|[\w.-]+?)(?:\[([\w,]+)\])?", word)
        assert found is not None, word
        if found[1] in (".", PROJECT["name"]):
            own.append(word)
            assert set((found[2] or "").split(",")) - {""} <= set(PROJECT["optional-dependencies"]), word
        else:
            needed = [
                *PROJECT["dependencies"],
                *(one for group in PROJECT["optional-dependencies"].values() for one in group),
            ]
            assert any(re.match(rf"{re.escape(found[1])}\b", one) for one in needed), f"{word} is none of our packages"
    assert wanted


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with the files that the pages name."""
    folder = Path(shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("user") / "project"))
    environment = {**os.environ, "PYTHONPATH": str(Path(pb.__file__).parents[1])}
    script = (
        "import model, prepbench as pb\n"
        "pb.recursive_trace(model.model(), inputs=model.samples()).save('model.graph.json')\n"
        "for name in ('float', 'int8'):\n"
        "    quantized = {'quantization_settings': pb.QuantizationSettings()} if name == 'int8' else {}\n"
        "    pb.compile_model(model.model(), calibration_inputs=model.batches(),\n"
        "        deployment_settings=pb.OnnxRuntimeDeployment(), **quantized).save(name)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.parametrize("guide", PAGES_THAT_RUN, ids=lambda guide: guide.name)
def test_lines_run(guide: Path, project: Path, tmp_path: Path) -> None:
    """In their order: what one line writes another one may read."""
    folder = shutil.copytree(project, tmp_path / "project")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in filter(_runs, shell_lines(guide.read_text())):
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", line]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
