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
from nbclient.exceptions import CellExecutionError

import prepbench as pb
from prepbench.error_display import PAGE, ErrorCard, split_message

CELLS = {
    "model": """
import torch
import prepbench as pb

class Wide(torch.nn.Module):
    def forward(self, x):
        wide = x * 2
        return wide @ torch.ones(3, 3)

class Branch(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def run():
    return pb.capture(Wide(), [torch.ones(2, 5)])
""",
    "capture": "run()",
    "%tb": "%tb",
    "once more": """
try:
    run()
except pb.PrepbenchError as caught:
    kept = caught
raise kept
""",
    "user": "1 / 0",
    "settings": "pb.QuantizationSettings(weights_num_bits=5)",
    "failures": "pb.capture(Branch(), torch.ones(2))",
    "compile": "pb.compile_model(Branch(), tracing_inputs=[torch.ones(2)])",
    "bench": "pb.Bench(torch.nn.Linear(4, 2), tracing_inputs=[torch.ones(2, 4)]).set_target('none such')",
    "chained": """
try:
    run()
except pb.PrepbenchError as caught:
    raise LookupError("of the user") from caught
""",
    "group": "raise ExceptionGroup('several', [pb.PrepbenchError('one'), ValueError('two')])",
    "thread": """
import threading
thread = threading.Thread(target=run)
thread.start()
thread.join()
""",
    "verbose": """
get_ipython().run_line_magic("xmode", "Verbose")
run()
""",
}
REPAIRS = """
def asked(cell=None):
    try:
        return type(pb.Bench.of_error(cell).model).__name__
    except pb.PrepbenchError as error:
        return str(error)

print(asked({cell}), asked(), asked(99), sep="\\n")
"""
CARDS = ("capture", "once more", "settings", "failures", "compile", "bench")


@pytest.fixture(scope="module")
def outputs() -> dict[str, Any]:
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return dict(zip(CELLS, [cell.outputs for cell in notebook.cells], strict=True))


def visible(page: str) -> str:
    """The text of a card while everything is folded."""
    page = re.sub(r'<(\w+) hidden="".*?</\1>', "", page, flags=re.DOTALL)
    folded = re.sub(r"<details.*?<summary[^>]*>(.*?)</summary>.*?</details>", r"\n\1\n", page, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", "\n", folded)


@pytest.mark.parametrize("name", CARDS)
def test_card_in_a_kernel(outputs: dict[str, Any], name: str) -> None:
    card, error = outputs[name]
    assert card.output_type == "display_data"
    text, page = card.data["text/plain"], card.data["text/html"]
    assert len(text.splitlines()) <= 15
    assert len([line for line in visible(page).splitlines() if line.strip()]) <= 15
    assert text.startswith(f"{error.ename}: ")
    assert "in this cell, line 1" in text or name in ("capture", "once more")
    assert page.count("<details") == 2, "the documentation and the traceback are folded"
    assert "<h4>" in page, "the documentation opens in place"
    assert "<script" not in page
    # the same for each kernel and machine
    assert not re.search(r"ipykernel_\d+|0x[0-9a-f]{6,}|/tmp/|/home/|/work/|site-packages|In\[", str(card.data)), text
    # it stays an error for whoever runs the notebook
    assert error.output_type == "error"
    assert len(error.traceback) <= 15, "what a program prints into its log"
    assert error.traceback[0].startswith(f"{error.ename}: ")


def test_what_a_card_says(outputs: dict[str, Any]) -> None:
    card, _ = outputs["capture"]
    text = card.data["text/plain"].splitlines()
    assert text[0].startswith("CaptureError: Wide itself raises on inputs[0]")
    assert "Check that model(*inputs) runs on its own." in visible(card.data["text/html"]), "the remedy is seen at once"
    assert text[-4:] == [
        "  in another cell, line 14 (run)",
        "      return pb.capture(Wide(), [torch.ones(2, 5)])",
        "  raised in another cell, line 7 (forward)",
        "      return wide @ torch.ones(3, 3)",
    ]
    assert "A model that could not be captured as one graph." in card.data["text/html"]
    assert outputs["settings"][0].data["text/plain"].endswith(CELLS["settings"]), "not the method that dataclasses made"


def test_a_page_says_it_once_and_a_log_says_all(outputs: dict[str, Any]) -> None:
    remedy = "Check that model(*inputs) runs on its own."
    card, error = outputs["capture"]  # by a program that goes on, as for a page
    assert remedy in card.data["text/html"]
    assert remedy not in " ".join(error.traceback)
    assert " ".join(error.traceback).startswith("CaptureError: Wide itself raises on inputs[0]")
    cells = [nbformat.v4.new_code_cell(CELLS[name].strip()) for name in ("model", "capture")]
    stopping = NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=120, kernel_name="python3")
    with pytest.raises(CellExecutionError) as caught:
        stopping.execute()
    assert remedy in str(caught.value).replace("\n", " ")


