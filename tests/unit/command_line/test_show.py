"""``show``: the text of the diagram, a page, and hostile files that are only read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.command_line.main import main
from prepbench.views.page import page as html_of


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, pb.GraphCollection]:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(30)])
    collection = pb.recursive_trace(model, inputs=torch.ones(2, 4))
    return collection.save(tmp_path / "net.graph.json"), collection


def test_the_tree_and_the_page(
    saved: tuple[Path, pb.GraphCollection], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, collection = saved
    page = tmp_path / "net.html"
    assert main(["show", str(path), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{collection.to_text()}\n"
    assert page.read_text() == html_of(collection.document())
    assert main(["show", str(path), "--all"]) == 0
    assert capsys.readouterr().out.count("Linear") == 30


def test_names_in_a_file_cannot_steer_the_terminal(
    saved: tuple[Path, pb.GraphCollection], capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = saved
    path.write_text(path.read_text().replace('"Sequential"', '"Seq\\u001b[2J"'))
    assert main(["show", str(path)]) in (0, 2)
    assert "\x1b" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("damage", ["circle", "nested", "bench", "list", "python", "version", "fifo", "folder"])
def test_hostile_files_are_refused(
    damage: str, saved: tuple[Path, pb.GraphCollection], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, _ = saved
    data = json.loads(path.read_text())
    if damage == "circle":
        data["groups"][1]["parent"] = data["groups"][1]["id"]
    if damage == "version":
        data["version"] = "99.0"
    texts = {"nested": "[" * 100_000, "bench": '{"choices": 1}', "list": "[]", "python": "import torch"}
    path.write_text(texts.get(damage, json.dumps(data)))
    if damage in ("fifo", "folder"):
        path = tmp_path / damage
        os.mkfifo(path) if damage == "fifo" else path.mkdir()
    assert main(["show", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert damage not in ("nested", "list", "python") or str(path) in error
