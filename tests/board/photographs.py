"""Networks that are trained here on the photographs of scikit-learn and scikit-image."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from prepbench import metrics
from prepbench.running.metric_facts import Records, records_of
from tests import detector
from tests.board.entry import Call, Outputs, Task
from tests.board.layers import UNet
from tests.board.shipped import installed_file
from tests.board.training import kept, trained

TRAINING = ("coffee.png", "rocket.jpg", "motorcycle_left.png", "retina.jpg", "ihc.png", "astronaut.png", "color.png")
TEST = ("chelsea.png", "hubble_deep_field.jpg")


@functools.cache
def _photograph(name: str) -> torch.Tensor:
    from PIL import Image

    with Image.open(installed_file("skimage", f"data/{name}", "scikit-image")) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


@functools.cache
def _sample(index: int) -> torch.Tensor:
    from sklearn.datasets import load_sample_images

    return torch.tensor(load_sample_images().images[index]).permute(2, 0, 1).float() / 255


def crops(count: int, size: int, seed: int, *, test: bool = False) -> torch.Tensor:
    """Return parts of photographs, of shape (count, 3, size, size); those of the test are of other photographs."""
    random = np.random.default_rng(seed)
    photographs = [_sample(int(test)), *(_photograph(name) for name in (TEST if test else TRAINING))]
    found = []
    for number in range(count):
        photograph = photographs[number % len(photographs)]
        top, left = (int(random.integers(photograph.shape[axis] - size + 1)) for axis in (1, 2))
        found.append(photograph[:, top : top + size, left : left + size])
    return torch.stack(found)


def peak_ratio(rows: np.ndarray) -> float:
    """The peak signal-to-noise ratio in dB; rows are the mean squared errors of images from 0 to 1."""
    return float(-10 * np.log10(rows.mean()))


def _restoration(model: nn.Module, x: torch.Tensor, seen: torch.Tensor, wanted: torch.Tensor) -> Task:
    def parts(results: Sequence[Outputs]) -> np.ndarray:
        found = np.concatenate([each[0] for each in results]).astype(np.float64).clip(0, 1)
        return ((found - wanted.numpy()) ** 2).mean((1, 2, 3))

    test: list[Call] = [(image[None],) for image in seen]
    return Task(model, [(image[None],) for image in x[:64]], test, parts, peak_ratio, test[0])


def _distance(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(model(x), y)


class Denoiser(nn.Module):
    """A U-Net that finds the noise of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = UNet(3, 3, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the images without their noise."""
        return x - self.noise(x)


def denoising(epochs: int = 8) -> Task:
    """A U-Net that removes noise with a deviation of 25 of 255."""

    def noisy(images: torch.Tensor, seed: int) -> torch.Tensor:
        return images + torch.randn(images.shape, generator=torch.Generator().manual_seed(seed)) * (25 / 255)

    y, wanted = crops(900, 64, 1), crops(150, 64, 2, test=True)
    x, seen = noisy(y, 3), noisy(wanted, 4)
    return _restoration(trained("denoising", Denoiser, (x, y), epochs, _distance, batch=16), x, seen, wanted)


class SuperResolution(nn.Module):
    """Residual blocks without norms at the low resolution, then twice the size, beside a bilinear interpolation."""

    def __init__(self, width: int = 24, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))
            for _ in range(depth)
        )
        self.last = nn.Sequential(nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images of twice the size."""
        found = self.first(x)
        for block in self.blocks:
            found = found + block(found)
        return self.last(found) + functional.interpolate(x, scale_factor=2.0, mode="bilinear")


def super_resolution(epochs: int = 8) -> Task:
    """A small EDSR that doubles the size of an image."""
    y, wanted = crops(1200, 64, 5), crops(150, 64, 6, test=True)
    x, seen = functional.avg_pool2d(y, 2), functional.avg_pool2d(wanted, 2)
    model = trained("super-resolution", SuperResolution, (x, y), epochs, _distance, batch=16, rate=3e-3)
    return _restoration(model, x, seen, wanted)


# Detection: what the metric needs of an image is, for each class, how many boxes are there, and for each detection its
# score and whether it is a hit at each threshold.

_MOST, _THRESHOLDS = 12, 10  # detections of an image and a class; thresholds of COCO
_WIDTH = 1 + _MOST * (1 + _THRESHOLDS)


def _records() -> Records:
    found = records_of(metrics.mean_average_precision)
    assert found is not None
    return found


def detection_rows(
    results: Sequence[Outputs], targets: Sequence[dict[str, torch.Tensor]], classes: int = detector.CLASSES
) -> np.ndarray:
    """Return what :func:`mean_precision` needs of each image."""
    rows = np.zeros((len(results), classes, _WIDTH))
    for row, result, target in zip(rows, results, targets, strict=True):
        there = {key: value[None] for key, value in target.items()}
        for match in _records().of_batch(tuple(result), there):
            count = min(_MOST, len(match.scores))
            row[match.label, 0] = match.there
            cells = row[match.label, 1:].reshape(_MOST, 1 + _THRESHOLDS)
            cells[:count, 0] = match.scores[:count]
            cells[:count, 1:] = match.hits[:, :count].T
    return rows.reshape(len(rows), -1)


def mean_precision(rows: np.ndarray) -> float:
    """The mean average precision as COCO defines it; an empty place is a miss after all detections."""
    classes = []
    for label, cells in enumerate(rows.reshape(len(rows), -1, _WIDTH).swapaxes(0, 1)):
        places = cells[:, 1:].reshape(-1, 1 + _THRESHOLDS)
        scores, hits = places[:, 0], places[:, 1:].T > 0
        classes.append(SimpleNamespace(label=label, there=cells[:, 0].sum(), scores=scores, hits=hits))
    return float(_records().score([classes]))


def detection() -> Task:
    """A detector with decoding and non-maximum suppression in its graph: shapes on photographs."""
    make = lambda: detector.Detector(detector.Backbone())  # noqa: E731
    train = lambda model: model.backbone.load_state_dict(detector.trained().state_dict())  # noqa: E731
    model = kept("detector", make, train)
    seen, targets = detector.scenes(200, seed=2)
    calibration = [(image[None],) for image in detector.scenes(64, seed=3)[0]]
    test: list[Call] = [(image[None],) for image in seen]
    return Task(model, calibration, test, lambda results: detection_rows(results, targets), mean_precision, test[0])
