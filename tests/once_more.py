"""Runs pytest; the few tests that fail run once more, alone, and what fails twice fails.

A test in a real browser, or one that measures time, can fail because the tests beside it took the machine. Alone it
has no such excuse. Both runs are printed whole, so that a test that needs its second run is seen.

    python -m tests.once_more tests/system/browser -- -m "browser and not stress"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# more than this is no accident of a busy machine
MOST = 10
TESTS_FAILED = 1
KEPT = "TESTS_ONCE_MORE_KEPT"


def run(places: list[str], options: list[str]) -> int:
    """Runs pytest in two processes, and what failed once more in one.

    Args:
        places: Files and folders to collect.
        options: What else pytest is called with.

    Returns:
        The exit status: 0 where every test passed in the first or the second run.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "failed.json")
        status = pytest([*places, *options, "--numprocesses", "2", "--dist", "loadfile"], kept)
        failed = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
    # notebooks whole, because a cell needs the cells before it; two kernels that start at once may choose one port, and
    # then all cells of a notebook fail
    again = sorted({name.split("::")[0] if ".ipynb" in name else name for name in failed})
    if status != TESTS_FAILED or not 0 < len(again) <= MOST:
        return status
    lines = [f"===== {len(failed)} failed and run once more, alone: what fails again fails", *failed]
    sys.stdout.write("\n" + "\n".join(lines) + "\n")
    sys.stdout.flush()
    return pytest([*again, *options])


def pytest(arguments: list[str], kept: Path | None = None) -> int:
    environment = {**os.environ, **({KEPT: str(kept)} if kept else {})}
    command = [sys.executable, "-m", "pytest", "-p", "tests.once_more", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Keeps the names of what failed, as a plugin of the first run."""
    if KEPT in os.environ:
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        Path(os.environ[KEPT]).write_text(json.dumps(sorted({report.nodeid for report in reports})), encoding="utf-8")


if __name__ == "__main__":
    between = sys.argv.index("--")
    sys.exit(run(sys.argv[1:between], sys.argv[between + 1 :]))
