"""Numpy computes in the middle."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.compile.fixes.zoo.case import case, rows


@case(rows())
class ClipInNumpy(nn.Module):
    def forward(self, x):
        a = x.detach().cpu().numpy()
        return torch.from_numpy(np.clip(a, -1, 1)) * 2


@case(rows())
class MeanInNumpy(nn.Module):
    def forward(self, x):
        m = np.mean(x.numpy(), axis=1)
        return torch.from_numpy(m)


@case(rows())
class SortInNumpy(nn.Module):
    def forward(self, x):
        order = np.argsort(x.numpy(), axis=-1)
        return torch.gather(x, 1, torch.from_numpy(order))


@case(rows())
class SqrtOfTensor(nn.Module):
    def forward(self, x):
        return x / np.sqrt(x.shape[-1]) + np.abs(x.numpy()).sum()


@case(rows())
class Interpolates(nn.Module):
    def forward(self, x):
        grid = np.linspace(-3, 3, 16)
        table = np.tanh(grid)
        y = np.interp(x.numpy(), grid, table)
        return torch.from_numpy(y).float()


@case(rows())
class Digitizes(nn.Module):
    def forward(self, x):
        bins = np.array([-1.0, 0.0, 1.0])
        return torch.tensor(np.digitize(x.numpy(), bins))


@case(rows())
class Percentile(nn.Module):
    def forward(self, x):
        top = np.percentile(x.detach().numpy(), 90)
        return x.clamp(max=float(top))


@case(rows())
class WhereInNumpy(nn.Module):
    def forward(self, x):
        a = x.numpy()
        b = np.where(a > 0, a, 0.1 * a)
        return torch.as_tensor(b)


@case(rows())
class ConcatenatesArrays(nn.Module):
    def forward(self, x):
        a = x.numpy()
        both = np.concatenate([a, -a], axis=1)
        return torch.from_numpy(both.astype(np.float32)).relu()


@case(lambda: [torch.randn(16), torch.randn(24)])
class ConvolvesArrays(nn.Module):
    def forward(self, x):
        kernel = np.ones(3) / 3
        smooth = np.convolve(x.numpy(), kernel, mode="same")
        return torch.from_numpy(smooth).float()


@case(rows())
class NumpyConstantTable(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = np.linspace(0, 1, 10).astype("float32")

    def forward(self, x):
        y = x.numpy() * self.weights
        return torch.from_numpy(y)


@case(rows())
class MaximumInNumpy(nn.Module):
    def forward(self, x):
        low = np.maximum(x.numpy(), 0)
        scaled = np.log1p(low) + np.exp(-low)
        return torch.from_numpy(scaled)


@case(lambda: [torch.rand(2, 8), torch.rand(3, 8)])
class LooksUpInTables(nn.Module):
    def __init__(self):
        super().__init__()
        self.at, self.curve = np.array([0, 0.25, 0.75, 1.0]), np.array([0, 0.1, 0.9, 1.0])

    def forward(self, x):
        toned = np.interp(x.numpy(), self.at, self.curve).astype("float32")
        bins = np.eye(5, dtype=np.float32)[np.digitize(x.numpy(), self.at)]
        return torch.as_tensor(toned), torch.from_numpy(bins.mean(axis=1))
