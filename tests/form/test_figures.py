"""Figures on pages are what a benchmark printed, with its day, machine and versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import results

BENCHMARKS = results.FOLDER.parent
_MEASURED = re.compile(r"\d(?:\.\d+)? ?(?:×|%|dB\b|ms\b|MB\b|GB\b|tokens per)|\d\.\d+ times|\|[^|\n]*\d\.\d+[^|\n]*\|")
GIVEN = ("floor of 20 dB", "within 20 dB", "fall below 20 dB")
"""What is asked for, and was not measured."""


def test_pages_show_what_was_kept() -> None:
    found = results.pages()
    assert results.ROOT / "docs" / "figures.md" in found
    for page in found:
        text = page.read_text()
        assert results.rendered(text) == text, f"{page.name}: run python -m tests.benchmarks.results --write"


def typed_by_hand(text: str) -> list[str]:
    """Lines outside of results and code that hold a figure."""
    text = re.sub(r"^```.*?^```", "", results.PLACE.sub("", text), flags=re.DOTALL | re.MULTILINE)
    for given in GIVEN:
        text = text.replace(given, "")
    return [line for line in text.splitlines() if _MEASURED.search(line)]


def test_no_figure_is_typed_by_hand() -> None:
    page = (results.ROOT / "docs" / "figures.md").read_text()
    assert typed_by_hand(page) == []
    assert typed_by_hand("A token took 1.45× the time, 4.12 ms.\n| ResNet | 1.01 |\n") != []


def test_each_place_names_a_benchmark_of_the_text_before_it() -> None:
    page = (results.ROOT / "docs" / "figures.md").read_text()
    places = list(results.PLACE.finditer(page))
    assert places
    for place in places:
        name = re.match(r"[a-z_]+", place["name"])
        assert name is not None
        assert (BENCHMARKS / f"bench_{name[0]}.py").exists(), place["name"]


def test_each_result_is_shown() -> None:
    shown = {place["name"] for page in results.pages() for place in results.PLACE.finditer(page.read_text())}
    assert {path.stem for path in results.FOLDER.glob("*.txt")} <= shown


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_result_says_when_and_where(path: Path) -> None:
    head, _, printed = path.read_text().partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert list(fields)[:4] == ["command", "date", "machine", "versions"]
    name, _, arguments = fields["command"].removeprefix("python -m tests.benchmarks ").partition(" -- ")
    assert path.name == results.file_name(name, arguments.split())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", fields["date"])
    assert "torch " in fields["versions"]
    assert printed.strip()
    assert (BENCHMARKS / f"bench_{name}.py").exists()
