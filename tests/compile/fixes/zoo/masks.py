"""Sizes depend on tensor values."""

from __future__ import annotations

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class MeanOfPositive(nn.Module):
    def forward(self, x):
        return x[x > 0].mean()


@case(rows())
class SumOfSelected(nn.Module):
    def forward(self, x):
        mask = x.abs() > 0.5
        return x[mask].sum() / mask.sum()


@case(rows())
class AssignsByMask(nn.Module):
    def forward(self, x):
        y = x.clone()
        y[y < 0] = y[y < 0] * 0.1
        return y


@case(rows())
class CountsNonzero(nn.Module):
    def forward(self, x):
        return x.sum() / len(torch.nonzero(x > 0))


@case(lambda: [(torch.randn(4, 6), torch.tensor([0, 1, -100, 2])), (torch.randn(3, 6), torch.tensor([1, -100, 2]))])
class LossWithIgnored(nn.Module):
    def forward(self, logits, labels):
        keep = labels != -100
        logits, labels = logits[keep], labels[keep]
        return torch.nn.functional.cross_entropy(logits, labels)


@case(rows())
class MaxOfSelected(nn.Module):
    def forward(self, x):
        return torch.masked_select(x, x < 1).max()


@case(rows())
class RoutesRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(10, 3)
        self.experts = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            idx = torch.where(choice == i)[0]
            if idx.numel() > 0:
                out[idx] = expert(x[idx])
        return out


@case(rows())
class UniqueCount(nn.Module):
    def forward(self, x):
        labels = (x > 0).long().sum(dim=1)
        return x.sum() * len(torch.unique(labels))


@case(rows(), fixable=False)
class ReturnsSelected(nn.Module):
    def forward(self, x):
        return x[x > 0]
