"""Mean average precision against a slow computation, word for word from COCO's rules."""

from __future__ import annotations

import functools
import random

import numpy
import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError, MetricError, SettingsError
from prepbench.measure.metrics import mean_average_precision

LIMITS = [0.5 + 0.05 * i for i in range(10)]
NOTHING = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long()}


def _overlap(a, b):
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height
    return width * height / both if both else 0.0


def _average_precision(found, there, label, limit):
    ranked = sorted(
        ((score, image, box) for image, boxes in enumerate(found) for box, score, own in boxes if own == label),
        key=lambda each: -each[0],
    )
    left = [[box for box, own in boxes if own == label] for boxes in there]
    count, hits, points = sum(map(len, left)), 0, []
    for rank, (_, image, box) in enumerate(ranked, start=1):
        best = max(left[image], key=lambda other: _overlap(box, other), default=None)
        if best is not None and _overlap(box, best) >= limit:
            left[image].remove(best)
            hits += 1
        points.append((hits / count, hits / rank))
    recalls = numpy.linspace(0, 1, 101)  # as COCO rounds them
    read = [max((p for recall, p in points if recall >= least), default=0.0) for least in recalls]
    return sum(read) / len(read)


def _expected(found, there, limits=LIMITS):
    labels = {label for boxes in there for _, label in boxes}
    each = [_average_precision(found, there, label, limit) for label in labels for limit in limits]
    return sum(each) / len(each)


def _scene(seed):
    """Some images: boxes that are there; detections near them, elsewhere and of other classes; images without any."""
    chance = random.Random(seed)

    def box():
        left, top = chance.uniform(0, 60), chance.uniform(0, 60)
        return (left, top, left + chance.uniform(5, 40), top + chance.uniform(5, 40))

    found, there = [], []
    for _ in range(12):
        boxes = [(box(), chance.randrange(3)) for _ in range(chance.randrange(5))]
        near = [(tuple(v + chance.gauss(0, 2) for v in b), own) for b, own in boxes for _ in range(chance.randrange(3))]
        near += [(box(), chance.randrange(4)) for _ in range(chance.randrange(3))]
        there.append(boxes)
        found.append([(b, chance.random(), own) for b, own in near])
    return found, there


def _dicts(boxes):
    result = {
        "boxes": torch.tensor([b for b, *_ in boxes], dtype=torch.float64).reshape(-1, 4),
        "labels": torch.tensor([each[-1] for each in boxes]).long(),
    }
    if (boxes and len(boxes[0]) == 3) or not boxes:
        result["scores"] = torch.tensor([each[1] for each in boxes], dtype=torch.float64) if boxes else torch.zeros(0)
    return result


def _padded(each, length=16):
    """Tensors with a batch dimension; rows without a box have the label -1."""
    boxes, labels = torch.zeros(len(each), length, 4).double(), torch.full((len(each), length), -1)
    scores = torch.full((len(each), length), 0.5).double()
    for image, one in enumerate(each):
        count = len(one["labels"])
        boxes[image, :count], labels[image, :count] = one["boxes"], one["labels"]
        if "scores" in one:
            scores[image, :count] = one["scores"]
    return boxes, scores, labels


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_mean_average_precision_of_coco(seed):
    found, there = _scene(seed)
    outputs, targets = [_dicts(each) for each in found], [_dicts(each) for each in there]
    expected = _expected(found, there)
    assert 0 < expected < 1
    assert mean_average_precision(outputs, targets) == pytest.approx(expected)
    boxes, scores, labels = _padded(outputs)
    target = _padded(targets)
    assert mean_average_precision((boxes, scores, labels), (target[0], target[2])) == pytest.approx(expected)
    at_half = functools.partial(mean_average_precision, thresholds=(0.5,))
    assert at_half(outputs, targets) == pytest.approx(_expected(found, there, [0.5]))


