"""Loops over the rows of a batch, whose number changes."""

from __future__ import annotations

import torch
from torch import nn

from tests.fixes.zoo.case import case, rows


@case(rows())
class StacksRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 4)

    def forward(self, x):
        return torch.stack([self.fc(row).tanh() * row.norm() for row in x])


@case(lambda: [(torch.randn(size, 10), torch.randn(size, 10)) for size in (2, 3)])
class AppendsPairs(nn.Module):
    def forward(self, x, y):
        out = []
        for one, other in zip(x, y, strict=True):
            product = one * other
            # the diagonal is not wanted
            matrix = torch.outer(one, other) - torch.diag(product)
            out.append(matrix.sum(0))
        return torch.stack(out) + 1


@case(lambda: [(torch.randn(size, 10), torch.randn(size, 3, 10)) for size in (2, 3)])
class CountsRows(nn.Module):
    def forward(self, x, keys):
        out = []
        for i in range(x.shape[0]):
            out.append(keys[i] @ x[i] + x[i, :3])
        return torch.stack(out, dim=0)


@case(rows(), fixable=False)
class RunsOverRows(nn.Module):
    """Each row's result depends on the rows before."""

    def forward(self, x):
        total = torch.zeros(10)
        out = []
        for row in x:
            total = total * 0.5 + row
            out.append(total)
        return torch.stack(out)
