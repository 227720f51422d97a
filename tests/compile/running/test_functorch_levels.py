"""A graph that raises inside of ``torch.vmap`` leaves no level open."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from prepbench.inputs import Sample
from prepbench.running.unchanged import outcome, run


class Maps(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mapped: torch.Tensor = torch.vmap(lambda row: torch.linalg.inv(row))(x)
        return mapped


@pytest.mark.parametrize("call", [run, outcome])
def test_later_calls_are_not_mapped(call: object) -> None:
    x = torch.eye(2).expand(3, 2, 2).contiguous()
    program = torch.export.export(Maps(), (x,)).module()
    with pytest.raises(RuntimeError):
        call(program, Sample((x * 0,)), program)  # type: ignore[operator]
    assert torch.zeros(2).requires_grad_().requires_grad  # refused inside of a mapped function
