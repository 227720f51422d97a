"""What is computed before a failing statement, and what stays in it."""

from __future__ import annotations

import ast
import itertools

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture
from prepbench.capture.statements.outline import Surroundings, move_out

AROUND = Surroundings(
    frozenset({"self", "x", "y", "seen", "k"}),
    lambda name: name in ("torch", "F"),
    lambda text: text in ("self.fc", "self.norm"),
)


def moved(text: str) -> list[str]:
    statement = ast.parse(text).body[0]
    return [ast.unparse(each.value) for each in move_out(statement, AROUND, itertools.count(1))]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("if x.sum() > 0:\n y = self.fc(x)", ["x.sum() > 0", "self.fc(x)"]),
        ("if not x.mean() > 0 and y.max() < k:\n pass", ["x.mean() > 0"]),
        ("if x.sum().item() > 0:\n pass", ["x.sum()"]),
        ("y = self.fc(x) if x.std() > 1 else F.relu(x)", ["x.std() > 1", "self.fc(x)", "F.relu(x)"]),
        ("if k:\n x = self.fc(x)\n y = self.norm(x)", ["self.fc(x)"]),
        ("if k:\n x = x.abs()\nelse:\n x = x.exp()", ["x.abs()", "x.exp()"]),
        ("if x.max() > 0:\n y = x.max()", ["x.max() > 0"]),
        ("if k and x.max() > 0:\n pass", []),
        ("if k:\n y = (x // k).sum() + (x**2).sum()", ["(x ** 2).sum()"]),
        ("if k:\n x.mul_(2)\n y = x.sum()", []),
        ("if k:\n x[0] = 1\n y = x.sum()", []),
        ("if k:\n self.total = x.sum()\n y = x.mean()", ["x.sum()"]),
        ("if k:\n y = x.mul_(2) + x.sum()", []),
        ("if k:\n y = other(x) + x.sum()", []),
        ("if k:\n seen.add(x)", []),
        ("if k:\n y = self.meter.add(x)", []),
        ("if k:\n y = np.abs(x)", []),
        ("if k:\n y = self.other(x)", []),
        ("if k:\n y = [i.sum() for i in x]", []),
        ("while x.sum() > 0:\n x = x / 2", []),
    ],
)
def test_what_is_moved(text: str, expected: list[str]) -> None:
    assert moved(text) == expected


class Branches(nn.Module):
    """Nothing but a branch: its layers and its condition are in the graph all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.other = nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            y = self.linear(x)
        else:
            y = self.other(x)
            y = y + 1
        return y


ROWS = [torch.linspace(-1, 2, 10 * n).reshape(n, 10) for n in (3, 5)]


def test_layers_in_a_branch_are_in_the_graph() -> None:
    model = Branches().eval()
    captured = capture(model, ROWS, fullgraph=False)
    assert sum("aten.linear" in str(node.target) for node in captured.program.graph.nodes) == 2
    assert captured.leaves[0].lines is not None
    for rows in (ROWS[0], -ROWS[1], torch.randn(7, 10)):
        torch.testing.assert_close(captured.program.module()(rows), model(rows))


def test_in_training_layers_stay_where_they_are() -> None:
    captured = capture(Branches().train(), ROWS, fullgraph=False)
    assert not any("aten.linear" in str(node.target) for node in captured.program.graph.nodes)


class TakesTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y = ids * 2
        if ids.max() < 4:
            y = self.table(ids).sum(-1)
        return y + 1


def test_a_layer_that_raises_for_some_values_runs_only_where_it_did() -> None:
    model = TakesTables().eval()
    captured = capture(model, [torch.tensor([[0, 1], [2, 3]]), torch.tensor([[0, 1, 3], [2, 3, 1]])], fullgraph=False)
    ids = torch.tensor([[2, 0], [1, 1]])
    torch.testing.assert_close(captured.program.module()(ids), model(ids))
