"""A small anchor-free detector of shapes on photographs, trained in a minute, always to the same weights.

The photographs are those of scikit-learn. Boxes are left, top, right, bottom in pixels.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy
import torch
from torch import nn

SIZE, STRIDE, CLASSES = 64, 4, 3
CANDIDATES, OVERLAP, LEAST_SCORE = 48, 0.5, 0.05
_ROUNDS = 8  # of suppression; a chain of more boxes, each hidden by the one before, does not occur


class Backbone(nn.Module):
    """Scores and distances to the four sides for each cell of a grid, after Z. Tian and others, "FCOS", 2019."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_block(3, 16, 2), _block(16, 32, 2), _block(32, 32))
        self.deep = nn.Sequential(_block(32, 64, 2), _block(64, 64), nn.Conv2d(64, 32, 1))
        self.neck = _block(32, 48)
        self.scores = nn.Conv2d(48, CLASSES, 1)
        self.sides = nn.Conv2d(48, 4, 1)
        nn.init.constant_(self.scores.bias, -4.0)
        nn.init.constant_(self.sides.bias, 1.0)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shallow = self.stem(images)
        deep = nn.functional.interpolate(self.deep(shallow), scale_factor=2.0)
        found = self.neck(shallow + deep)
        return self.scores(found).flatten(2), self.sides(found).flatten(2)


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layers = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    return nn.Sequential(*layers)


def centres() -> torch.Tensor:
    """The centre of each cell, of shape (cells, 2)."""
    line = torch.arange(SIZE // STRIDE) * STRIDE + STRIDE / 2
    return torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)


def boxes_of(sides: torch.Tensor, middles: torch.Tensor) -> torch.Tensor:
    """Boxes (batch, cells, 4) of the sides (batch, 4, cells)."""
    reach = nn.functional.softplus(sides).transpose(1, 2) * STRIDE
    return torch.cat([middles - reach[..., :2], middles + reach[..., 2:]], -1)


def overlaps(boxes: torch.Tensor) -> torch.Tensor:
    """Intersection over union of all pairs of boxes (batch, n, 4), of shape (batch, n, n)."""
    low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
    high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    return shared / (areas[:, :, None] + areas[:, None] - shared)


class Detector(nn.Module):
    """The detector with decoding, top-k and non-maximum suppression in its graph.

    Returns boxes (batch, candidates, 4), scores and labels (batch, candidates); a label of -1 is no detection.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("middles", centres())
        self.register_buffer("later", torch.ones(CANDIDATES, CANDIDATES).triu(1))

    def candidates(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores, sides = self.backbone(images)
        best, labels = scores.sigmoid().max(1)
        chosen, places = best.topk(CANDIDATES, 1)
        boxes = boxes_of(sides, self.middles)
        return boxes.gather(1, places[..., None].expand(-1, -1, 4)), chosen, labels.gather(1, places)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        boxes, scores, labels = self.candidates(images)
        same = (labels[:, :, None] == labels[:, None]).float()
        hides = (overlaps(boxes) > OVERLAP).float() * same * self.later
        kept = torch.ones_like(scores)
        for _ in range(_ROUNDS):  # what a kept box hides goes; what only such a box hides comes back
            kept = 1 - (hides * kept[..., None]).amax(1)
        is_found = (kept > 0) & (scores > LEAST_SCORE)
        return boxes, scores, torch.where(is_found, labels, torch.full_like(labels, -1))


def suppressed(boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The labels, with -1 for what a better box of the same class hides."""
    result = labels.clone()
    for image in range(len(boxes)):
        shared, kept = overlaps(boxes[image : image + 1])[0], []
        for index in range(boxes.shape[1]):
            hidden = any(
                bool(shared[other, index] > OVERLAP) and int(labels[image, other]) == int(labels[image, index])
                for other in kept
            )
            if hidden or float(scores[image, index]) <= LEAST_SCORE:
                result[image, index] = -1
            else:
                kept.append(index)
    return result


# Scenes: shapes over parts of photographs.


@functools.cache
def _photographs() -> list[torch.Tensor]:
    from sklearn.datasets import load_sample_images

    return [torch.tensor(image).permute(2, 0, 1).float() / 255 for image in load_sample_images().images]


