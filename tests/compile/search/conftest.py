"""A small network that several tests measure, and samples for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Net(nn.Module):
    """Layers whose noise grows or fades on its way to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2)
        self.quiet = nn.Conv2d(16, 16, 3, padding=1)
        self.body = nn.ModuleList([nn.Conv2d(16, 16, 1) for _ in range(3)])
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + 0.01 * self.quiet(x)
        for layer in self.body:
            x = x + torch.relu(layer(x))
        return self.head(x.mean((2, 3)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net().eval()


@pytest.fixture(scope="module")
def samples() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(batch, 3, 12, 12, generator=generator) for batch in (4, 3, 5)]
