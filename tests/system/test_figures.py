"""What a benchmark prints is kept and shown, and the demo prints what the quickstart shows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks import bench_quickstart, results


def test_a_run_is_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results: tiny-fast-3 -->\nold\n<!-- end of results -->\nafter\n")
    (tmp_path / "other.md").write_text("no place\n")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.pages() == [page]
    assert "Not measured in this revision" in results.rendered(page.read_text())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    results.kept("tiny", "\nratio 0.5  \n", ["--fast", "3"], missed=True, load=0.25)
    monkeypatch.setattr(sys, "argv", ["results", "--check"])
    assert results.main() == 1
    monkeypatch.setattr(sys, "argv", ["results", "--write"])
    assert results.main() == 0
    assert "old" not in page.read_text()
    assert "command: python -m tests.benchmarks tiny -- --fast 3\n" in page.read_text()
    assert (
        "load before: 0.2 processes\nthreads: OMP_NUM_THREADS=1\nlimits: one or more are missed\n\n" in page.read_text()
    )
    assert page.read_text().endswith("ratio 0.5\n```\n<!-- end of results -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["results", "--check"])
    assert results.main() == 0


def test_what_runs_to_its_end_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found: dict[str, tuple[str, bool]] = {}

    def keep(name: str, printed: str, arguments: Sequence[str], *, missed: bool, load: float) -> str:
        found[" ".join([name, *arguments])] = printed, missed
        return name

    monkeypatch.setattr(command, "kept", keep)
    start = subprocess.Popen
    programs = {
        "fine": "import sys; print('1.0x', *sys.argv[1:])",
        "slow": "print('1.5x'); raise SystemExit(1)",
        "fails": "print('2.0x'); raise ValueError('no')",
        "ends": "print('3.0x'); raise SystemExit(2)",
        "empty": "print()",
    }

    def instead(arguments: list[str], **options: object) -> subprocess.Popen[str]:
        program = programs[arguments[3].rpartition("bench_")[2]]
        return start([sys.executable, "-c", program, *arguments[4:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", instead)
    assert command.run("fine", ["--rows", "2"])
    assert not any(command.run(name) for name in ("slow", "fails", "ends", "empty"))
    assert found == {"fine --rows 2": ("1.0x --rows 2\n", False), "slow": ("1.5x\n", True)}
    printed = capsys.readouterr()
    assert "2.0x" in printed.out
    assert "ValueError: no" in printed.err


def test_arguments_are_those_of_one_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(command, "run", lambda name, arguments: ran.append((name, arguments)) or True)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "bench_generation", "--", "--bits", "4"])
    assert command.main() == 0
    assert ran == [("generation", ["--bits", "4"])]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "generation", "import", "--", "--bits", "4"])
    assert command.main() == 2
    assert "name it before --" in capsys.readouterr().err


def test_the_demo_prints_the_comparison_and_no_empty_bar() -> None:
    specification = importlib.util.spec_from_file_location("demo", bench_quickstart.DEMO)
    assert specification is not None
    assert specification.loader is not None
    demo = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(demo)
    bar = nbformat.v4.new_output("display_data", {"text/plain": ""})
    table = nbformat.v4.new_output("execute_result", {"text/plain": "candidate  accuracy"})
    cell = nbformat.v4.new_code_cell("comparison = pb.compare({})\ncomparison", outputs=[bar, table])
    assert demo._comparison(nbformat.v4.new_notebook(cells=[cell])) == "candidate  accuracy"


def test_the_table_of_the_quickstart_is_what_the_demo_prints() -> None:
    printed = "Running notebooks/01_quickstart.ipynb ...\ncandidate  accuracy\nfloat32  0.97\n\nDone in 50 s. Open x.\n"
    assert bench_quickstart.table(printed) == "candidate  accuracy\nfloat32  0.97"


def test_a_name_that_is_no_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nothing"])
    assert command.main() == 2
    assert "There is no benchmark nothing. Choose among" in capsys.readouterr().err
