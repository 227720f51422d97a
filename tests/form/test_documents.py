"""Documents that a newcomer reads as a whole are short, and each room says what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "prepbench"
ROOMS = [path.parent for path in sorted(SOURCE.glob("*/__init__.py"))]
RELEASE_LIMIT = 30


@pytest.mark.parametrize(
    ("pattern", "limit"),
    [
        ("ARCHITECTURE.md", 250),
        ("src/prepbench/**/README.md", 30),
        ("extension/README.md", 30),
        ("docs/decisions/*.md", 60),
    ],
)
def test_documents_are_short(pattern: str, limit: int) -> None:
    found = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in ROOT.glob(pattern)}
    assert found
    assert {name: count for name, count in found.items() if count > limit} == {}


def test_releases_are_short() -> None:
    releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert releases
    long = {text.splitlines()[0]: count for text in releases if (count := len(text.splitlines())) > RELEASE_LIMIT}
    assert long == {}


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_each_room_names_where_one_enters(room: Path) -> None:
    """``Entry: `file.py`, `name` `` in its README is a name that the file defines."""
    entries = re.findall(r"^\*\*Entry\*\*: `([\w/]+\.py)`, `(\w+)`", (room / "README.md").read_text(), re.MULTILINE)
    assert entries
    for file, name in entries:
        assert re.search(rf"^(def|class) {name}\b|^{name}\b.*=", (room / file).read_text(), re.MULTILINE), (file, name)


@pytest.mark.parametrize("readme", sorted(SOURCE.rglob("README.md")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_named_by_a_room_exist(readme: Path) -> None:
    names = set(re.findall(r"`([\w/]+\.(?:py|md|ts))`", readme.read_text()))
    places = (readme.parent, readme.parent.parent, SOURCE, ROOT)
    assert [name for name in sorted(names) if not any((place / name).exists() for place in places)] == []
