"""What all commands share: exit status, errors in a paragraph, files, colours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from prepbench.capture.traceability import Check
from prepbench.command_line.main import main
from prepbench.command_line.outcomes import Outcome, Report, write_json, write_junit
from prepbench.document.codec import to_json
from prepbench.document.model import GraphCollectionDocument


@pytest.mark.parametrize("command", ["info", "check", "show", "compare"])
def test_help_needs_no_torch(command: str) -> None:
    program = (
        "import sys, contextlib\nfrom prepbench.command_line.main import main\n"
        f"with contextlib.suppress(SystemExit): main(['{command}', '--help'])\n"
        "print([m for m in ('torch', 'numpy', 'onnx', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Exit status: 0" in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "missing.graph.json"], "missing.graph.json cannot be read: No such file"),
        (["check", "model.py:model"], "there is no file model.py"),
        (["check", "no_such_package.part:model"], "no module 'no_such_package.part'"),
        (["check", "model"], "names no object. Write script.py:name"),
        (["compare", "folder", "--min-sqnr", "20"], "--min-sqnr: give --data"),
        (["compare", "folder", "--max-size-mb", "1"], "no compiled model"),
        (["compare", "a", "a"], "given twice"),
    ],
)
def test_wrong_calls_are_told_in_a_paragraph(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    reports = ["--json", "out.json"] + (["--junit", "out.xml"] if arguments[0] != "show" else [])
    assert main([*arguments, *reports]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert words in " ".join(error.split())
    assert words in json.loads(Path("out.json").read_text())["error"]
    if arguments[0] != "show":
        suites = ElementTree.parse("out.xml").getroot()
        assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("1", "0", "1")
        found = suites.find(".//error")
        assert found is not None
        assert words in str(found.text)


@pytest.mark.parametrize("arguments", [[], ["no such command"], ["check"], ["compare", "a", "--max-ms", "fast"]])
def test_calls_that_cannot_be_read(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_the_traceback_is_there_for_who_asks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", str(tmp_path / "missing"), "--traceback"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_that_was_not_foreseen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("prepbench.command_line.show.read_bounded", broken)
    assert main(["show", "file", "--json", str(tmp_path / "out.json")]) == 2
    assert "ZeroDivisionError: division by zero. This error was unexpected" in capsys.readouterr().err


def test_a_report_that_cannot_be_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["show", "missing", "--json", str(tmp_path / "no" / "folder" / "out.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_colours_only_on_a_terminal() -> None:
    report = Report("check", "hostile \x1b[2J name", (Outcome("a", True), Outcome("b", False, "one\ntwo \x1b]0;x\x07")))
    assert report.text() == "hostile \\x1b[2J name\n\npassed  a\nFAILED  b: one\n        two \\x1b]0;x\\x07"
    assert report.text(in_colour=True).count("\x1b[3") == 2


def test_what_is_written_can_be_read_whatever_it_quotes(tmp_path: Path) -> None:
    report = Report(
        "check", "", (Outcome("a\x00\ud800\ufffe<", False, "]]>&\x1b"),), {"score": float("nan"), "x": [1.0]}
    )
    write_junit(report, tmp_path / "a.xml")
    failure = ElementTree.parse(tmp_path / "a.xml").getroot().find(".//failure")
    assert failure is not None
    assert failure.text == "]]>&\\x1b"
    write_json(report, tmp_path / "a.json")
    read = json.loads((tmp_path / "a.json").read_text())
    assert (read["score"], read["x"], read["passed"]) == ("nan", [1.0], False)


def test_python_dash_m(tmp_path: Path) -> None:
    """Also where the terminal has no glyphs, and where the reader stops early."""
    (tmp_path / "a.graph.json").write_text(to_json(GraphCollectionDocument("Nét", "module", (), ())))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "prepbench", "show", "a.graph.json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=True)
    assert (done.stdout.split()[0], done.stderr) == ("N\\xe9t", "")
    shell = f"{' '.join(command)} | true; exit ${{PIPESTATUS[0]}}"
    stopped = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=tmp_path)
    assert (stopped.returncode, stopped.stderr) == (0, "")


def test_errors_name_options_and_keep_within_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    lines = ("import torch", "model = torch.nn.Linear(4, 2)", "empty, odd = [], [torch.ones(2, 9)]")
    Path("cli_script.py").write_text("\n".join(lines))
    compared = ["compare", "cli_script.py:model", "--data"]
    for arguments, words in (
        ([*compared, "cli_script.py:empty"], "error: --data is empty: "),
        ([*compared, "cli_script.py:odd"], "failed on --data[0] "),
        ([*compared, "cli_script.py:odd", "--rounds", "-1"], "--rounds must be a whole number of at least 0, got -1."),
        (["check", "cli_script.py:model", "--inputs", "cli_script.py:empty"], "error: --inputs is empty: "),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert words in " ".join(error.split())
        assert max(map(len, error.splitlines())) <= 60


def test_warnings_show_no_line_of_prepbench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("warns.py").write_text(
        "import warnings, prepbench as pb\nwarnings.warn('Mind this.', pb.PrepbenchWarning)\nsamples = []\nmodel = 3\n"
    )
    before = warnings.showwarning
    assert main(["check", "warns.py:model"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == "warning: Mind this."
    assert warnings.showwarning is before


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"prepbench {version('prepbench')}\n"


def test_one_reason_is_counted_as_one() -> None:
    why: Any = object()
    failed = [Check("dynamo", passed=False, failures=(why,) * count).state for count in (1, 2)]
    assert failed == ["failed, 1 reason", "failed, 2 reasons"]
