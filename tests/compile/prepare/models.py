"""What the tests of preparation share: inputs, checks, and models that several of them prepare."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from prepbench.prepare import PreparedModel, prepare_model


def x(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def assert_prepared(model: nn.Module, *samples: Any, without: bool = True) -> PreparedModel:
    """Prepared with and without samples, equal on all of them, the original untouched; returns the one with samples."""
    before = fingerprint(model)
    with_inputs = prepare_model(model, inputs=list(samples))
    assert with_inputs.preparation_report.largest_difference == 0
    variants = [with_inputs, prepare_model(model)] if without else [with_inputs]
    assert fingerprint(model) == before
    for prepared in variants:
        prepared.graph.lint()
        for sample in samples:
            args = sample if isinstance(sample, tuple) else (sample,)
            torch.manual_seed(0)
            expected = copy.deepcopy(model)(*copy.deepcopy(args))
            torch.manual_seed(0)
            torch.testing.assert_close(copy.deepcopy(prepared)(*copy.deepcopy(args)), expected, rtol=0, atol=0)
        assert [key for key in prepared.state_dict() if key in model.state_dict()] == list(model.state_dict())
    return with_inputs


def fingerprint(model: nn.Module) -> Any:
    """Everything by which one could tell that a model was touched."""
    return [
        (name, type(module), sorted((key, id(value)) for key, value in vars(module).items()), list(module._modules))
        for name, module in model.named_modules()
    ] + [(key, value.sum().item()) for key, value in model.state_dict().items()]


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return self.fc2(x).relu()


class Reused(Functional):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = torch.flatten(self.relu(self.conv2(x)), 1)
        return self.relu(self.fc2(self.relu(self.fc1(x))))


class Gate(nn.Module):
    @staticmethod
    def forward(x):
        return x * F.softplus(x).sigmoid()


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.custom = nn.Conv2d(3, 8, kernel_size=2), Gate()

    def forward(self, inputs):
        return self.custom(self.conv1(inputs))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv2(self.relu(self.conv1(x)))
        out += x
        return self.relu(out)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Block(), Block())
        self.layer2 = nn.ModuleList([Block(), nn.Sequential(nn.ReLU(), Block())])

    def forward(self, x):
        x = self.layer1(x)
        for block in self.layer2:
            x = block(x)
        return x


class SharedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x, scale=2.0):
        for _ in range(3):
            x = self.norm(self.blocks[0](input=x)) * scale
        return x


@torch.fx.wrap
def until_large(x, y):
    while x.abs().sum() < 100:
        x = x + y
    return x * x


class Wraps(nn.Module):
    def forward(self, x):
        return until_large(x, x.abs() + 1) + 1


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Branches()

    def forward(self, x):
        return F.relu(self.gate(x))
