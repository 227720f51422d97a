"""Loops over rows that stand inside of other statements."""

from __future__ import annotations

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case


def padded():
    return [(torch.randn(2, 6, 4), torch.tensor([6, 3])), (torch.randn(3, 5, 4), torch.tensor([1, 5, 4]))]


@case(padded)
class MasksIfLengths(nn.Module):
    def forward(self, x, lengths=None):
        if lengths is not None:
            mask = torch.zeros(x.shape[:2])
            for i, n in enumerate(lengths.tolist()):
                mask[i, :n] = 1
            x = x * mask.unsqueeze(-1)
        return x.sum(1)


@case(padded)
class PoolsIfLengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.is_masked, self.fc = True, nn.Linear(4, 4)

    def forward(self, x, lengths=None):
        y = self.fc(x)
        if self.is_masked and lengths is not None:
            parts = []
            for row, n in zip(y, lengths, strict=True):
                parts.append(row[:n].sum(0))
            pooled = torch.stack(parts)
        else:
            pooled = y.sum(1)
        return pooled / x.shape[1]


@case(padded)
class KeepsWithoutGradient(nn.Module):
    def forward(self, x, lengths):
        with torch.no_grad():
            keep = torch.ones(x.shape[0], x.shape[1])
            for i, n in enumerate(lengths.tolist()):
                keep[i, n:] = 0
        return x * keep[..., None]
