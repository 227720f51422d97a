"""Find the logits in a model's output, and the targets that fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prepbench.checks import described
from prepbench.errors import InputError

IGNORED_CLASS = -100
"""Targets of this value are left out, as in ``torch.nn.functional.cross_entropy``."""


def logits_of(output: Any) -> torch.Tensor:
    """Return the logits in a model's output: itself, its ``logits``, its only tensor, or the first element of a
    tuple.
    """
    logits = named_logits(output)
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


def named_logits(output: Any) -> torch.Tensor | None:
    """Return the ``logits`` of an output, if it has any."""
    value = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    return value if isinstance(value, torch.Tensor) else None


def scores_and_classes(output: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores with the classes in the last dimension (or predictions), and class numbers.

    Raises:
        InputError: the shapes do not fit each other.
    """
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
