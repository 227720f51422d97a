"""What fails runs once more, alone, and what fails twice fails the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import once_more

ROOT = Path(__file__).parents[2]
# fails as often as the file beside it says
COUNTED = """
from pathlib import Path

def test_that_fails_{times}_times():
    count = Path(__file__).with_suffix(".count")
    before = int(count.read_text()) if count.exists() else 0
    count.write_text(str(before + 1))
    assert before >= {times}
"""


def run(folder: Path, *, times: int, tests: int = 1) -> subprocess.CompletedProcess[str]:
    for number in range(tests):
        (folder / f"test_{number}.py").write_text(COUNTED.format(times=times))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    command = [sys.executable, "-m", "tests.once_more", str(folder), "--", "-q"]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, text=True, capture_output=True
    )


@pytest.mark.parametrize(("times", "passes"), [pytest.param(0, True, marks=pytest.mark.stress), (1, True), (2, False)])
def test_what_fails_twice_fails(tmp_path: Path, times: int, passes: bool) -> None:
    ended = run(tmp_path, times=times)
    assert (ended.returncode == 0) == passes, ended.stdout + ended.stderr
    assert ("once more" in ended.stdout) == (times > 0)


@pytest.mark.stress
def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    ended = run(tmp_path, times=1, tests=11)
    assert ended.returncode == 1, ended.stderr
    assert "11 failed" in ended.stdout
    assert "once more" not in ended.stdout


def test_the_cells_of_one_notebook_are_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def pretended(arguments: list[str], kept: Path | None = None) -> int:
        asked.append(arguments)
        if kept is None:
            return 0
        kept.write_text(json.dumps([f"notebooks/one.ipynb::Cell {number}" for number in range(21)]))
        return once_more.TESTS_FAILED

    monkeypatch.setattr(once_more, "pytest", pretended)
    assert once_more.run(["notebooks"], ["--nbval"]) == 0
    assert asked[1] == ["notebooks/one.ipynb", "--nbval"]
