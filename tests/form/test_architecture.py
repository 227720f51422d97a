"""The architecture page is true: what it tells a newcomer to open is there, and its words are used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


STARTS = rows("Where to start")


@pytest.mark.parametrize(("change", "file", "name"), STARTS, ids=[row[0] for row in STARTS])
def test_a_change_starts_where_the_page_says(change: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    defined = rf"^\s*(export )?(def|class|function|const) {name}\b|^_?{name}\b.*="
    assert re.search(defined, text, re.MULTILINE), f"{file} does not define {name}"


def test_every_package_is_on_the_page() -> None:
    source = ROOT / "src" / "prepbench"
    packages = [path.parent.name for path in source.glob("*/__init__.py")]
    modules = [path.stem for path in source.glob("[a-z]*.py")]
    table = "\n".join(cell for row in rows("Layers") for cell in row)
    assert [name for name in (*packages, *modules) if name not in table] == []


def test_commands_of_the_page_exist() -> None:
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    named = {command.split()[0] for command in re.findall(r"`make ([^`]+)`", PAGE)}
    assert named <= targets


def test_files_named_in_the_text_exist() -> None:
    """Paths in backticks with a slash or an extension lie somewhere in the tree."""
    names = {name for name in re.findall(r"`([\w/.-]+)`", PAGE) if "/" in name or name.endswith((".py", ".ts"))}
    scripts = ROOT / "extension" / "src"
    places = [
        ROOT,
        scripts,
        *scripts.rglob("*/"),
        *(ROOT / "src" / "prepbench").rglob("*/"),
        ROOT / "src" / "prepbench",
    ]
    missing = [
        name
        for name in sorted(names)
        if not any((place / f"{name}{end}").exists() for place in places for end in ("", ".py"))
    ]
    assert missing == []
