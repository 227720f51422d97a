"""MTCNN as a whole: a pyramid of the image, three networks, their boxes, and suppression, in one graph.

After K. Zhang and others, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks", 2016.
Where the original keeps as many boxes as pass a limit, this one keeps a fixed number, so that it has one shape.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests import detector
from tests.board.entry import Call, Task
from tests.board.photographs import crops, detection_rows, mean_precision
from tests.board.shipped import FaceNetwork, FaceProposals, installed_file

SIZE = 96
SMALLEST, SHRINK = 20, 0.709  # the smallest face in pixels, and each level of the pyramid beside the one before
STRIDE, CELL = 2, 12  # of the first network: pixels between its answers, and what one answer sees
FIRST, SECOND = 48, 12  # boxes that enter the second and the third network
FACE = (0.045, -0.03, 0.8, 0.94)  # where MTCNN's boxes lie on average in the crops of faces, which are not centred
_ROUNDS = 8  # of suppression; longer chains of boxes, each hidden by the one before, do not occur
LIMITS = (0.6, 0.7, 0.7)  # of the scores of each network, as in the original


class FaceDetector(nn.Module):
    """Finds faces in images of shape (1, 3, 96, 96) with values from 0 to 1.

    Returns boxes (1, 12, 4), scores and labels (1, 12); a label of -1 is no detection.
    """

    def __init__(self) -> None:
        super().__init__()
        self.proposals = FaceProposals()
        self.refinement = FaceNetwork(((28, 3), (48, 3), (64, 2)), (576, 128), (2, 4))
        self.output = FaceNetwork(((32, 3), (64, 3), (64, 3), (128, 2)), (1152, 256), (2, 4, 10))
        for level, side in enumerate(_sides()):
            self.register_buffer(f"cells{level}", _cells(side), persistent=False)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return boxes, scores and labels."""
        image = image * (255 / 128) - 127.5 / 128
        boxes, scores = self.first(image)
        scores = torch.where(kept(boxes, scores, 0.7), scores, torch.zeros_like(scores))
        boxes, seen = _best(boxes, scores, FIRST)
        found, moves = self.refinement(parts(image, _square(boxes), 24))
        scores = torch.where((seen > LIMITS[0]) & (found[:, 1] > LIMITS[1]), found[:, 1], torch.zeros_like(seen))
        boxes = _moved(_square(boxes), moves)
        scores = torch.where(kept(boxes, scores, 0.7), scores, torch.zeros_like(scores))
        boxes, seen = _best(boxes, scores, SECOND)
        found, moves, _ = self.output(parts(image, _square(boxes), 48))
        scores = torch.where((seen > 0) & (found[:, 1] > LIMITS[2]), found[:, 1], torch.zeros_like(seen))
        boxes, scores = _best(_moved(_square(boxes), moves), scores, SECOND)
        is_found = kept(boxes, scores, 0.5) & (scores > 0)
        labels = torch.where(is_found, torch.zeros_like(scores), -torch.ones_like(scores)).long()
        return boxes[None], scores[None], labels[None]

    def first(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best boxes (48, 4) of all levels of the pyramid, and their scores."""
        boxes, scores = [], []
        for level, side in enumerate(_sides()):
            image = functional.interpolate(image, (side, side), mode="bilinear", align_corners=False)
            found, moves = self.proposals.maps(image)
            scores.append(found[0, 1].flatten())
            boxes.append(_moved(self.get_buffer(f"cells{level}"), moves[0].flatten(1).T))
        return _best(torch.cat(boxes), torch.cat(scores), FIRST * 2)


def _sides() -> Iterator[int]:
    side = SIZE * CELL / SMALLEST
    while side >= CELL:
        yield int(side + 1)
        side *= SHRINK


def _cells(side: int) -> torch.Tensor:
    """The part of the image that each answer of the first network sees, of shape (answers, 4)."""
    line = torch.arange(((side - 1) // 2) - 4).float() * STRIDE
    corners = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
    return torch.cat([corners, corners + CELL], -1) * (SIZE / side)


def _best(boxes: torch.Tensor, scores: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    chosen, places = scores.topk(count)
    return boxes[places], chosen


def _moved(boxes: torch.Tensor, moves: torch.Tensor) -> torch.Tensor:
    """Boxes whose sides are moved by parts of their sizes."""
    sizes = boxes[:, 2:] - boxes[:, :2]
    return boxes + moves * torch.cat([sizes, sizes], -1)


def _square(boxes: torch.Tensor) -> torch.Tensor:
    """Squares around the same centres that are as long as the longer sides."""
    centres, half = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]).amax(1, keepdim=True) / 2
    return torch.cat([centres - half, centres + half], -1)


def parts(image: torch.Tensor, boxes: torch.Tensor, side: int) -> torch.Tensor:
    """The parts of the image in the boxes, each of that size; black outside."""
    line = (torch.arange(side) + 0.5) / side
    sizes = (boxes[:, 2:] - boxes[:, :2])[:, None]
    places = (boxes[:, None, :2] + sizes * line[None, :, None]) * (2 / SIZE) - 1
    x = places[:, None, :, 0].expand(-1, side, -1)
    y = places[:, :, None, 1].expand(-1, -1, side)
    images = (image + 1).expand(len(boxes), -1, -1, -1)
    return functional.grid_sample(images, torch.stack([x, y], -1), align_corners=False) - 1


def kept(boxes: torch.Tensor, scores: torch.Tensor, overlap: float) -> torch.Tensor:
    """Which boxes no better one hides."""
    better = (scores[:, None] > scores[None]).float()
    hides = (detector.overlaps(boxes[None])[0] > overlap).float() * better
    left = torch.ones_like(scores)
    for _ in range(_ROUNDS):
        left = 1 - (hides * left[:, None]).amax(0)
    return left > 0


def scenes(count: int, seed: int, *, test: bool = False) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Grey photographs (count, 3, 96, 96) with faces on most of them, and the boxes of these."""
    images = np.load(installed_file("skimage", "data/lfw_subset.npy", "scikit-image"), allow_pickle=False)
    faces = torch.from_numpy(images[: len(images) // 2]).float()
    faces = faces[1::2] if test else faces[::2]
    random = np.random.default_rng(seed)
    found = crops(count, SIZE, seed, test=test).mean(1, keepdim=True)
    targets = []
    for image in found:
        boxes: list[list[int]] = []
        for _ in range(int(random.integers(0, 4))):
            side = int(random.integers(24, 48))
            left, top = (int(each) for each in random.integers(0, SIZE - side, 2))
            if any(left < b[2] and b[0] < left + side and top < b[3] and b[1] < top + side for b in boxes):
                continue
            face = faces[int(random.integers(len(faces)))][None, None]
            face = functional.interpolate(face, (side, side), mode="bilinear")
            image[:, top : top + side, left : left + side] = face[0]
            boxes.append([left, top, left + side, top + side])
        corners = torch.tensor(boxes).float().reshape(-1, 4)
        shares = torch.tensor(FACE) * (corners[:, 2:3] - corners[:, :1])
        there = corners[:, [0, 1, 0, 1]] + shares
        targets.append({"boxes": there, "labels": torch.zeros(len(boxes), dtype=torch.int64)})
    return found.expand(-1, 3, -1, -1).contiguous(), targets


def detection() -> Task:
    """The whole of MTCNN: where are faces?"""
    model = FaceDetector()
    for part, file in ((model.proposals, "pnet"), (model.refinement, "rnet"), (model.output, "onet")):
        path = installed_file("facenet_pytorch", f"data/{file}.pt", "facenet-pytorch")
        part.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    seen, targets = scenes(400, 1, test=True)
    calibration: list[Call] = [(image[None],) for image in scenes(64, 2)[0]]
    test: list[Call] = [(image[None],) for image in seen]
    rows = lambda results: detection_rows(results, targets, classes=1)  # noqa: E731
    return Task(model.eval(), calibration, test, rows, mean_precision, test[0])