def scenes(count: int, seed: int) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Images (count, 3, 64, 64), and the boxes and labels on each; every sixth or so has none."""
    chance = numpy.random.default_rng(seed)
    images, targets = [], []
    rows, columns = numpy.mgrid[:SIZE, :SIZE]
    for _ in range(count):
        photograph = _photographs()[chance.integers(2)]
        top, left = (int(chance.integers(0, photograph.shape[axis] - SIZE)) for axis in (1, 2))
        image = photograph[:, top : top + SIZE, left : left + SIZE].clone()
        boxes, labels = [], []
        for _ in range(int(chance.choice(4, p=[0.16, 0.28, 0.28, 0.28]))):
            half = chance.uniform(6, 14)
            x, y = chance.uniform(half, SIZE - half, 2)
            label = int(chance.integers(CLASSES))
            down, right = (rows + 0.5 - y) / half, (columns + 0.5 - x) / half
            inside = (
                down**2 + right**2 <= 1,
                numpy.maximum(abs(down), abs(right)) <= 1,
                (abs(right) <= (down + 1) / 2) & (abs(down) <= 1),
            )[label]
            colour = torch.tensor(chance.uniform(0, 1, (3, 1)), dtype=torch.float32)
            image[:, torch.tensor(inside)] = colour
            boxes.append([x - half, y - half, x + half, y + half])
            labels.append(label)
        images.append(image)
        targets.append(
            {"boxes": torch.tensor(boxes).float().reshape(-1, 4), "labels": torch.tensor(labels, dtype=torch.int64)}
        )
    return torch.stack(images), targets


def batches(count: int, seed: int, size: int = 16) -> list[tuple[torch.Tensor, list[dict[str, torch.Tensor]]]]:
    """Scenes as the data of a comparison."""
    images, targets = scenes(count, seed)
    return [(images[at : at + size], targets[at : at + size]) for at in range(0, count, size)]


# Training: focal loss for classes, and 1 - intersection over union for boxes.


@functools.cache
def trained(steps: int = 500) -> Backbone:
    """The detector's network, in eval mode; the same weights in every run on a machine."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Backbone()
        images, targets = scenes(1600, seed=1)
        assigned = [_assigned(target) for target in targets]
        classes, wanted = (torch.stack([each[part] for each in assigned]) for part in (0, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)
        middles = centres()
        for step in range(steps):
            picked = torch.arange(step * 32, step * 32 + 32) % len(images)
            loss = _loss(*model(images[picked]), classes[picked], wanted[picked], middles)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def _assigned(target: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """For each cell, the class of the smallest box whose middle part it is in (or -1), and that box."""
    middles = centres()
    classes, wanted = torch.full((len(middles),), -1), torch.zeros(len(middles), 4)
    areas = (target["boxes"][:, 2:] - target["boxes"][:, :2]).prod(1)
    for index in areas.argsort(descending=True).tolist():
        box = target["boxes"][index]
        middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
        inside = ((middles - middle).abs() <= half * 0.6).all(1)
        classes[inside], wanted[inside] = target["labels"][index], box
    return classes, wanted


def _loss(scores: torch.Tensor, sides: torch.Tensor, classes: torch.Tensor, wanted: torch.Tensor, middles: Any) -> Any:
    is_there = classes >= 0
    right = torch.zeros_like(scores).mT
    right[is_there] = nn.functional.one_hot(classes[is_there], CLASSES).float()
    logits = scores.mT
    entropy = nn.functional.binary_cross_entropy_with_logits(logits, right, reduction="none")
    focal = (entropy * (1 - (-entropy).exp()) ** 2 * (0.5 + right * 0.5)).sum()
    found = boxes_of(sides, middles)[is_there]
    box = wanted[is_there]
    shared = (torch.minimum(found[:, 2:], box[:, 2:]) - torch.maximum(found[:, :2], box[:, :2])).clamp(min=0).prod(1)
    areas = ((each[:, 2:] - each[:, :2]).prod(1) for each in (found, box))
    overlap = shared / (sum(areas) - shared)
    distance = nn.functional.smooth_l1_loss(found / STRIDE, box / STRIDE, reduction="none").mean(1)
    return (focal + (1 - overlap + 0.5 * distance).sum()) / is_there.sum().clamp(min=1)
