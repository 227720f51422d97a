"""``check``: capturable or not, and what is new since a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prepbench.command_line.main import main

SLOW = ["--time-limit", "300"]  # the machine of a test may be busy


def test_a_model_that_can_be_captured(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{script}:make", "--target", "onnxruntime", "--junit", "out.xml", *SLOW]) == 0
    out = capsys.readouterr().out
    assert "operators of onnxruntime: passed" in out
    assert "passed  can be captured" in out
    assert ElementTree.parse("out.xml").getroot().get("failures") == "0"


def test_only_what_is_new_fails(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "users_model.py:make_branch", "--write-baseline", "base.json", *SLOW]) == 0
    assert "data-dependent branch" in Path("base.json").read_text()
    # other lines move, and the same reason stays known
    text = script.read_text()
    moved = script.with_name("moved_model.py")
    moved.write_text("# one more line\n" * 7 + text)
    assert main(["check", "moved_model.py:branch", "--baseline", "base.json", *SLOW]) == 0
    capsys.readouterr()
    changed = script.with_name("changed_model.py")
    changed.write_text(text.replace("if x.sum() > 0:", "if x.mean() > 0:"))
    assert main(["check", "changed_model.py:branch", "--baseline", "base.json", "--json", "out.json", *SLOW]) == 1
    assert "FAILED  torch.export: 1 new since the baseline" in capsys.readouterr().out
    checks = {one["name"]: one for one in json.loads(Path("out.json").read_text())["checks"]}
    assert "the model itself: data-dependent branch in `if x.mean() > 0:`" in checks["torch.export"]["message"]


def test_a_model_that_stops_being_capturable(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "users_model.py:model", "--write-baseline", "base.json", *SLOW]) == 0
    assert main(["check", "users_model.py:model", "--baseline", "base.json", *SLOW]) == 0
    assert main(["check", "users_model.py:branch", *SLOW]) == 1
    assert "FAILED  can be captured: cannot be traced as a whole" in capsys.readouterr().out
    assert main(["check", "users_model.py:branch", "--baseline", "base.json", *SLOW]) == 1
    assert "1 new since the baseline" in capsys.readouterr().out


def test_a_model_that_raises_is_a_failed_check(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "users_model.py:raises"]) == 1
    assert "no such kernel" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["users_model.py:nothing"], "users_model.py has no 'nothing'. It has: torch, nn, Net"),
        (["users_model.py:number"], "or a function that returns one, was expected, got int"),
        (["users_model.py:needs"], "called without arguments, and it cannot be: missing a required argument: 'size'"),
        (["users_model.py:fails"], "raised ValueError at line 43: no weights here"),
        (["users_model.py:model", "--inputs", "none"], "--inputs: users_model.py has no 'none'"),
        (["users_model.py:model", "--inputs", "number"], "3"),
        (["users_model.py:model", "--target", "abacus"], "--target: there is no 'abacus'. Choose one of onnxruntime"),
        (["users_model.py:model", "--baseline", "users_model.py"], "The baseline is not valid JSON"),
        (["users_model.py:model", "--baseline", "other.json"], "other.json is not a baseline"),
        (["users_model.py:model", "--baseline", "damaged.json"], "damaged.json is damaged"),
        (["broken.py:model"], "raised NameError when it was imported at line 1: name 'missing' is not defined"),
        (["leaves.py:model"], "raised SystemExit when it was imported"),
    ],
)
def test_what_cannot_be_carried_out(
    arguments: list[str], words: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.json").write_text("{}")
    Path("damaged.json").write_text('{"format": "prepbench baseline 1", "ways": {"dynamo": {"failures": [{"a": 1}]}}}')
    Path("broken.py").write_text("missing\n")
    Path("leaves.py").write_text("raise SystemExit(0)\n")
    assert main(["check", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in " ".join(error.split())
    assert "Traceback" not in error
