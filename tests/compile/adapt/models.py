"""Small models of several kinds, and their inputs."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn


class ConvNet(nn.Module):
    """Batch norms behind convolutions, a residual branch, dropout before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.stem_norm = nn.BatchNorm2d(12)
        self.branch = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.branch_norm = nn.BatchNorm2d(12)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(12 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        x = torch.relu(x + self.branch_norm(self.branch(x)))
        return self.head(self.drop(torch.max_pool2d(x, 2).flatten(1)))


class Transformer(nn.Module):
    """Attention, norms, a product of two activations, and a dict as the result."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(8, 32)
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm, self.norm_after = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, Any]:
        x = self.rows(x) * scale
        y = self.norm(x)
        weights = torch.softmax(self.query(y) @ self.key(y).transpose(1, 2) / 32**0.5, -1)
        x = x + nn.functional.dropout(weights @ self.value(y), 0.1, self.training)
        x = x + self.down(nn.functional.gelu(self.up(self.norm_after(x))))
        return {"logits": self.head(x.mean(1)), "features": [x]}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(8, 24, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)[0][:, -1])


MODELS: dict[str, type[nn.Module]] = {"conv": ConvNet, "transformer": Transformer, "lstm": Recurrent}


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images and classes to train on, then others to test with."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(classes)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def shaped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Images as a model takes them."""
    return x.view(-1, 1, 8, 8) if isinstance(model, ConvNet) else x.view(-1, 8, 8)


def samples(model: nn.Module) -> list[torch.Tensor]:
    x = shaped(model, digits()[0])
    # sequences of two lengths, because a recurrent layer over one length is unrolled
    return [x[:32], x[32:48, :6]] if isinstance(model, Recurrent) else [x[:32], x[32:48]]


def logits(output: Any) -> torch.Tensor:
    return output["logits"] if isinstance(output, dict) else output


def loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits(output), target)


def batches(model: nn.Module, size: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y, *_ = digits()
    return [(shaped(model, x[i : i + size]), y[i : i + size]) for i in range(0, len(x), size)]


@functools.cache
def trained(kind: str) -> nn.Module:
    """A model of a kind, trained in float for some seconds."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(4):
        for x, y in batches(model):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return model.eval()
