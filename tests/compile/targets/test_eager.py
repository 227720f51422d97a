"""The eager target shares weights with the program, and keeps what it writes to itself."""

from __future__ import annotations

import torch
from torch import nn

from prepbench.targets.eager import EagerRuntime


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.seen.add_(1)
        return (self.layer(x) + self.seen,)


def test_runs_leave_the_program_and_other_runtimes_alone() -> None:
    x = torch.ones(2, 3)
    program = torch.export.export(Counts(), (x,))
    before = {name: value.clone() for name, value in program.state_dict.items()}
    first, other = EagerRuntime(program), EagerRuntime(program)
    start = first.run([x])[0]
    torch.testing.assert_close(first.run([x])[0], start + 1)
    torch.testing.assert_close(other.run([x])[0], start)
    for name, value in program.state_dict.items():
        torch.testing.assert_close(value, before[name])
