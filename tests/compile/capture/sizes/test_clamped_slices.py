"""Slices that reach beyond the edge in some samples only."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from prepbench.capture.aten.capture import capture

SLICES: dict[str, Any] = {
    "last": lambda x: x[:, -4:],
    "first": lambda x: x[:, :4],
    "all but the last": lambda x: x[:, : -4 + 0],
    "from": lambda x: x[:, 4:],
    "of the last dim but one": lambda x: x[..., -4:, :],
    "with a place": lambda x: x[0, -4:, None, 1],
}


class Sliced(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.part = SLICES[name]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) * 2


@pytest.mark.parametrize("name", SLICES)
def test_one_graph_for_both_sides(name: str) -> None:
    model = Sliced(name)
    program = capture(model, [torch.randn(2, 3, 5), torch.randn(2, 7, 5)]).program.module()
    for length in (2, 4, 5, 12):
        x = torch.randn(2, length, 5)
        torch.testing.assert_close(program(x), model(x))


def test_slices_that_all_samples_hold_stay_slices() -> None:
    program = capture(Sliced("last"), [torch.randn(2, 6, 5), torch.randn(2, 7, 5)]).program
    operators = {str(node.target) for node in program.graph.nodes}
    assert "aten.slice.Tensor" in operators
    assert "aten.index_select.default" not in operators
