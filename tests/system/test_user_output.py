"""What a model prints while prepbench runs it: one folded block in a notebook."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from prepbench.progress_bar import _bundle, _Kept

SETUP = """
import sys, warnings, threading, time, torch, prepbench as pb
from IPython.display import display
from tqdm.auto import tqdm

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        print("<b>called</b>")
        print("to stderr", file=sys.stderr)
        for _ in tqdm(range(2), file=sys.stderr):
            x = x + 1
        return self.linear(x)

net, samples = Net().eval(), [torch.ones(2, 4), torch.ones(3, 4)]
"""


def outputs(*cells: str) -> list[list[Any]]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in (SETUP, *cells)])
    NotebookClient(notebook, kernel_name="python3", timeout=120, allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells[1:]]


@pytest.fixture(scope="module")
def made() -> list[list[Any]]:
    return outputs(
        "graph = pb.recursive_trace(net, inputs=samples)",
        "captured = pb.capture(net, samples)",
        "net(samples[0]); print('after')",
        "class Bad(Net):\n    def forward(self, x):\n        super().forward(x)\n        raise ValueError('mine')\n"
        "pb.recursive_trace(Bad(), inputs=samples)",
        "class Warns(Net):\n    def forward(self, x):\n        warnings.warn('of the user')\n"
        "        return super().forward(x)\n"
        "_ = pb.recursive_trace(Warns(), inputs=samples)",
        "quiet = pb.recursive_trace(torch.nn.Linear(4, 2), inputs=samples)",
    )


def test_prints_of_a_call_are_one_folded_block(made: list[list[Any]]) -> None:
    for shown in made[:2]:
        (block,) = shown
        assert block.output_type == "display_data"
        assert "<details><summary>Your code printed " in block.data["text/html"]
        assert block.data["text/html"].count("&lt;b&gt;called&lt;/b&gt;") == 1
        assert "  to stderr" in block.data["text/plain"]
    assert made[5] == []


def test_other_cells_print_as_ever(made: list[list[Any]]) -> None:
    said = "".join(each.text for each in made[2] if each.output_type == "stream" and each.name == "stdout")
    assert said == "<b>called</b>\nafter\n"


def test_errors_come_after_the_block_and_warnings_are_not_folded(made: list[list[Any]]) -> None:
    block, card, error = made[3]
    assert [each.output_type for each in (block, card, error)] == ["display_data", "display_data", "error"]
    assert block.data["text/plain"].startswith("Your code printed")
    assert not card.data["text/plain"].startswith("Your code printed")
    texts = ["".join(each.get("text", "")) for each in made[4]]
    assert any("of the user" in text for text in texts)
    assert "of the user" not in made[4][-1].data["text/plain"]


def test_lines_are_counted_and_of_a_bar_the_last_state_is_kept() -> None:
    kept = _Kept()
    for _ in range(26):
        kept.write("stdout", "called\n")
    kept.write("stderr", "\r 0/2\r 1/2\r 2/2")
    kept.end()
    text = _bundle(kept)["text/plain"]
    assert text == "Your code printed 27 lines while prepbench ran it\n  called  (×26)\n   2/2"
    for number in range(1000):
        kept.write("stdout", f"{number}\n")
    assert len(kept.lines) <= 201
    assert kept.lines.total() == 1027


def test_a_callback_prints_at_once() -> None:
    (shown,) = outputs(
        "_ = pb.compile_model(net, tracing_inputs=samples, deployment_settings=pb.EagerDeployment(), "
        "discard_input_model=False, progress=lambda step: print('step', step.stage))"
    )
    *streams, block = shown
    assert {each.output_type for each in streams} == {"stream"}
    assert "step" in "".join(each.text for each in streams)
    assert "<b>called</b>" not in "".join(each.text for each in streams)
    assert "step" not in block.data["text/plain"]
