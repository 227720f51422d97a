"""Cells that several tests in JupyterLab begin with."""

from __future__ import annotations

GATE = """
import torch, prepbench as pb

class Gate(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x
"""
"""The imports, and a module that cannot be captured as it is."""

UNTIMED = """
import functools
import prepbench.bench.compiling  # times are not what is tested here
prepbench.bench.compiling.compare = pb.compare = functools.partial(pb.compare, rounds=0)
"""
"""Comparisons that measure no times."""
