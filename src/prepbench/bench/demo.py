"""``demo``: a bench on a network that reads handwritten digits, trained on the spot."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from prepbench.bench.bench import Bench
from prepbench.errors import MissingPackageError
from prepbench.measure import metrics
from prepbench.packages import import_failure, is_absent
from prepbench.running.unchanged import numbers_kept

_BATCH = 64
_EPOCHS = 12
_TESTED = 512  # of 1,797 digits


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return features of shape (batch, outputs, height, width)."""
        inner = functional.relu(self.norm1(self.conv1(image)))
        return functional.relu(self.norm2(self.conv2(inner)) + self.shortcut(image))


class DigitsNet(nn.Module):
    """Reads images of shape (batch, 1, 8, 8) with grey values from 0 to 1, and scores the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(1, 16), nn.MaxPool2d(2), Block(16, 32), Block(32, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, 10)."""
        scores: torch.Tensor = self.head(self.blocks(image).mean(dim=(2, 3)))
        return scores


def demo() -> Bench:
    """Open a bench on a small network that is trained at once, on the 1,797 handwritten digits of scikit-learn.

    Takes a few seconds. Nothing is downloaded or kept, the network is the same in each call, and random numbers are
    left as they were. In a notebook ``pb.demo()`` as the last line of a cell shows the bench; ``print(pb.demo())``
    describes it, and its methods do all that its page does.

    Returns:
        A bench with samples, 512 digits that were not trained on, and accuracy as the metric.

    Raises:
        MissingPackageError: scikit-learn, which has the digits, is not there.

    Example:
        >>> bench = pb.demo()
        >>> bench.metric is pb.metrics.accuracy
        True
    """
    images, digits = _digits()
    tested, trained = slice(0, _TESTED), slice(_TESTED, None)
    model = _trained(images[trained], digits[trained])
    calibration = list(images[trained][: 4 * _BATCH].split(_BATCH))
    data = list(zip(images[tested].split(_BATCH), digits[tested].split(_BATCH), strict=True))
    samples = [images[trained][:size] for size in (2, 5)]
    return Bench(model, tracing_inputs=samples, calibration_inputs=calibration, data=data, metric=metrics.accuracy)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images, of shape (1797, 1, 8, 8), and their digits, in an order that mixes the writers."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        if is_absent("sklearn"):
            raise MissingPackageError(
                "pb.demo needs scikit-learn, which has the digits, and it is not installed: pip install scikit-learn."
            ) from error
        raise import_failure(
            "sklearn", error, "pb.demo reads its digits from scikit-learn. ", "scikit-learn"
        ) from error
    found: Any = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(found.target)[order]


def _trained(images: torch.Tensor, digits: torch.Tensor) -> nn.Module:
    with numbers_kept(seed=0), torch.enable_grad():
        model = DigitsNet()
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=0.02)
        count = _EPOCHS * -(-len(images) // _BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 8e-3, total_steps=count)
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(images)).split(_BATCH):
                optimizer.zero_grad()
                functional.cross_entropy(model(images[batch]), digits[batch]).backward()
                optimizer.step()
                schedule.step()
    return model.eval().requires_grad_(True)
