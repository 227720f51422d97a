"""Scripts of failures hold what real modules hold, and fail as the module does, on the sample that fails."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import prepbench as pb
from prepbench.capture.aten.capture import FullGraphError

log = logging.getLogger("reproduced")
LIMIT = torch.tensor(2.0)
TABLE = np.linspace(0, 1, 5)


class HoldsArrays(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = np.array([0.0, 1.0])
        self.step = np.float32(0.5)

    def forward(self, x):
        if x.sum() > self.edges[0]:
            return x * float(self.step)
        return -x + TABLE[1]


class HoldsLogger(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = logging.getLogger("held")

    def forward(self, x):
        log.debug("called")
        self.log.debug("called")
        if x.sum() > 0:
            return x
        return -x


class HoldsLambdas(nn.Module):
    def __init__(self):
        super().__init__()
        gain = 2.0
        self.first, self.second = lambda x: x.relu() * gain, lambda x: x.tanh() * gain

    def forward(self, x):
        if x.sum() > 0:
            return self.first(x)
        return self.second(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        y, _ = self.rnn(x.unsqueeze(0))
        if y.sum() > 0:
            return y
        return -y


class ReadsModuleTensor(nn.Module):
    def forward(self, x):
        if x.sum() > LIMIT:
            return x
        return -x


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 40).bfloat16()

    def forward(self, x):
        if x.sum() > 0:
            return self.fc(x)
        return -self.fc(x)


class Nested(nn.Module):
    def forward(self, batch):
        x = batch["a"]["x"]
        if x.sum() > 0:
            return x
        return -x


class AsksForStrides(nn.Module):
    def forward(self, x):
        if x.is_contiguous():
            return x
        if x.sum() > 0:
            return x.t()
        return -x


class OtherSampleFails(nn.Module):
    def forward(self, x):
        if x.shape[0] == 3:
            return x + 1
        return x * 2


ROWS = [torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) for size in (2, 3)]
CASES: list[tuple[Any, list[Any], str]] = [
    *((kind, ROWS, "GuardOnDataDependentSymNode") for kind in (HoldsArrays, HoldsLogger, HoldsLambdas)),
    *((kind, ROWS, "GuardOnDataDependentSymNode") for kind in (Recurrent, ReadsModuleTensor)),
    (Half, [x.bfloat16() for x in ROWS], "GuardOnDataDependentSymNode"),
    (Nested, [{"batch": {"a": {"x": x}}} for x in ROWS], "GuardOnDataDependentSymNode"),
    (AsksForStrides, [x.t().contiguous().t() for x in ROWS], "GuardOnDataDependentSymNode"),
    (OtherSampleFails, ROWS, "AssertionError"),
]

DRIVER = """
import runpy, sys
for path in sys.argv[1:]:
    try:
        runpy.run_path(path)
    except Exception as error:
        print(path.rpartition("/")[2], type(error).__name__)
    else:
        print(path.rpartition("/")[2], "nothing")
"""


def test_scripts_fail_as_their_modules_do(tmp_path: Path) -> None:
    expected, paths = [], []
    for kind, samples, error in CASES:
        try:
            pb.capture(kind(), samples)
        except FullGraphError as failed:
            paths.append(str(failed.failures[0].reproduce(tmp_path / f"{kind.__name__}.py")))
        expected.append(f"{kind.__name__}.py {error}")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, *paths], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split("\n")[:-1] == expected
