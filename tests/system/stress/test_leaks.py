"""Compiles in one process leave nothing behind: no memory, files, threads, operators or descriptors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.stress.leaks import TARGETS

ROOT = Path(__file__).parents[3]
COUNTS = ("files", "descriptors", "threads", "operators")


def _rows(target: str, count: int, step: int, place: Path) -> list[dict[str, int]]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.system.stress.leaks", target, str(count), str(step)]
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told = ", ".join(f"{row['memory'] / 2**20:.0f} MB" for row in rows)
    sys.__stdout__.write(f"\n{target}, after each {step} compiles: {told}; at the end {rows[-1]}\n")
    return rows


def _check_counts(rows: list[dict[str, int]]) -> None:
    for name in COUNTS:
        assert rows[-1][name] <= rows[0][name], f"{name}: {[row[name] for row in rows]}"


def test_some_compiles_leave_nothing(tmp_path: Path) -> None:
    rows = _rows("onnxruntime", 9, 3, tmp_path)
    _check_counts(rows)
    assert rows[-1]["files"] == 0
    assert rows[-1]["memory"] < 1.03 * rows[1]["memory"]


@pytest.mark.stress
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("target", TARGETS)
def test_a_hundred_compiles_leave_nothing(target: str, tmp_path: Path) -> None:
    rows = _rows(target, 100, 10, tmp_path)
    _check_counts(rows)
    assert rows[-1]["files"] == 0
    growth = (rows[-1]["memory"] / rows[0]["memory"]) ** (1 / (len(rows) - 1)) - 1
    assert growth < 0.01, f"memory grows by {growth:.2%} for ten compiles"
