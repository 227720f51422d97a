"""A notebook that was just executed passes a strict comparison of its outputs, also while the machine is busy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest

CELLS = [
    """import torch, prepbench as pb
from prepbench import progress_bar
progress_bar.DELAY = 0.01  # every call is a long one

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)

    def forward(self, x):
        print("called")
        return self.head(torch.relu(self.first(x)))

torch.manual_seed(0)
net = Net().eval()
samples = [torch.ones(2, 4), torch.ones(3, 4)]""",
    "graph = pb.recursive_trace(net, inputs=samples); graph",
    "graph.diagram()",
    "captured = pb.capture(net, samples); captured",
    "pb.diagram(graph, captured)",
    "print(captured)",
    "pb.check_traceability(net, samples)",
    "bench = pb.Bench(net, calibration_inputs=samples); bench",
    "bench.set_precision('head', 'float32'); bench",
]


@contextmanager
def busy_cores() -> Iterator[None]:
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("dot") is None, reason="pictures need Graphviz")
def test_an_executed_notebook_passes_strictly_on_an_idle_and_a_busy_machine(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "strict.ipynb")
    run(tmp_path, "nbconvert", "--to", "notebook", "--execute", "--inplace", "strict.ipynb")
    for cell in nbformat.read(tmp_path / "strict.ipynb", 4).cells:
        assert all(output.get("data") != {} for output in cell.outputs), "progress left an output"
    strict = (
        "pytest",
        "--nbval",
        "strict.ipynb",
        "--nbval-current-env",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
    )
    run(tmp_path, *strict)
    with busy_cores():
        run(tmp_path, *strict)
