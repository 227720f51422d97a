"""Metrics: functions of ``(output, target)`` that give one number for one batch.

:func:`prepbench.compare` averages them over batches, weighted by batch size. Any function of the same form is a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.checks import check_count, described
from prepbench.errors import InputError
from prepbench.running.sqnr import Powers, powers

Metric = Callable[[Any, Any], Any]

IGNORED_CLASS = -100
"""Targets of this value are left out, as in ``torch.nn.functional.cross_entropy``."""


def accuracy(output: Any, target: Any) -> float:
    """Share of predictions whose largest logit is the target's class, between 0 and 1.

    Args:
        output: logits ``(batch, classes)``, ``(batch, tokens, classes)`` or ``(batch, classes, height, width)``, or
            integer predictions of the target's shape; also an object or dict holding them as ``logits``, or a
            tuple that starts with them. Where both the last dimension and dimension 1 fit, the last one is the classes.
        target: class numbers, or class scores of the logits' shape; entries of ``-100`` are not counted.

    Raises:
        InputError: the shapes do not fit each other.

    Example:
        >>> accuracy(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
        0.5
    """
    scores, classes = _scores_and_classes(output, target)
    predicted = scores.argmax(-1) if scores.dim() > classes.dim() else scores
    counted = classes != IGNORED_CLASS
    return _share((predicted == classes)[counted])


def top_k(k: int) -> Metric:
    """A metric: share of samples whose class is among the ``k`` largest logits, between 0 and 1.

    Example:
        >>> top_k(2)(torch.tensor([[0.1, 0.5, 0.4]]), torch.tensor([2]))
        1.0
    """
    check_count("k", k, 1)

    def metric(output: Any, target: Any) -> float:
        scores, classes = _scores_and_classes(output, target)
        if scores.dim() == classes.dim():
            raise InputError(
                f"top_{k} needs logits, got predictions of shape {tuple(scores.shape)}; use metrics.accuracy."
            )
        best = scores.topk(min(k, scores.shape[-1]), dim=-1).indices
        counted = classes != IGNORED_CLASS
        return _share((best == classes.unsqueeze(-1)).any(-1)[counted])

    metric.__name__ = metric.__qualname__ = f"top_{k}"
    return metric


def sqnr(output: Any, target: Any) -> float:
    """Signal-to-quantization-noise ratio of ``output`` against the reference output ``target``, in dB.

    ``10 log10(sum(target**2) / sum((target - output)**2))`` over ``logits`` where the output has them, else over all
    floating-point tensors in it. ``inf`` when both are equal, ``-inf`` when only one of the two is NaN or infinite
    somewhere. As the ``metric`` of :func:`prepbench.compare` it is taken over all the data, not averaged over batches.

    Raises:
        InputError: the reference has no floating-point tensor, or the shapes differ.

    Example:
        >>> round(sqnr(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])), 1)
        27.3
    """
    return output_powers(output, target).decibels


def output_powers(output: Any, target: Any) -> Powers:
    """The power of the reference output ``target`` and of the noise in ``output``; raises what :func:`sqnr` raises."""
    expected = signal_tensors(target)
    if not expected:
        raise InputError(
            "the reference output holds no floating-point tensor. Give a metric that understands this output"
        )
    return powers(expected, signal_tensors(output))


def signal_tensors(output: Any) -> list[torch.Tensor]:
    """``[logits]`` where the output has them, else its floating-point tensors in pytree order."""
    logits = _named_logits(output)
    leaves = [logits] if logits is not None else pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]


def logits_of(output: Any) -> torch.Tensor:
    """The logits in a model's output: itself, its ``logits``, its only tensor, or the first element of a tuple."""
    logits = _named_logits(output)
    if logits is not None:
        return logits
    if isinstance(output, torch.Tensor):
        return output
    values = list(output.values()) if isinstance(output, Mapping) else output
    tensors = [v for v in values if isinstance(v, torch.Tensor)] if isinstance(values, list | tuple) else []
    if tensors and (isinstance(output, tuple | list) or len(tensors) == 1):
        return tensors[0]
    keys = f" with the keys {sorted(map(str, output))}" if isinstance(output, Mapping) else ""
    raise InputError(
        f"no logits in an output of type {type(output).__name__}{keys}. Wrap the metric: "
        "metric=lambda output, target: prepbench.metrics.accuracy(output['...'], target)"
    )


def _named_logits(output: Any) -> torch.Tensor | None:
    value = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return value if isinstance(value, torch.Tensor) else None


def _scores_and_classes(output: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores with the classes in the last dimension (or predictions), and class numbers."""
    scores = logits_of(output).detach()
    try:
        classes = torch.as_tensor(target).detach().to(scores.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"target must be a tensor or numbers, got {described(target)}. Give class numbers.") from error
    if scores.shape == classes.shape:
        if not scores.is_floating_point():
            return scores, classes
        if classes.is_floating_point():
            return scores, classes.argmax(-1)
    if scores.dim() >= 2 and scores.shape[:-1] == classes.shape:
        return scores, classes
    if scores.dim() > 2 and scores.shape[:1] + scores.shape[2:] == classes.shape:
        return scores.movedim(1, -1), classes
    raise InputError(
        f"logits of shape {tuple(scores.shape)} and a target of shape {tuple(classes.shape)} do not fit: expected "
        "logits (batch, classes) with targets (batch,); of larger ones, the classes in the last dimension or in 1"
    )


def _share(correct: torch.Tensor) -> float:
    if correct.numel() == 0:
        raise InputError(f"no target to count: all are {IGNORED_CLASS}, or the batch is empty")
    return float(correct.double().mean())
