"""How often Python loops depends on tensor values."""

from __future__ import annotations

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(lambda: [(torch.randn(2, 6), torch.tensor(2)), (torch.randn(3, 6), torch.tensor(4))])
class RepeatsByItem(nn.Module):
    def __init__(self):
        super().__init__()
        self.step = nn.Linear(6, 6)

    def forward(self, x, steps):
        for _ in range(steps.item()):
            x = torch.tanh(self.step(x))
        return x


@case(lambda: [(torch.randn(2, 6), torch.tensor([1])), (torch.randn(3, 6), torch.tensor([3]))])
class SumsByInt(nn.Module):
    def forward(self, x, count):
        total = torch.zeros_like(x)
        n = int(count[0])
        for i in range(n):
            total = total + x * (i + 1)
        return total


@case(rows())
class HalvesUntilSmall(nn.Module):
    def forward(self, x):
        while x.norm() > 1.0:
            x = x / 2
        return x


@case(lambda: [torch.rand(2, 4) + 0.5, torch.rand(3, 4) + 2])
class NewtonRoot(nn.Module):
    def forward(self, a):
        y = a.clone()
        for _ in range(20):
            new = 0.5 * (y + a / y)
            done = (new - y).abs().max() < 1e-5
            y = new
            if done:
                break
        return y


@case(lambda: [torch.randn(2, 4, 4) * 0.1, torch.randn(3, 4, 4) * 0.1])
class PowerIteration(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("start", torch.ones(4))

    def forward(self, m):
        v = self.start.expand(m.shape[0], 4)
        error = torch.tensor(1.0)
        count = 0
        while error > 1e-3 and count < 30:
            w = torch.tanh(torch.einsum("bij,bj->bi", m, v)) + 0.1
            error = (w - v).abs().max()
            v = w
            count += 1
        return v


@case(lambda: [(torch.randn(3, 5), torch.tensor([2, 4, 1])), (torch.randn(2, 5), torch.tensor([3, 5]))])
class RowLengths(nn.Module):
    def forward(self, x, lengths):
        out = []
        for i in range(2):
            out.append(x[i, : lengths[i]].sum())
        return torch.stack(out)


@case(lambda: [torch.randn(2, 5, 4), torch.randn(3, 5, 4)])
class SettlesSlots(nn.Module):
    """What is compared with has no value before the first step."""

    def forward(self, x):
        slots = x.mean(1)
        before = None
        for _ in range(4):
            share = torch.softmax((slots.unsqueeze(1) * x).sum(-1), -1)
            slots = (share.unsqueeze(-1) * x).sum(1)
            if before is not None and (slots - before).abs().mean() < 1e-2:
                break
            before = slots
        return slots
