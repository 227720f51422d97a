"""In-place operations, state, and what forward leaves on the module."""

import torch
from torch import nn

from tests.zoo import case, tensors


class InPlace(nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, -1] = 1
        y += 1
        torch.relu_(y)
        y[y < 2] = 0
        out = torch.empty_like(y)
        torch.add(y, 1, out=out)
        x.mul_(2)
        return y + x, out, y.T.contiguous()


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def in_place_everywhere():
    return InPlace()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("m", torch.zeros(()))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.n += 1
        self.m = self.m + 2
        return x + self.n + self.m


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def counting_buffers():
    return Counter()


class LazyMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None
        self.cache = {}

    def forward(self, x):
        if self.mask is None or self.mask.shape[0] != x.shape[1]:
            self.mask = torch.tril(torch.ones(x.shape[1], x.shape[1]))
        self.cache["bias"] = torch.arange(x.shape[1]).float()
        return x @ self.mask + self.cache["bias"]


@case(tensors((2, 4), (3, 6)), tensors((6, 9)))
def cache_kept_on_self():
    return LazyMask()


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x):
        return x * self.scale + torch.tensor(5.0) + x @ self.weight.t() + OUTSIDE


OUTSIDE = torch.full((4,), 0.5)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def tensors_from_anywhere():
    return Constants()
