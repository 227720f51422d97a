"""Metrics of tasks: classes of unequal frequency, segmentation, images, speech, regression and verification.

What the package torchmetrics has is computed by it. Keywords are given with ``functools.partial``, and then a metric
is still taken over all the data, as its docstring says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing
import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_count, described
from prepbench.errors import InputError, SettingsError
from prepbench.measure.language_metrics import IGNORED_CLASS, LogitWatch, scores_and_classes, taken
from prepbench.packages import imported
from prepbench.running.metric_facts import FACTS, TOTALS, ByKeywords, Facts, Records, Totals

_AVERAGES = ("macro", "micro", "weighted", "binary")


def f1(
    output: Any, target: Any, *, average: str = "macro", classes: int | None = None, ignored: int = IGNORED_CLASS
) -> float:
    """F1 score: the harmonic mean of precision and recall, between 0 and 1; of several classes their mean.

    As the ``metric`` of :func:`prepbench.compare`, hits and misses are counted over all the data first. Needs
    torchmetrics.

    Args:
        output: logits or predicted classes, as :func:`accuracy` takes them.
        target: class numbers, as :func:`accuracy` takes them.
        average: over the classes that occur: ``"macro"`` counts each alike, ``"weighted"`` by its number of targets,
            ``"micro"`` counts hits of all together, and ``"binary"`` takes class 1 alone.
        classes: how many there are; by default as many as there are logits, or the largest number and one more.
        ignored: the target that is not counted.

    Returns:
        The score.

    Raises:
        InputError: the shapes do not fit each other, or a number is no class.
        SettingsError: an unknown average.
        MissingPackageError: torchmetrics is not installed.

    Example:
        >>> round(f1(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 0])), 3)
        0.733
        >>> import functools
        >>> of_class_1 = functools.partial(f1, average="binary")
        >>> of_class_1(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, 1, 0]))
        0.8
    """
    return taken(_f1_totals(average, classes, ignored), output, target)


def _f1_totals(average: str = "macro", classes: int | None = None, ignored: int = IGNORED_CLASS) -> Totals:
    if average not in _AVERAGES:
        names = ", ".join(map(repr, _AVERAGES))
        raise SettingsError(f"average must be one of {names}, got {described(average)}. Leave it out for 'macro'.")

    def score(sums: torch.Tensor) -> torch.Tensor:
        _check_counted(sums, ignored)
        hits, wrong, missed = sums.unbind(-1)
        if average == "micro":
            hits, wrong, missed = (each.sum(-1, keepdim=True) for each in (hits, wrong, missed))
        elif average == "binary":
            hits, wrong, missed = (each[..., 1:2] for each in (hits, wrong, missed))
        found = 2 * hits / (2 * hits + wrong + missed).clamp(min=1)
        weights = hits + missed if average == "weighted" else (hits + wrong + missed > 0).double()
        return (found * weights).sum(-1) / weights.sum(-1).clamp(min=1)

    return Totals(
        lambda output, target: _counts("f1", output, target, classes, ignored),
        score,
        watch=lambda: LogitWatch(ignored),
    )


def mean_iou(output: Any, target: Any, *, classes: int | None = None, ignored: int = IGNORED_CLASS) -> float:
    """Mean intersection over union of a segmentation, over the classes that occur, between 0 and 1.

    As the ``metric`` of :func:`prepbench.compare`, pixels are counted over all the data first. Needs torchmetrics.

    Args:
        output: logits ``(batch, classes, height, width)``, one logit ``(batch, 1, height, width)``, or predicted
            classes ``(batch, height, width)``, as :func:`accuracy` takes them.
        target: class numbers ``(batch, height, width)``.
        classes: how many there are; by default as many as there are logits, or the largest number and one more.
        ignored: the target that is not counted, such as 255.

    Returns:
        The mean.

    Raises:
        InputError: the shapes do not fit each other, or a number is no class.
        MissingPackageError: torchmetrics is not installed.

    Example:
        >>> round(mean_iou(torch.tensor([[[0, 1], [1, 1]]]), torch.tensor([[[0, 1], [0, 1]]])), 3)
        0.583
    """
    return taken(_iou_totals(classes, ignored), output, target)


def _iou_totals(classes: int | None = None, ignored: int = IGNORED_CLASS) -> Totals:
    def score(sums: torch.Tensor) -> torch.Tensor:
        _check_counted(sums, ignored)
        union = sums.sum(-1)
        return (sums[..., 0] / union.clamp(min=1)).sum(-1) / (union > 0).sum(-1).clamp(min=1)

    return Totals(
        lambda output, target: _counts("mean_iou", output, target, classes, ignored),
        score,
        watch=lambda: LogitWatch(ignored),
    )


def _counts(name: str, output: Any, target: Any, classes: int | None, ignored: int) -> torch.Tensor:
    """Return, for each class, how often it was found, wrongly found, and missed: shape (classes, 3)."""
    functional = _torchmetrics("classification", name)
    scores, wanted = scores_and_classes(output, target, ignored)
    found = scores.argmax(-1) if scores.dim() > wanted.dim() else scores
    counted = wanted != ignored
    found, wanted = found[counted].long(), wanted[counted].long()
    if not wanted.numel():
        return torch.zeros(1, 3, dtype=torch.float64)
    largest = int(torch.maximum(found.max(), wanted.max())) + 1
    number = classes or (scores.shape[-1] if scores.dim() > counted.dim() else largest)
    if largest > number or int(torch.minimum(found.min(), wanted.min())) < 0:
        raise InputError(
            f"classes reach from {int(torch.minimum(found.min(), wanted.min()))} to {largest - 1}, and there are "
            f"{number} of them: expected 0 to {number - 1}. Give classes=, or ignored= for a number that is no class"
        )
    stats = functional.multiclass_stat_scores(found, wanted, max(2, number), average=None, validate_args=False)
    return torch.stack([stats[:, 0], stats[:, 1], stats[:, 3]], -1).double()


def _check_counted(sums: torch.Tensor, ignored: int) -> None:
    if not bool(sums.any()):
        raise InputError(f"no target to count: all are {ignored}, or the data is empty. Give batches with targets")


def psnr(output: Any, target: Any, *, data_range: float = 1.0) -> float:
    """Peak signal-to-noise ratio of images in dB: ``10 log10(data_range**2 / mean squared error)``.

    As the ``metric`` of :func:`prepbench.compare` the error is that over all pixels of the data. ``inf`` for images
    that equal their targets.

    Args:
        output: images of any shape, such as ``(batch, channels, height, width)``.
        target: images of the same shape.
        data_range: the difference between white and black, such as 255.

    Returns:
        The ratio in dB.

    Raises:
        InputError: the shapes differ.
        SettingsError: ``data_range`` is not a positive number.

    Example:
        >>> round(psnr(torch.full((1, 1, 2, 2), 0.5), torch.full((1, 1, 2, 2), 0.6)), 2)
        20.0
    """
    return taken(_psnr_totals(data_range), output, target)


def _psnr_totals(data_range: float = 1.0) -> Totals:
    _check_range(data_range)

    def sums(output: Any, target: Any) -> tuple[float, float]:
        found, wanted = _alike(output, target)
        return float((found - wanted).square().sum()), float(found.numel())

    return Totals(sums, lambda totals: 10 * (data_range**2 * totals[..., 1] / totals[..., 0]).log10(), of_classes=False)


def ssim(output: Any, target: Any, *, data_range: float = 1.0) -> float:
    """Structural similarity of images, at most 1, the mean over the images.

    Z. Wang, A. C. Bovik, H. R. Sheikh and E. P. Simoncelli, "Image quality assessment: from error visibility to
    structural similarity", 2004: a Gaussian window of 11 pixels, in which ``sigma`` is 1.5. Needs torchmetrics.

    Args:
        output: images ``(batch, channels, height, width)`` of at least 11 pixels each way.
        target: images of the same shape.
        data_range: the difference between white and black, such as 255.

    Returns:
        The similarity.

    Raises:
        InputError: the shapes differ, or these are no images of this size.
        SettingsError: ``data_range`` is not a positive number.
        MissingPackageError: torchmetrics is not installed.

    Example:
        >>> image = torch.rand(1, 3, 16, 16)
        >>> round(ssim(image, image), 3)
        1.0
    """
    _check_range(data_range)
    found, wanted = _alike(output, target)
    if found.dim() != 4 or min(found.shape[2:]) < 11:
        raise InputError(
            f"ssim: images of shape {tuple(found.shape)}: expected (batch, channels, height, width), with at least 11 "
            "pixels each way. Add a dimension with images[None], or use metrics.psnr for small ones"
        )
    similarity = _torchmetrics("image", "ssim").structural_similarity_index_measure
    return float(similarity(found, wanted, data_range=float(data_range)))


def word_error_rate(output: Any, target: Any, *, decode: Callable[[Any], Sequence[str]] | None = None) -> float:
    """Word error rate of transcripts: inserted, deleted and replaced words by the number of words; 0 at best.

    As the ``metric`` of :func:`prepbench.compare`, words are counted over all the data first. Needs torchmetrics.

    Args:
        output: one text for each sample; or with ``decode`` what the model returns, such as logits.
        target: one text for each sample; or tensors, which ``decode`` reads.
        decode: makes a list of texts of an output.

    Returns:
        The rate; more than 1 where there are more errors than words.

    Raises:
        InputError: these are no texts, their numbers differ, or no target has a word.
        SettingsError: ``decode`` is not callable.
        MissingPackageError: torchmetrics is not installed.

    Example:
        >>> word_error_rate(["the cat sat"], ["the cat sat down"])
        0.25
        >>> import functools
        >>> words = ["no", "yes"]
        >>> metric = functools.partial(word_error_rate, decode=lambda logits: [words[i] for i in logits.argmax(-1)])
        >>> metric(torch.tensor([[0.1, 0.9], [0.7, 0.3]]), ["yes", "yes"])
        0.5
    """
    return taken(_word_totals(decode), output, target)


def _word_totals(decode: Callable[[Any], Sequence[str]] | None = None) -> Totals:
    if decode is not None and not callable(decode):
        raise SettingsError(
            f"decode must be a function that makes a list of texts of an output, got {described(decode)}. Give e.g. "
            "decode=lambda logits: tokenizer.batch_decode(logits.argmax(-1))."
        )

    def sums(output: Any, target: Any) -> tuple[float, float]:
        found, wanted = _texts("output", output, decode), _texts("target", target, decode)
        if len(found) != len(wanted):
            raise InputError(f"{len(found)} texts and {len(wanted)} targets: give one target for each text")
        words = sum(len(text.split()) for text in wanted)
        if not words:
            return float(sum(len(text.split()) for text in found)), 0.0
        rate = _torchmetrics("text", "word_error_rate").word_error_rate(found, wanted)
        return float(round(float(rate) * words)), float(words)

    def score(totals: torch.Tensor) -> torch.Tensor:
        if not bool((totals[..., 1] > 0).any()):
            raise InputError("no target has a word: give transcripts with words")
        return totals[..., 0] / totals[..., 1]

    return Totals(sums, score, of_classes=False)


def _texts(what: str, value: Any, decode: Callable[[Any], Sequence[str]] | None) -> list[str]:
    def is_texts(one: Any) -> bool:
        return isinstance(one, list | tuple) and all(isinstance(text, str) for text in one)

    given = value if is_texts(value) or isinstance(value, str) or decode is None else decode(value)
    texts = [given] if isinstance(given, str) else given
    if not is_texts(texts):
        raise InputError(
            f"{what}: expected a list of texts, got {described(given)}. Give "
            "functools.partial(prepbench.metrics.word_error_rate, decode=...) with a function that makes texts"
        )
    return list(texts)


def correlation(output: Any, target: Any) -> float:
    """Pearson correlation of predicted numbers with the targets, between -1 and 1; of several columns the mean.

    As the ``metric`` of :func:`prepbench.compare` it is that over all samples of the data.

    Args:
        output: numbers ``(batch,)`` or ``(batch, columns)``.
        target: numbers of the same shape; a dimension of 1 more or less does not matter.

    Returns:
        The correlation.

    Raises:
        InputError: the shapes differ, or a column has one value only.

    Example:
        >>> round(correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 7.0])), 3)
        0.993
    """
    found = _correlation_score([_moments(output, target)])
    if math.isnan(found):
        raise InputError(f"correlation: {_CORRELATION.nothing}. Give samples that differ")
    return found


def _moments(output: Any, target: Any) -> torch.Tensor:
    """Return the number of rows of a batch, both means, and the sums of squares and products about them, by columns.

    About zero, the sums of numbers that are large beside their spread would hold little of it.
    """
    columns = []
    for value in (output, target):
        numbers = _tensor(value)
        columns.append((numbers[:, None] if numbers.dim() < 2 else numbers.flatten(1)).double())
    found, wanted = _alike(*columns)
    x, y = (each - each.mean(0) for each in (found, wanted))
    count = torch.full_like(x[0], len(x))
    return torch.stack([count, found.mean(0), wanted.mean(0), (x * x).sum(0), (y * y).sum(0), (x * y).sum(0)])


def _correlation_score(moments: Sequence[torch.Tensor]) -> float:
    count, mean_x, mean_y, xx, yy, xy = torch.stack(list(moments), 1)
    mean_of_x, mean_of_y = ((count * mean).sum(0) / count.sum(0) for mean in (mean_x, mean_y))
    dx, dy = mean_x - mean_of_x, mean_y - mean_of_y
    square_x, square_y = (xx + count * dx * dx).sum(0), (yy + count * dy * dy).sum(0)
    for square, mean in ((square_x, mean_of_x), (square_y, mean_of_y)):
        rounding = (4 * torch.finfo(torch.float64).eps * mean).square() * count.sum(0)
        if bool((square <= rounding).any()):
            return math.nan
    products = (xy + count * dx * dy).sum(0)
    return float((products / square_x.sqrt() / square_y.sqrt()).clamp(-1, 1).mean())


_CORRELATION = Records(_moments, _correlation_score, "the outputs or the targets of a column are all alike")


def equal_error_rate(output: Any, target: Any) -> float:
    """Equal error rate of a verification: the rate of false alarms at the threshold where as many are missed.

    Between 0 and 1, and 0 at best. As the ``metric`` of :func:`prepbench.compare` it is that of all scores of the
    data. Needs torchmetrics.

    Args:
        output: a score for each sample, ``(batch,)`` or ``(batch, 1)``, high for class 1; or logits ``(batch, 2)``.
        target: 1 or 0 for each sample, ``(batch,)``.

    Returns:
        The rate.

    Raises:
        InputError: the shapes do not fit each other, or only one class occurs.
        MissingPackageError: torchmetrics is not installed.

    Example:
        >>> equal_error_rate(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.5
    """
    found = _error_rate([_trials(output, target)])
    if math.isnan(found):
        raise InputError(f"equal_error_rate: {_EQUAL_ERROR_RATE.nothing}. Give samples of both")
    return found


def _trials(output: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scores, classes = _tensor(output).double(), _tensor(target)
    if scores.dim() == 2 and scores.shape[1] == 2:
        scores = scores[:, 1] - scores[:, 0]
    scores = scores[:, 0] if scores.dim() == 2 and scores.shape[1] == 1 else scores
    if (
        scores.dim() != 1
        or classes.flatten().shape != scores.shape
        or not bool(((classes == 0) | (classes == 1)).all())
    ):
        raise InputError(
            f"equal_error_rate: scores of shape {tuple(scores.shape)} and targets of shape {tuple(classes.shape)}: "
            "expected one score for each sample, and a target of 0 or 1 for each. Several scores go into one batch"
        )
    return scores, classes.flatten().long()


def _error_rate(trials: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    scores = torch.cat([each for each, _ in trials])
    classes = torch.cat([each for _, each in trials])
    if len(classes.unique()) < 2:
        return math.nan
    # ranks, because the package takes the sigmoid of numbers beyond 0 and 1, where large scores would be ties
    ranks = scores.unique(return_inverse=True)[1].double() / len(scores)
    return float(_torchmetrics("classification", "equal_error_rate").binary_eer(ranks, classes))


_EQUAL_ERROR_RATE = Records(_trials, _error_rate, "it holds samples of one class only, and needs both")


def _torchmetrics(part: str, name: str) -> Any:
    return imported(f"torchmetrics.functional.{part}", f"prepbench.metrics.{name}", "'prepbench[metrics]'")


def _tensor(value: Any) -> torch.Tensor:
    leaves = [value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value)
    if len(leaves) == 1 and isinstance(leaves[0], torch.Tensor):
        return leaves[0].detach().cpu()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"expected one tensor or numbers, got {described(value)}. Wrap the metric to select"
        ) from error


def _alike(output: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    found, wanted = _tensor(output).double(), _tensor(target).double()
    if found.shape != wanted.shape or not found.numel():
        raise InputError(
            f"an output of shape {tuple(found.shape)} and a target of shape {tuple(wanted.shape)}: expected equal "
            "shapes. Reshape one of them in the model or the data"
        )
    return found, wanted


def _check_range(data_range: Any) -> None:
    is_number = isinstance(data_range, int | float) and not isinstance(data_range, bool)
    if not is_number or not 0 < data_range < math.inf:
        raise SettingsError(
            f"data_range must be a positive number, got {described(data_range)}. Give the difference between white and "
            "black, e.g. 1.0 or 255."
        )


for _metric, _facts, _how in (
    (f1, Facts("F1", low=0, high=1), ByKeywords(_f1_totals)),
    (mean_iou, Facts("mean IoU", low=0, high=1), ByKeywords(_iou_totals)),
    (psnr, Facts("PSNR", "dB"), ByKeywords(_psnr_totals)),
    (ssim, Facts("SSIM", low=-1, high=1), None),
    (word_error_rate, Facts("word error rate", low=0, higher_is_better=False), ByKeywords(_word_totals)),
    (correlation, Facts("correlation", low=-1, high=1), _CORRELATION),
    (equal_error_rate, Facts("equal error rate", low=0, high=1, higher_is_better=False), _EQUAL_ERROR_RATE),
):
    setattr(_metric, FACTS, _facts)
    setattr(_metric, TOTALS, _how)


# Mean average precision of detected boxes, by the rules of COCO.


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
