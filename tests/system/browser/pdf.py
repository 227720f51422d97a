"""PDF files of a notebook, and what they show: read from the places and sizes of their words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Playwright

WEB, LATEX = "`--to webpdf`", "`--to pdf` (LaTeX)"
TOOLS = {WEB: ("chromium", "pdftotext"), LATEX: ("xelatex", "pandoc", "inkscape", "pdftotext")}
PIXEL = 0.75
"""Points."""

_WORD = re.compile(r'<word xMin="([\d.]+)" yMin="([\d.]+)" xMax="([\d.]+)" yMax="([\d.]+)">(.*?)</word>')


@dataclass(frozen=True)
class Word:
    """A word of a PDF and its box in points; ``y`` goes on from page to page."""

    text: str
    x: float
    y: float
    right: float
    bottom: float


def missing(place: str) -> list[str]:
    """The programs that a PDF needs and that are not installed."""
    return [tool for tool in TOOLS[place] if shutil.which(tool) is None]


def made(place: str, notebook: Path, playwright: Playwright) -> Path:
    """Convert an executed notebook."""
    options = ["--to", "webpdf", "--disable-chromium-sandbox"] if place == WEB else ["--to", "pdf"]
    command = [sys.executable, "-m", "nbconvert", *options, notebook.name]
    environment = {**os.environ, **(_browsers(notebook.parent, playwright) if place == WEB else {})}
    done = subprocess.run(
        command, cwd=notebook.parent, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return notebook.with_suffix(".pdf")


def _browsers(folder: Path, playwright: Playwright) -> dict[str, str]:
    """A folder as Playwright downloads it, with the system's Chromium in it: nbconvert takes no other path."""
    revision = next(part for part in Path(playwright.chromium.executable_path).parts if part.startswith("chromium-"))
    name = "chrome-headless-shell"
    program = folder / "browsers" / revision.replace("chromium-", "chromium_headless_shell-") / f"{name}-linux64" / name
    program.parent.mkdir(parents=True)
    program.symlink_to(str(shutil.which("chromium")))
    return {"PLAYWRIGHT_BROWSERS_PATH": str(folder / "browsers")}


def words(path: Path) -> list[Word]:
    """All words of a PDF from top to bottom."""
    done = subprocess.run(["pdftotext", "-bbox", path, "-"], capture_output=True, text=True, timeout=60, check=True)
    found = []
    for number, page in enumerate(done.stdout.split("<page ")[1:]):
        for x, y, right, bottom, text in _WORD.findall(page):
            top = 10_000.0 * number
            found.append(Word(text, float(x), top + float(y), float(right), top + float(bottom)))
    return sorted(found, key=lambda word: (word.y, word.x))


def seen(path: Path, displays: Sequence[str]) -> dict[str, str]:
    """What a PDF shows of each display; the first cell makes the model and shows nothing."""
    all_words = words(path)
    return {name: _look(_output(all_words, number)) for number, name in enumerate(displays, 2)}


def _output(all_words: list[Word], number: int) -> list[Word]:
    """The words between the prompt of an output, which is its cell's last, and the next cell's."""
    start = max(word.y for word in all_words if word.text.endswith(f"[{number}]:"))
    end = min((word.y for word in all_words if word.text.endswith(f"[{number + 1}]:")), default=float("inf"))
    inside = [word for word in all_words if start - 3 <= word.y < end - 3]
    return [word for word in inside if not word.text.endswith("]:")]


def _look(found: list[Word]) -> str:
    text = " ".join(word.text for word in found)
    if re.search(r"Error displaying|&lt;/?[a-z]+\b|\{[a-z-]+:", text):
        return "markup"
    if not found:
        return "nothing"
    if min(word.bottom - word.y for word in found) < 9 * PIXEL:
        return "small text"
    # boxes stand side by side in a picture, and below each other in a tree of text
    sides = [word for word in found if word.text.startswith("ways.")]
    pairs = [(a, b) for a in sides for b in sides if a.text < b.text and abs(a.y - b.y) < 2]
    if not pairs:
        return "text"
    a, b = pairs[0]
    boxes = [word for word in found if abs(word.y - a.y) < 300 and word.x < 1.5 * b.right]
    return "picture" if max(w.right for w in boxes) - min(w.x for w in boxes) >= 150 * PIXEL else "small picture"


def is_black(path: Path) -> bool:
    """Whether a page has much black: the ground of a picture whose colours a program did not know."""
    done: Any = subprocess.run(["pdftoppm", "-gray", "-r", "30", path], capture_output=True, timeout=60, check=True)
    pages = re.split(rb"P5\n\d+ \d+\n255\n", done.stdout)[1:]
    assert pages
    return any(sum(value < 40 for value in page) > len(page) / 50 for page in pages)
