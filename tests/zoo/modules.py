"""Modules in unusual places: containers, reuse, replaced forwards, scripts, recurrent layers."""

import functools
import types

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.zoo import case, tensors


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.acts = nn.ModuleDict({"relu": nn.ReLU(), "tanh": nn.Tanh()})
        self.block0 = nn.Linear(4, 4)
        self.block1 = nn.Linear(4, 4)
        self.kind = "tanh"

    def forward(self, x):
        for layer in self.layers:
            x = self.acts[self.kind](layer(x))
        for i in range(2):
            x = getattr(self, f"block{i}")(x)
        return nn.Softmax(dim=-1)(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def containers():
    return Looped()


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Sequential(nn.Linear(4, 4))
        self.unused = nn.Sequential(nn.Linear(4, 4))
        self.skip = True

    def forward(self, x):
        x = self.used(x)
        return x if self.skip else self.unused(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), symbolic_failed=())
def never_called():
    return Skips()


def plus_one(forward):
    @functools.wraps(forward)
    def wrapper(*args, **kwargs):
        return forward(*args, **kwargs) + 1

    return wrapper


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 4)
        self.inner.forward = types.MethodType(lambda self, x: x @ self.weight * 3, self.inner)

    @torch.no_grad()
    @plus_one
    def forward(self, x):
        return self.linear(x) + self.inner(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def decorated_and_replaced():
    return Decorated()


class OwnCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def __call__(self, x):
        return super().__call__(x) * 2

    def forward(self, x):
        return self.linear(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def own_call():
    return nn.Sequential(OwnCall(), nn.ReLU())


@case(tensors((2, 4), (3, 4)), tensors((6, 4)), leaves=("1",))
def scripted_inside():
    return nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU())))


@case(tensors((2, 3, 4, 4), (3, 3, 4, 4)), tensors((6, 3, 4, 4)))
def parametrized():
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(3, 4, 1)), parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))
    ).eval()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        y, (h, c) = self.lstm(self.embed(ids))
        return self.head(y), (h, c)


@case(
    [torch.randint(0, 16, (2, 5)), torch.randint(0, 16, (3, 7))],
    [torch.randint(0, 16, (4, 6)), torch.randint(0, 16, (1, 9))],
)
def recurrent():
    return Tagger()


@case(tensors((2, 5, 8), (3, 5, 8)), tensors((4, 5, 8)))
def recurrent_root():
    return nn.GRU(8, 8, batch_first=True)


@case(tensors((2, 4, 8), (3, 6, 8)), tensors((5, 9, 8)))
def transformer_encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()


class BatchNormInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU())

    def forward(self, x):
        return self.net(x) + self.net(x)


@case(tensors((2, 4), (3, 4)), tensors((6, 4)))
def reused_in_training():
    return BatchNormInTraining().train()
