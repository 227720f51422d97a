"""Randomness, state, memory and operators that tracing does not take."""

from __future__ import annotations

import copy
import logging
import random

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))
        self.p = 0.3
        self.eval()

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand(1).item() < self.p:
                continue
            x = layer(x).relu()
        return x


@case(rows())
class RandomAugment(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        skip = torch.rand(()) < 0.5
        if self.training and skip:
            return x
        return x * 2


@case(rows())
class WritesData(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        self.fc.weight.data = self.fc.weight.data.clamp(-0.1, 0.1)
        return self.fc(x)


@case(rows())
class CopiesLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 10)

    def forward(self, x):
        shadow = copy.deepcopy(self.fc)
        return self.fc(x) - shadow(x.relu())


@case(lambda: [torch.eye(3) * 2 + 0.1 * torch.randn(2, 3, 3), torch.eye(3) * 2 + 0.1 * torch.randn(4, 3, 3)])
class TriesInverse(nn.Module):
    def forward(self, m):
        try:
            return torch.linalg.inv(m)
        except RuntimeError:
            return torch.linalg.pinv(m)


@case(lambda: [torch.eye(3) * 2 + torch.zeros(2, 3, 3), torch.eye(3) * 3 + torch.zeros(4, 3, 3)])
class TriesCholesky(nn.Module):
    def forward(self, m):
        try:
            factor = torch.linalg.cholesky(m)
        except torch.linalg.LinAlgError:
            factor = torch.linalg.cholesky(m + 1e-3 * torch.eye(3))
        return factor.sum(-1)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.max() > 1:
            return x.clamp(-1, 1)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


@case(rows())
class OwnAutograd(nn.Module):
    def forward(self, x):
        return _Clamp.apply(x) * 2


@case(lambda: [(torch.randn(2, 5, 4), torch.tensor([5, 3])), (torch.randn(2, 5, 4), torch.tensor([5, 2]))])
class PacksSequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 6, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, h = self.rnn(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return out, h


@case(rows())
class RandomShift(nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        if self.training and random.random() < 0.5:
            x = x + 1
        k = x.argmax().item() if self.training else 0
        if x.sum() > 0:
            x = x * 2
        return x + k


@case(rows())
class EnergyGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            energy = self.net(x).sum()
            (force,) = torch.autograd.grad(energy, x)
        return -force


@case(rows(4))
class FollowsSlowly(nn.Module):
    """A method writes the parameters of a copy."""

    def __init__(self):
        super().__init__()
        self.fast, self.slow = nn.Linear(4, 4), nn.Linear(4, 4)

    @torch.no_grad()
    def follow(self):
        for fast, slow in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1

    def forward(self, x):
        self.follow()
        return self.fast(x) - self.slow(x)


@case(lambda: [torch.randn(2, 3, 3), torch.zeros(2, 3, 3)])
class TellsOfSingular(nn.Module):
    def forward(self, x):
        try:
            y = torch.linalg.inv(x)
        except RuntimeError as error:
            logging.getLogger(__name__).debug("singular: %s", error)
            y = x * 2
        return y


@case(rows(4))
class CountsLayers(nn.Module):
    """How many layers ran is a number of the result."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        used = 0
        for layer in self.layers:
            y = torch.relu(layer(x))
            used += 1
            if (y - x).abs().max() < 1:
                break
            x = y
        return x, used
