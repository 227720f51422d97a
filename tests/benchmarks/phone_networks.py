"""Networks for phones as cases for peers: with random weights, or trained on images of digits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from tests.benchmarks.compile_models import MODELS, Case, build

NETWORKS = ("mobilenetv2", "efficientnet")
WEIGHTS = ("random", "trained")
PIXELS, LEARNT, BATCH = 64, 1200, 32
EPOCHS = 3


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images of scikit-learn's digits, enlarged, in an order that mixes writers; and what they show."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    large = F.interpolate(images, size=(PIXELS, PIXELS), mode="bilinear", align_corners=False)
    return large.expand(-1, 3, -1, -1)[order].contiguous(), torch.tensor(found.target)[order]


def train(network: str, folder: Path) -> None:
    """Train a network on the first of the digits, and write its weights."""
    torch.manual_seed(0)
    (images, labels), model = digits(), MODELS[network]()
    _begin(model)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    steps = EPOCHS * (LEARNT // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps + 1)
    model.train()
    for _ in range(EPOCHS):
        for picked in torch.randperm(LEARNT).split(BATCH)[: LEARNT // BATCH]:
            optimizer.zero_grad()
            F.cross_entropy(model(images[picked]), labels[picked]).backward()
            optimizer.step()
            schedule.step()
    _refit_batch_norms(model, images)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, folder / f"{network}.st")


def _begin(model: nn.Module) -> None:
    """Weights that keep the scale of what they multiply: with those of transformers' EfficientNet, a deviation of 0.02
    also in batch norms, activations fall below the epsilon of batch norms, and nothing is learnt.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_in")
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()


def _refit_batch_norms(model: nn.Module, images: torch.Tensor) -> None:
    """Statistics of the finished weights: those of a short training lag behind it."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for part in images[:LEARNT].split(100):
            model(part)


def case(network: str, weights: str, folder: Path) -> Case:
    """A network, and what it is given; ``folder`` has the trained weights, or gets them."""
    if weights == "random":
        return build(network)
    if not (folder / f"{network}.st").exists():
        train(network, folder)
    model = MODELS[network]()
    model.load_state_dict(load_file(folder / f"{network}.st"))
    images, _ = digits()
    calibration = [(part,) for part in images[:32].split(8)]
    evaluation = [(image[None],) for image in images[LEARNT : LEARNT + 16]]
    return Case(model.eval(), ("x",), [(images[:1],), (images[1:3],)], calibration, evaluation, transformer=False)


def accuracy(model: nn.Module) -> float:
    """On images that no training saw."""
    right = count = 0
    with torch.no_grad():
        for images, labels in unseen():
            right, count = right + int((model(images).argmax(-1) == labels).sum()), count + len(labels)
    return right / count


def unseen() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images that no training saw, with labels."""
    images, labels = digits()
    for part in torch.arange(LEARNT, len(labels)).split(BATCH):
        if len(part) == BATCH:
            yield images[part], labels[part]
