"""Files and functions stay short, and prose wraps."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks.results import PLACE

ROOT = Path(__file__).parents[2]
FILE_LIMIT = 1000
FUNCTION_LIMIT, FUNCTION_SHARE = 40, 0.9
WIDTH = 120


def tracked(*patterns: str) -> list[Path]:
    """The project's files of these kinds; without a checkout, all of them."""
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]
    return [path for pattern in patterns for path in ROOT.rglob(pattern) if "node_modules" not in path.parts]


def lengths(files: list[Path]) -> dict[str, int]:
    return {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}


def sources() -> list[Path]:
    return [file for file in tracked("*.py") if (ROOT / "src") in file.parents]


@pytest.mark.parametrize("pattern", ["*.py", "*.ts"])
def test_files_are_short(pattern: str) -> None:
    files = [file for file in tracked(pattern) if "generated" not in file.parts]
    assert files
    assert {name: count for name, count in lengths(files).items() if count > FILE_LIMIT} == {}


def test_most_functions_are_short() -> None:
    found = [
        node.end_lineno - node.lineno + 1
        for file in sources()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    assert sum(length <= FUNCTION_LIMIT for length in found) / len(found) >= FUNCTION_SHARE


@pytest.mark.parametrize("file", tracked("*.md"), ids=lambda file: str(file.relative_to(ROOT)))
def test_prose_wraps(file: Path) -> None:
    # what a benchmark printed stands as it is, in as many lines
    prose = PLACE.sub(lambda found: "\n" * found[0].count("\n"), file.read_text())
    wide = [
        number
        for number, line in enumerate(prose.splitlines(), 1)
        # tables, links and addresses cannot be wrapped
        if len(line) > WIDTH and not line.lstrip().startswith(("|", "![", "<img", "[")) and " " in line[:WIDTH]
    ]
    assert wide == []
