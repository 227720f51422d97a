"""A script of a user, in a folder that is the working directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return torch.relu(self.linear(x))

class Branch(Net):
    def forward(self, x):
        x = self.linear(x)
        if x.sum() > 0:
            x = x + 1
        return x

class Raises(Net):
    def forward(self, x):
        raise RuntimeError("no such kernel")

torch.manual_seed(0)
model = Net().eval()
branch = Branch().eval()
number = 3
samples = [torch.ones(2, 4), torch.ones(3, 4)]

def make():
    return Net().eval()

def make_branch():
    return branch

def raises():
    return Raises().eval()

def needs(size):
    return Net()

def fails():
    raise ValueError("no weights here")

def batches():
    return [torch.randn(8, 4) for _ in range(2)]

def pairs():
    return [(x, torch.zeros(8, dtype=torch.long)) for x in batches()]

def share_of_zeros(output, target):
    return float((output == 0).float().mean())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "users_model.py"
    path.write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    before, places = set(sys.modules), list(sys.path)
    yield path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path[:] = places
