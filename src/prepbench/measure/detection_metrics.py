"""Mean average precision of detected boxes, by the rules of COCO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import numpy.typing
import torch

from prepbench.checks import check_count, described
from prepbench.errors import InputError, SettingsError
from prepbench.measure.metric_facts import FACTS, TOTALS, ByKeywords, Facts, Records

Array = numpy.typing.NDArray[Any]

_THRESHOLDS = tuple(float(value) for value in numpy.linspace(0.5, 0.95, 10))
_RECALLS = numpy.linspace(0, 1, 101)
_FORM = (
    "for each image a dict of 'boxes' (n, 4) as left, top, right, bottom, 'labels' (n,) and for outputs 'scores' (n,); "
    "or one tuple (boxes (batch, n, 4), scores (batch, n), labels (batch, n)), in which a label below 0 is no box"
)


def mean_average_precision(
    output: Any, target: Any, *, thresholds: Sequence[float] = _THRESHOLDS, max_detections: int = 100
) -> float:
    """Mean average precision of detected boxes, between 0 and 1, as COCO defines it.

    The average precision of a class is the area under precision by recall, read at 101 recalls; the mean is over the
    classes that occur and over the thresholds of intersection over union (T.-Y. Lin and others, "Microsoft COCO:
    Common objects in context", 2014). As the ``metric`` of :func:`prepbench.compare`, the detections of all the data
    are ranked together. Images without detections or without boxes are counted as such. The marks for crowds and the
    classes of size of COCO are not read.

    Args:
        output: the detections: for each image a dict of ``boxes`` (n, 4) as left, top, right, bottom, ``scores`` (n,)
            and ``labels`` (n,); or one tuple or dict of tensors with a leading batch dimension, in which a label below
            0 is no detection.
        target: the boxes that are there, in one of these forms, without scores.
        thresholds: of the intersection over union at which a box counts as found; ``(0.5,)`` is mAP at 0.5.
        max_detections: how many of an image and a class count, the best first.

    Returns:
        The mean.

    Raises:
        InputError: another form or other shapes, or no box is there at all.
        SettingsError: a threshold that does not lie between 0 and 1.

    Example:
        >>> found = torch.tensor([[0.0, 0.0, 10.0, 10.0]]), torch.tensor([0.9]), torch.tensor([1])
        >>> there = {"boxes": torch.tensor([[0.0, 0.0, 10.0, 8.0]]), "labels": torch.tensor([1])}
        >>> round(mean_average_precision(found, there), 2)  # an intersection over union of 0.8
        0.7
    """
    records = _records(thresholds, max_detections)
    found = records.score([records.of_batch(output, target)])
    if math.isnan(found):
        raise InputError(f"mean_average_precision: {records.nothing}. Give images with boxes")
    return found


@dataclass(frozen=True)
class _Image:
    """The boxes of one image."""

    boxes: Array
    labels: Array
    scores: Array


@dataclass(frozen=True)
class _Matches:
    """The detections of a class in one image: scores, whether each is a hit at each threshold, and the boxes there."""

    label: int
    scores: Array
    hits: Array
    there: int


def _records(thresholds: Sequence[float] = _THRESHOLDS, max_detections: int = 100) -> Records:
    check_count("max_detections", max_detections, 1)
    limits = numpy.asarray(thresholds, dtype=float).ravel()
    if not limits.size or not bool(((limits > 0) & (limits <= 1)).all()):
        raise SettingsError(
            f"thresholds must be numbers above 0 and up to 1, got {described(thresholds)}. Give e.g. (0.5,)."
        )

    def of_batch(output: Any, target: Any) -> list[_Matches]:
        found, there = _images("output", output, has_scores=True), _images("target", target, has_scores=False)
        if len(found) != len(there):
            raise InputError(
                f"detections of {len(found)} images and targets of {len(there)}: give one target for each image"
            )
        return [match for pair in zip(found, there, strict=True) for match in _matches(*pair, limits, max_detections)]

    return Records(of_batch, lambda kept: _mean([one for each in kept for one in each]), "no box is there to be found")


def _matches(found: _Image, there: _Image, limits: Array, most: int) -> list[_Matches]:
    result = []
    for label in numpy.union1d(found.labels, there.labels):
        mine, boxes = found.labels == label, there.boxes[there.labels == label]
        order = numpy.argsort(-found.scores[mine], kind="stable")[:most]
        overlaps = _overlaps(found.boxes[mine][order], boxes)
        result.append(_Matches(int(label), found.scores[mine][order], _hits(overlaps, limits), len(boxes)))
    return result


def _overlaps(boxes: Array, others: Array) -> Array:
    """Return the intersection over union of each pair, of shape (boxes, others)."""
    low = numpy.maximum(boxes[:, None, :2], others[None, :, :2])
    high = numpy.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = numpy.clip(high - low, 0, None).prod(-1)
    areas, other_areas = ((each[:, 2:] - each[:, :2]).prod(-1) for each in (boxes, others))
    union = areas[:, None] + other_areas[None] - shared
    result: Array = numpy.divide(shared, union, out=numpy.zeros_like(shared), where=union > 0)
    return result


def _hits(overlaps: Array, limits: Array) -> Array:
    """Return whether each detection finds a box that no better one has found, of shape (thresholds, detections)."""
    count, boxes = overlaps.shape
    hits = numpy.zeros((len(limits), count), dtype=bool)
    if not boxes:
        return hits
    is_free = numpy.ones((len(limits), boxes), dtype=bool)
    rows = numpy.arange(len(limits))
    for index, overlap in enumerate(overlaps):
        left = numpy.where(is_free, overlap[None], -1.0)
        best = boxes - 1 - left[:, ::-1].argmax(1)  # of equal ones the last, as in COCO's tools
        hits[:, index] = left[rows, best] >= numpy.minimum(limits, 1 - 1e-10)
        is_free[rows[hits[:, index]], best[hits[:, index]]] = False
    return hits


def _mean(matches: Sequence[_Matches]) -> float:
    by_label: dict[int, list[_Matches]] = {}
    for match in matches:
        by_label.setdefault(match.label, []).append(match)
    each = [_average_precision(same) for same in by_label.values() if any(one.there for one in same)]
    return float(numpy.mean(each)) if each else math.nan


def _average_precision(matches: Sequence[_Matches]) -> float:
    """Return the average precision of a class, the mean over the thresholds."""
    order = numpy.argsort(-numpy.concatenate([one.scores for one in matches]), kind="stable")
    hits = numpy.concatenate([one.hits for one in matches], 1)[:, order].cumsum(1)
    count = hits.shape[1]
    if not count:
        return 0.0
    recall = hits / sum(one.there for one in matches)
    precision = hits / numpy.arange(1, count + 1)
    envelope = numpy.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
    read = []
    for recalls, precisions in zip(recall, envelope, strict=True):
        places = numpy.searchsorted(recalls, _RECALLS, side="left")
        read.append(numpy.where(places < count, precisions[numpy.minimum(places, count - 1)], 0.0).mean())
    return float(numpy.mean(read))


# Read boxes from the forms that models and data have them in.


def _images(what: str, value: Any, *, has_scores: bool) -> list[_Image]:
    names = ("boxes", "scores", "labels") if has_scores else ("boxes", "labels")
    if isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value):
        return [image for one in value for image in _images(what, one, has_scores=has_scores)]
    if isinstance(value, Mapping):
        missing = [name for name in names if name not in value]
        if missing:
            keys = sorted(map(str, value))
            raise InputError(f"{what}: a dict with the keys {keys} lacks {', '.join(missing)}: expected {_FORM}")
        parts = [value[name] for name in names]
    elif isinstance(value, list | tuple) and len(value) == len(names):
        parts = list(value)
    else:
        raise InputError(f"{what}: expected {_FORM}, got {described(value)}. Wrap the metric to bring it to this form")
    return _split(what, [_array(what, name, part) for name, part in zip(names, parts, strict=True)], has_scores)


def _array(what: str, name: str, value: Any) -> Array:
    try:
        return numpy.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what}: {name} must be a tensor, got {described(value)}: expected {_FORM}") from error


def _split(what: str, parts: list[Array], has_scores: bool) -> list[_Image]:
    boxes, labels, scores = parts[0], parts[-1], parts[1] if has_scores else numpy.zeros_like(parts[-1])
    if not boxes.size and boxes.ndim < 2:
        boxes = boxes.reshape(0, 4)  # an empty list has no shape
    is_fitting = boxes.ndim in (2, 3) and boxes.shape[-1] == 4
    if not is_fitting or labels.shape != boxes.shape[:-1] or scores.shape != boxes.shape[:-1]:
        shapes = ", ".join(str(each.shape) for each in parts)
        raise InputError(f"{what}: tensors of the shapes {shapes}: expected {_FORM}")
    if bool(numpy.isnan(boxes).any()) or bool(numpy.isnan(scores).any()):
        raise InputError(f"{what}: a box or a score is NaN. Check the model on this image")
    if boxes.ndim == 2:
        boxes, labels, scores = boxes[None], labels[None], scores[None]
    return [
        _Image(box[label >= 0], label[label >= 0], score[label >= 0])
        for box, label, score in zip(boxes, labels, scores, strict=True)
    ]


setattr(mean_average_precision, FACTS, Facts("mAP", low=0, high=1))
setattr(mean_average_precision, TOTALS, ByKeywords(_records))
