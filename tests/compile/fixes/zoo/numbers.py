"""Python numbers are made of tensors."""

from __future__ import annotations

import math

import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class ItemScale(nn.Module):
    def forward(self, x):
        scale = x.abs().max().item()
        return x / scale


@case(rows())
class FloatMean(nn.Module):
    def forward(self, x):
        mean = float(x.mean())
        std = float(x.std())
        return (x - mean) / (std + 1e-5)


@case(rows())
class IntRounded(nn.Module):
    def forward(self, x):
        bits = int(x.abs().max())
        return x * bits


@case(rows())
class MathSqrt(nn.Module):
    def forward(self, x):
        return x / math.sqrt(x.pow(2).sum().item() + 1.0)


@case(rows())
class MathOnTensor(nn.Module):
    def forward(self, x):
        t = x.abs().sum()
        return x * math.exp(-t) + math.log(t + 1)


@case(rows())
class ListOfMaxima(nn.Module):
    def forward(self, x):
        maxima = x.max(dim=0).values.tolist()
        return x - torch.tensor(maxima)


@case(rows())
class TensorOfItem(nn.Module):
    def forward(self, x):
        total = torch.tensor(x.sum().item())
        return x / total


@case(rows())
class TensorOfSeveral(nn.Module):
    def forward(self, x):
        stats = torch.tensor([x.min().item(), x.max().item()])
        return x.clamp(stats[0], stats[1]), stats


@case(rows())
class FullOfNumber(nn.Module):
    def forward(self, x):
        fill = x.mean().item()
        pad = torch.full((x.shape[0], 2), fill)
        return torch.cat([x, pad], dim=1)


@case(lambda: [(torch.randn(2, 8), torch.tensor(3)), (torch.randn(4, 8), torch.tensor(5))])
class IndexByNumber(nn.Module):
    def forward(self, x, position):
        return x[:, int(position)]


@case(lambda: [(torch.randn(2, 8), torch.tensor([3])), (torch.randn(4, 8), torch.tensor([5]))])
class SliceByLength(nn.Module):
    def forward(self, x, length):
        n = length.item()
        return x[:, :n].sum(dim=1)


@case(lambda: [(torch.randn(2, 8), torch.tensor([3, 5])), (torch.randn(2, 8), torch.tensor([8, 1]))])
class MaskByLengths(nn.Module):
    def forward(self, x, lengths):
        mask = torch.zeros_like(x)
        for i, n in enumerate(lengths.tolist()):
            mask[i, :n] = 1
        return x * mask


@case(rows())
class ClampByItems(nn.Module):
    def forward(self, x):
        low, high = x.min().item() * 0.5, x.max().item() * 0.5
        return x.clamp(low, high)


@case(rows())
class RoundNumber(nn.Module):
    def forward(self, x):
        step = round(x.abs().mean().item(), 2) + 0.01
        return (x / step).round() * step


@case(rows())
class ArgmaxIndex(nn.Module):
    def forward(self, x):
        best = int(x.sum(dim=0).argmax())
        return x[:, best]


@case(rows())
class ChosenByIndex(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))

    def forward(self, x):
        k = int(x[:, :3].sum(dim=0).argmax())
        return self.experts[k](x)


@case(rows())
class EpsilonCheck(nn.Module):
    def forward(self, x):
        denominator = x.sum(dim=1, keepdim=True)
        smallest = denominator.abs().min().item()
        if smallest < 1e-6:
            denominator = denominator + 1e-6
        return x / denominator


@case(rows())
class AlphaOfAdd(nn.Module):
    def forward(self, x):
        alpha = x.std().item()
        return torch.add(x, x.relu(), alpha=alpha)


@case(lambda: [(torch.randint(1, 4, (2, 6)),), (torch.randint(1, 4, (3, 6)),)])
class OneHotByMax(nn.Module):
    def forward(self, ids):
        count = int(ids.max()) + 1
        return torch.nn.functional.one_hot(ids, count).float().mean(dim=1)


@case(lambda: [(torch.randn(2, 6), torch.tensor(0.3)), (torch.randn(3, 6), torch.tensor(0.7))])
class TemperatureItem(nn.Module):
    def forward(self, logits, temperature):
        t = temperature.item() if isinstance(temperature, torch.Tensor) else temperature
        return torch.softmax(logits / t, dim=-1)


@case(rows())
class QuantiseScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.bits = 8

    def forward(self, x):
        qmax = 2 ** (self.bits - 1) - 1
        scale = max(x.abs().max().item() / qmax, 1e-8)
        q = torch.clamp(torch.round(x / scale), -qmax, qmax)
        return q * scale