def test_a_bench_is_made_of_the_call_of_one_card() -> None:
    failing = [CELLS["failures"], "pb.load_compiled('nowhere')", CELLS["settings"]]
    cells = [nbformat.v4.new_code_cell(source.strip()) for source in (CELLS["model"], *failing)]
    cells.append(nbformat.v4.new_code_cell(REPAIRS.replace("{cell}", "2")))
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    by_number, by_default, unknown = notebook.cells[-1].outputs[0].text.splitlines()
    assert by_number == by_default == "Branch", "later errors have no model to make a bench of"
    assert unknown.startswith("No failed call of cell [99] is known")


@pytest.mark.stress
def test_a_notebook_passes_strict_nbval(outputs: dict[str, Any], tmp_path: Path) -> None:
    cells = {name: nbformat.v4.new_code_cell(CELLS[name].strip()) for name in ("model", *CARDS)}
    for count, (name, cell) in enumerate(cells.items()):
        cell.outputs = outputs[name]
        cell.execution_count = count + 1
        cell.metadata["tags"] = ["raises-exception"] if name in CARDS else []
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells.values())), tmp_path / "errors.ipynb")
    passed = nbval(tmp_path)
    assert passed.returncode == 0, passed.stdout
    cells["capture"].outputs, cells["capture"].metadata["tags"] = [], []
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells.values())), tmp_path / "errors.ipynb")
    failed = nbval(tmp_path, "--nbval-lax")
    assert failed.returncode == 1, "a cell that fails without having said so fails"
    assert "1 failed" in failed.stdout
    assert "Wide itself raises on inputs[0]" in failed.stdout


def nbval(folder: Path, how: str = "--nbval") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", how, "--nbval-current-env", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(line, capture_output=True, text=True, check=False, cwd=folder)


def test_other_errors_are_untouched(outputs: dict[str, Any]) -> None:
    [error] = outputs["user"]
    assert error.ename == "ZeroDivisionError"
    assert len(error.traceback) > 2
    [chained] = outputs["chained"]
    trace = " ".join(chained.traceback)
    assert chained.ename == "LookupError"
    assert "CaptureError" in trace
    assert "the direct cause" in trace
    [group] = outputs["group"]
    assert "PrepbenchError: one" in str(group)
    assert "ValueError: two" in str(group)
    thread = "".join(output.text for output in outputs["thread"] if output.output_type == "stream")
    assert thread.startswith("Exception in thread")
    assert "CaptureError: Wide itself raises" in thread


@pytest.mark.parametrize("name", ["%tb", "verbose"])
def test_whole_traceback_in_a_notebook(outputs: dict[str, Any], name: str) -> None:
    assert not any(output.output_type == "display_data" for output in outputs[name])
    trace = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(outputs[name][-1].traceback))
    assert "prepbench/capture" in trace
    assert "return wide @ torch.ones(3, 3)" in trace


SCRIPT = """
import torch
import prepbench as pb
from prepbench.errors import InternalError
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
    assert f"in {tmp_path}/script.py, line 6" in short
    assert line in short
    assert PAGE.as_uri() + "#captureerror" in short
    assert "PREPBENCH_TRACEBACK=full" in short
    full = run(tmp_path, line, PREPBENCH_TRACEBACK="full")
    assert full.startswith("Traceback (most recent call last)") or "\nTraceback (most recent call last)" in full
    assert "prepbench/capture" in full


@pytest.mark.parametrize(
    "line",
    [
        "torch.ones(2).frobnicate()",
        "raise InternalError('prepbench itself failed. Report it with its traceback.')",
        "raise LookupError('of the user') from pb.PrepbenchError('x')",
        "raise ExceptionGroup('several', [pb.PrepbenchError('one')])",
    ],
)
def test_terminal_shows_these_whole(tmp_path: Path, line: str) -> None:
    shown = run(tmp_path, line)
    assert "Traceback (most recent call last)" in shown
    assert line in shown


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
