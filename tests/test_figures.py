"""Figures on pages are what a benchmark printed, with its day, machine and versions."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import results

NAMES = re.findall(r"<!-- results: ([\w-]+) -->", results.PAGE.read_text())


def test_the_page_shows_what_was_kept() -> None:
    assert NAMES
    page = results.PAGE.read_text()
    assert results.rendered(page) == page, "run python -m tests.benchmarks.results --write"


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_result_says_when_and_where(path: Path) -> None:
    head, _, printed = path.read_text().partition("\n\n")
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert list(fields) == ["command", "date", "machine", "versions"]
    assert fields["command"] == f"python -m tests.benchmarks {path.stem}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", fields["date"])
    assert "torch " in fields["versions"]
    assert printed.strip()
    assert (command.FOLDER / f"bench_{path.stem}.py").exists()


def test_a_run_is_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: tiny -->\nold\n<!-- end of results -->\nafter\n")
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(results, "PAGE", page)
    results.kept("tiny", "\nratio 0.5\n")
    monkeypatch.setattr(sys, "argv", ["results", "--check"])
    assert results.main() == 1
    monkeypatch.setattr(sys, "argv", ["results", "--write"])
    assert results.main() == 0
    assert "old" not in page.read_text()
    assert "command: python -m tests.benchmarks tiny\n" in page.read_text()
    assert page.read_text().endswith("ratio 0.5\n```\n<!-- end of results -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["results", "--check"])
    assert results.main() == 0


def test_only_what_succeeds_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(command, "kept", lambda name, printed: found.setdefault(name, printed))
    start, programs = subprocess.Popen, {"fine": "print('1.0x')", "fails": "print('2.0x'); raise SystemExit(1)"}

    def instead(arguments: list[str], **options: object) -> subprocess.Popen[str]:
        return start([sys.executable, "-c", programs[arguments[-1].rpartition("bench_")[2]]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", instead)
    assert command.run("fine")
    assert not command.run("fails")
    assert found == {"fine": "1.0x\n"}
    assert "2.0x" in capsys.readouterr().out


def test_a_name_that_is_no_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nothing"])
    assert command.main() == 2
    assert "There is no benchmark nothing. Choose among" in capsys.readouterr().err
