"""Indices that a model computes and that are out of range are refused; without the check, OpenVINO answers, and does
not end the process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import ConditionError

pytest.importorskip("openvino")

Lookup = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOOKUPS: dict[str, Lookup] = {
    "rows": lambda table, i: table[i],
    "columns": lambda table, i: table[:, i],
    "single numbers": lambda table, i: table[i, i],
    "index_select": lambda table, i: table.index_select(0, i),
    "gather": lambda table, i: table.gather(0, i[:, None].expand(-1, 8)),
    "scatter": lambda table, i: table.scatter(0, i[:, None].expand(-1, 8), 1.0),
    "index_add": lambda table, i: table.index_add(0, i, torch.ones(1, 8).expand(i.shape[0], 8)),
    "index_put": lambda table, i: table.index_put((i,), torch.zeros(())),
}


class Lookups(nn.Module):
    """All lookups with indices that the model computes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 8))

    def forward(self, i: torch.Tensor) -> list[torch.Tensor]:
        return [lookup(self.table * 1, i * 1) for lookup in LOOKUPS.values()]


def out_of_range() -> None:
    """Compile, and call with indices that are there and that are not; run in a process of its own."""
    model = Lookups()
    samples = [torch.tensor([1, 2]), torch.tensor([1, 2, 3])]
    compiled = pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.OpenVinoDeployment())
    right = torch.tensor([7, 0, 3, 5])
    for found, expected in zip(compiled(right), model(right), strict=True):
        torch.testing.assert_close(found, expected)
    for wrong in (8, 100_000, -9, -100_000, 2**31 - 1, -(2**31)):
        compiled.allow_unproven = False
        with pytest.raises(ConditionError, match="index out of range"):
            compiled(torch.tensor([wrong, 1]))
        compiled.allow_unproven = True
        compiled(torch.tensor([wrong, 1]))


def test_no_index_ends_the_process() -> None:
    command = [
        sys.executable,
        "-c",
        "from tests.system.targets.test_openvino_indices import out_of_range; out_of_range()",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
