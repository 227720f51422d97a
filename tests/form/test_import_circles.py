"""No file imports itself through others; imports in functions and for type checkers count, too."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "prepbench"


def imported_files(name: str, files: dict[str, Path]) -> set[str]:
    """The files of the package that one file imports, by module name."""
    wanted: set[str] = set()
    for node in ast.walk(ast.parse(files[name].read_text())):
        if isinstance(node, ast.Import):
            wanted |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            wanted |= {module if module in files else node.module for module in inside}
    return {module for module in wanted if module in files and module != name}


def test_no_circles() -> None:
    files = {
        ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES.rglob("*.py")
    }
    assert "prepbench.compile.pipeline" in files
    try:
        TopologicalSorter({name: imported_files(name, files) for name in files}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
