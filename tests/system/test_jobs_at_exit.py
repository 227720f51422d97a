"""A script that ends while a job of its bench runs."""

import subprocess
import sys

_SCRIPT = """
import torch
from torch import nn
import prepbench as pb

class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))

    def forward(self, x):
        return self.layers(x) if x.sum() > 0 else self.layers(x) - 1

bench = pb.Bench(nn.Sequential(*(Gate() for _ in range(4))), tracing_inputs=[torch.randn(n, 8) for n in (2, 3)])
bench.start()  # and the search for fixes goes on, too
print("last line")
"""


def test_the_process_ends_well_and_soon() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "last line\n"), done.stderr[-2000:]
