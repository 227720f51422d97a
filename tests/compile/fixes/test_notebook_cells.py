"""Fixes and leaves for models that stand in the same cell as their imports, as they mostly do."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import prepbench as pb

CELL = """
import asyncio
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linear(x))
        if x.sum() > 3:
            x = torch.tanh(x)
        return torch.abs(x)

await asyncio.sleep(0)
torch.manual_seed(0)
net = Gate().eval()
samples = [torch.randn(2, 4), torch.randn(3, 4)]
"""
BRANCH = "        if x.sum() > 3:\n            x = torch.tanh(x)\n"
UNKNOWN = CELL.replace(BRANCH, "        x = x + len(str(float(x.sum())))\n")


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: made)
    return made


def values(shell: Any, *cells: str) -> dict[str, Any]:
    for cell in cells:
        shell.run_cell(cell).raise_error()
    found: dict[str, Any] = shell.user_ns
    return found


@pytest.mark.parametrize("before", ["", "from __future__ import annotations"])
def test_a_model_beside_its_imports_is_fixed(shell: Any, before: str) -> None:
    found = values(shell, before, CELL)
    fixed = pb.fix(found["net"], found["samples"])
    assert fixed.passed, fixed
    assert "+        x = torch.where(x.sum() > 3, torch.tanh(x), x)" in fixed.applied[0].diff
    assert [line for line in fixed.applied[0].diff.splitlines() if line.startswith("@@")] == ["@@ -10,6 +10,5 @@"]
    again = values(shell, fixed.code().replace("model", "net"))
    assert pb.capture(again["net"], found["samples"]).leaves == ()


def test_only_the_failing_line_of_a_cell_is_a_leaf(shell: Any) -> None:
    found = values(shell, UNKNOWN)
    captured = pb.capture(found["net"], found["samples"], fullgraph=False)
    (leaf,) = captured.leaves
    assert leaf.lines == (12, 12)
    x = found["samples"][1]
    assert found["torch"].equal(captured.program.module()(x), found["net"](x))


def test_the_cell_defines_only_what_it_uses(shell: Any) -> None:
    found = values(shell, CELL.replace("torch.abs(x)", "torch.zeros_like(x) + x"))
    code = pb.fix(found["net"], found["samples"]).code()
    assert "zeros_like(" in code
    assert "def like(" not in code


HELPER = """
def scaled(x):
    if x.sum() > 3:
        x = x / 2
    return x
"""
CALLER = CELL.replace(BRANCH, "        x = scaled(x)\n")


def test_a_helper_in_a_cell_of_its_own_knows_what_the_notebook_imports(shell: Any) -> None:
    found = values(shell, HELPER, CALLER)
    fixed = pb.fix(found["net"], found["samples"])
    assert fixed.passed, fixed
    assert "import" not in fixed.diff
