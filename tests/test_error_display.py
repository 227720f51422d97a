"""Errors in a real kernel are cards, in a terminal a few lines; other programs' errors look as they always do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import prepbench as pb
from docs.tools.errors import classes, installed_page
from prepbench.error_display import PAGE, ErrorCard, sections_of, split_message

CELLS = """
import torch
import prepbench as pb
model = torch.nn.Linear(4, 2)
---
def run():
    return pb.capture(model, [torch.ones(2, 5)])

run()
---
1 / 0
---
pb.QuantizationSettings(weights_num_bits=5)
---
import torch._dynamo
class Branch(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
pb.capture(Branch(), torch.ones(2))
"""


@pytest.fixture(scope="module")
def outputs() -> list[Any]:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source.strip()) for source in CELLS.split("---")]
    )
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def visible(page: str) -> str:
    """The text of a card while everything is folded."""
    folded = re.sub(r"<details.*?<summary[^>]*>(.*?)</summary>.*?</details>", r"\n\1\n", page, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", "\n", folded)


def test_card_in_a_kernel(outputs: list[Any]) -> None:
    card, error = outputs[1]
    assert card.output_type == "display_data"
    text, page = card.data["text/plain"], card.data["text/html"]
    assert len(text.splitlines()) <= 15
    assert text.startswith("CaptureError: Linear itself raises on inputs[0]")
    assert "at Cell In[2], line 2, in run" in text
    assert "return pb.capture(model, [torch.ones(2, 5)])" in text
    assert "Check that model(*inputs) runs on its own." in visible(page), "the remedy is seen at once"
    assert len([line for line in visible(page).splitlines() if line.strip()]) <= 15
    assert page.count("<details") == 2, "the documentation and the traceback are folded"
    assert "A model that could not be captured as one graph." in page, "the documentation opens in place"
    assert "<script" not in page
    assert error.output_type == "error"
    assert error.ename == "CaptureError"
    assert len(error.traceback) <= 15, "what a program prints into its log"
    assert error.traceback[0].startswith("CaptureError: ")
    assert "Check that model(*inputs) runs on its own." in " ".join(error.traceback)


def test_a_notebook_passes_strict_nbval(outputs: list[Any], tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.split("---")]
    for cell, made in zip(cells, outputs, strict=True):
        cell.outputs = made
        cell.execution_count = cells.index(cell) + 1
        cell.metadata["tags"] = ["raises-exception"] if any(one.output_type == "error" for one in made) else []
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "errors.ipynb")
    line = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", str(tmp_path / "errors.ipynb")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_other_errors_are_untouched(outputs: list[Any]) -> None:
    [error] = outputs[2]
    assert error.ename == "ZeroDivisionError"
    assert len(error.traceback) > 2


def test_cards_are_the_same_in_each_kernel(outputs: list[Any]) -> None:
    for cell in outputs[1:2] + outputs[3:]:
        text = str(cell[0].data)
        assert not re.search(r"ipykernel_\d+|0x[0-9a-f]{6,}|/tmp/|site-packages", text), text


def test_a_list_of_failures_is_short_and_explained(outputs: list[Any]) -> None:
    card = outputs[4][0]
    assert len(card.data["text/plain"].splitlines()) <= 15
    assert "Documentation" in card.data["text/html"]


SCRIPT = """
import torch
import prepbench as pb
if __name__ == "__main__":
    {line}
"""


def run(tmp_path: Path, line: str, **environment: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(line=line))
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    return done.stderr


def test_terminal(tmp_path: Path) -> None:
    line = "pb.capture(torch.nn.Linear(4, 2), [torch.ones(2, 5)])"
    short = run(tmp_path, line)
    assert len(short.splitlines()) <= 20
    assert "Traceback" not in short
    assert f"at {tmp_path}/script.py, line 5" in short
    assert line in short
    assert PAGE.as_uri() + "#captureerror" in short
    assert "PREPBENCH_TRACEBACK=full" in short
    full = run(tmp_path, line, PREPBENCH_TRACEBACK="full")
    assert full.startswith("Traceback (most recent call last)") or "\nTraceback (most recent call last)" in full
    assert "prepbench/capture" in full
    other = run(tmp_path, "torch.ones(2).frobnicate()")
    assert other.startswith("Traceback (most recent call last)")


def test_text_is_escaped_and_bounded() -> None:
    try:
        raise pb.PrepbenchError("<b>bold</b> \x1b[31m" + "word " * 3000 + "\n" + "line\n" * 100)
    except pb.PrepbenchError as error:
        card = ErrorCard.of(error)
    assert "<b>" not in card.page()
    assert "\x1b" not in card.page() + card.text()
    assert len(card.text().splitlines()) <= 15
    assert "All that was said" in card.page()


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("x is 3 in data[0]. Give 2.", "x is 3 in data[0]."),
        ("Use e.g. torch. Then go on", "Use e.g. torch."),
        ("one line", "one line"),
        ("first line\nsecond line", "first line"),
    ],
)
def test_first_sentence(message: str, what: str) -> None:
    assert split_message(message)[0] == what


def test_page_in_the_package_is_fresh_and_has_every_error() -> None:
    page = PAGE.read_text()
    assert page == installed_page(), "python -m docs.tools.errors --write"
    for kind in classes():
        assert list(sections_of((kind.__name__.lower(),))), kind.__name__