def test_a_comparison_ranks_the_detections_of_all_batches_together():
    found, there = _scene(3)
    outputs, targets = _padded([_dicts(each) for each in found]), [_dicts(each) for each in there]

    class Detector(torch.nn.Module):
        def forward(self, boxes, scores, labels):
            return boxes, scores, labels

    data = [(tuple(each[i : i + 1] for each in outputs), targets[i : i + 1]) for i in range(12)]
    result = pb.compare({"float32": Detector()}, data, metric=mean_average_precision, rounds=0)
    assert result.rows[0].metric == pytest.approx(_expected(found, there))
    assert result.metric == "mAP"
    low, high = result.rows[0].spread
    assert low < result.rows[0].metric < high


def test_images_without_detections_or_boxes_count():
    box = {"boxes": torch.tensor([[0.0, 0.0, 9.0, 9.0]]), "labels": torch.tensor([1])}
    hit, miss = {**box, "scores": torch.tensor([0.9])}, {**box, "scores": torch.tensor([0.95])}
    none = {**NOTHING, "scores": torch.zeros(0)}
    assert mean_average_precision([hit, none], [box, NOTHING]) == 1.0
    assert mean_average_precision([hit, miss], [box, NOTHING]) == 0.5  # the better one is false
    assert mean_average_precision([none, none], [box, NOTHING]) == 0.0
    assert mean_average_precision([none, hit], [box, box]) == pytest.approx(51 / 101)
    with pytest.raises(InputError, match="no box is there"):
        mean_average_precision([hit], [NOTHING])

    class Detector(torch.nn.Module):
        def forward(self, x):
            return torch.zeros(1, 0, 4), torch.zeros(1, 0), torch.zeros(1, 0)

    data = [(torch.zeros(1, 3), [NOTHING])]
    with pytest.raises(MetricError, match=r"no box is there.*Give more data"):
        pb.compare({"float32": Detector()}, data, metric=mean_average_precision, rounds=0)
    data += [(torch.zeros(1, 3), [box])]
    assert pb.compare({"float32": Detector()}, data, metric=mean_average_precision, rounds=0).rows[0].metric == 0.0


def test_only_the_best_detections_of_an_image_count():
    box = {"boxes": torch.tensor([[0.0, 0.0, 9.0, 9.0]]), "labels": torch.tensor([1])}
    boxes = torch.tensor([[20.0, 20.0, 29.0, 29.0], [0.0, 0.0, 9.0, 9.0]])
    found = boxes, torch.tensor([0.9, 0.5]), torch.tensor([1, 1])
    assert mean_average_precision(found, box) == 0.5
    assert functools.partial(mean_average_precision, max_detections=1)(found, box) == 0.0


BOXES, SCORES = torch.zeros(2, 4), torch.zeros(2)


@pytest.mark.parametrize(
    ("output", "target", "words"),
    [
        ({"boxes": BOXES, "labels": SCORES}, NOTHING, r"output.*\['boxes', 'labels'\] lacks scores"),
        ((BOXES, SCORES, torch.zeros(3)), NOTHING, r"\(2, 4\), \(2,\), \(3,\)"),
        ((torch.zeros(2, 5), SCORES, SCORES), NOTHING, r"\(2, 5\)"),
        (BOXES, NOTHING, "output: expected for each image a dict"),
        ((BOXES, SCORES, SCORES), [NOTHING, NOTHING], "1 images and targets of 2"),
        ((BOXES * float("nan"), SCORES, SCORES), NOTHING, "NaN"),
        (("a", SCORES, SCORES), NOTHING, "boxes must be a tensor, got 'a'"),
    ],
)
def test_wrong_forms_are_told(output, target, words):
    with pytest.raises(InputError, match=words):
        mean_average_precision(output, target)


@pytest.mark.parametrize("thresholds", [(), (0.0,), (1.5,)])
def test_thresholds_are_shares(thresholds):
    with pytest.raises(SettingsError, match="above 0 and up to 1"):
        mean_average_precision([], [], thresholds=thresholds)
