"""Metrics: functions of ``(output, target)`` that give one number for one batch.

:func:`prepbench.compare` averages them over batches, weighted by batch size, except for SQNR and those that say
otherwise, which are taken over all the data. Any function of the same form is a metric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_count
from prepbench.errors import InputError
from prepbench.measure.language_metrics import IGNORED_CLASS, LogitWatch, named_logits, scores_and_classes, taken
from prepbench.measure.language_metrics import bits_per_byte as bits_per_byte
from prepbench.measure.language_metrics import kl_divergence as kl_divergence
from prepbench.measure.language_metrics import perplexity as perplexity
from prepbench.measure.language_metrics import token_agreement as token_agreement
from prepbench.measure.task_metrics import correlation as correlation
from prepbench.measure.task_metrics import equal_error_rate as equal_error_rate
from prepbench.measure.task_metrics import f1 as f1
from prepbench.measure.task_metrics import mean_average_precision as mean_average_precision
from prepbench.measure.task_metrics import mean_iou as mean_iou
from prepbench.measure.task_metrics import psnr as psnr
from prepbench.measure.task_metrics import ssim as ssim
from prepbench.measure.task_metrics import word_error_rate as word_error_rate
from prepbench.objects.compare import Powers, powers
from prepbench.running.metric_facts import TOTALS, Totals

Metric = Callable[[Any, Any], Any]


def accuracy(output: Any, target: Any) -> float:
    """Share of predictions whose largest logit is the target's class, between 0 and 1.

    As the ``metric`` of :func:`prepbench.compare`, targets are counted over all the data first.

    Args:
        output: logits ``(batch, classes)``, ``(batch, tokens, classes)`` or ``(batch, classes, height, width)``, or
            integer predictions of the target's shape; also an object or dict holding them as ``logits``, or a
            tuple that starts with them. Where both the last dimension and dimension 1 fit, the last one is the classes.
            Of two classes also one logit for each target, ``(batch,)``, ``(batch, 1)`` or ``(batch, 1, height,
            width)``, which is above 0 for class 1; numbers that all lie between 0 and 1, in all the data and for both
            classes, are no logits.
        target: class numbers, or class scores of the logits' shape; entries of ``-100`` are not counted. For one logit
            0 or 1, with or without its dimension of 1.

    Returns:
        The share.

    Raises:
        InputError: the shapes do not fit each other, or one logit has a target other than 0 and 1.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
        >>> accuracy(torch.tensor([[2.5], [-0.5]]), torch.tensor([[1.0], [1.0]]))
        0.5
    """
    return taken(_ACCURACY, output, target)


def _accuracy_sums(output: Any, target: Any) -> tuple[float, float]:
    scores, classes = scores_and_classes(output, target)
    predicted = scores.argmax(-1) if scores.dim() > classes.dim() else scores
    return _hits(predicted == classes, classes)


def top_k(k: int) -> Metric:
    """Return a metric: the share of samples whose class is among the ``k`` largest logits, between 0 and 1.

    As the ``metric`` of :func:`prepbench.compare`, targets are counted over all the data first.

    Args:
        k: how many logits count; 1 is :func:`accuracy`.

    Returns:
        A function of logits and class numbers, as :func:`accuracy` takes them.

    Example:
        >>> top_k(2)(torch.tensor([[0.1, 0.5, 0.4]]), torch.tensor([2]))
        1.0
    """
    check_count("k", k, 1)

    def sums(output: Any, target: Any) -> tuple[float, float]:
        scores, classes = scores_and_classes(output, target)
        if scores.dim() == classes.dim():
            raise InputError(
                f"top_{k} needs logits, got predictions of shape {tuple(scores.shape)}; use metrics.accuracy."
            )
        best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
        return _hits((best == classes.unsqueeze(-1)).any(-1), classes)

    def metric(output: Any, target: Any) -> float:
        return taken(totals, output, target)

    totals = Totals(sums, _share, higher_is_better=True, watch=LogitWatch)
    metric.__name__ = metric.__qualname__ = f"top_{k}"
    setattr(metric, TOTALS, totals)
    return metric


def sqnr(output: Any, target: Any) -> float:
    """Signal-to-quantization-noise ratio of ``output`` against the reference output ``target``, in dB.

    ``10 log10(sum(target**2) / sum((target - output)**2))`` over ``logits`` where the output has them, else over all
    floating-point tensors in it. ``inf`` when both are equal, ``-inf`` when only one of the two is NaN or infinite
    somewhere. As the ``metric`` of :func:`prepbench.compare` it is taken over all the data, not averaged over batches.

    Args:
        output: a tensor, or anything that holds tensors.
        target: the reference's output, of the same structure.

    Returns:
        The ratio in dB.

    Raises:
        InputError: the reference has no floating-point tensor, or the shapes differ.

    Example:
        >>> round(sqnr(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])), 1)
        27.3
    """
    return output_powers(output, target).decibels


def output_powers(output: Any, target: Any) -> Powers:
    """Return the power of the reference output and of the noise.

    Args:
        output: a tensor, or anything that holds tensors.
        target: the reference's output, of the same structure.

    Returns:
        Both powers.

    Raises:
        InputError: as :func:`sqnr`.
    """
    expected = signal_tensors(target)
    if not expected:
        raise InputError(
            "the reference output holds no floating-point tensor. Give a metric that understands this output"
        )
    return powers(expected, signal_tensors(output))


def signal_tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output that :func:`sqnr` compares.

    Args:
        output: a tensor, or anything that holds tensors.

    Returns:
        ``[logits]`` where the output has them, else its floating-point tensors in pytree order.
    """
    logits = named_logits(output)
    leaves = [logits] if logits is not None else pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]


def _hits(are_right: torch.Tensor, classes: torch.Tensor) -> tuple[float, float]:
    """Return how many of the targets that count are hit, and how many there are."""
    counted = classes != IGNORED_CLASS
    return float((are_right & counted).sum()), float(counted.sum())


def _share(sums: torch.Tensor) -> torch.Tensor:
    if not bool(sums[..., 1].any()):
        raise InputError(f"no target to count: all are {IGNORED_CLASS}, or the data is empty. Give targets that count")
    return sums[..., 0] / sums[..., 1]


_ACCURACY = Totals(_accuracy_sums, _share, higher_is_better=True, watch=LogitWatch)
setattr(accuracy, TOTALS, _ACCURACY)
