"""Links of the pages lead somewhere, and the README lists the notebooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md"), *ROOT.glob("*/README.md")]
MADE = ("tutorials/", "reference/", "gallery/", "errors.rst", "glossary.rst", "changelog.md", "images/")
"""What the build of the site adds to the pages; ``tests/system/browser/test_site.py`` checks links to it."""


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    text = file.read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    files = [one or two for one, two in targets if not (one or two).startswith(("http://", "https://"))]
    made = [(file.parent / name).resolve().relative_to(ROOT).as_posix().removeprefix("docs/") for name in files]
    missing = [
        name
        for name, path in zip(files, made, strict=True)
        if not (file.parent / name).exists() and not (file.is_relative_to(ROOT / "docs") and path.startswith(MADE))
    ]
    assert missing == []


def test_every_notebook_has_its_question_in_the_readme() -> None:
    listed = re.findall(r"^\| `([\w.]+\.ipynb)` \| .*\? \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert listed == sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
