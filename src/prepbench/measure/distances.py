"""How far each row of an output is from the same row of the reference's: larger is farther, NaN counts as infinite."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from prepbench._torch_compat import pytree
from prepbench.measure import metrics
from prepbench.measure.language_metrics import totals_of
from prepbench.measure.logits import logits_of, scores_and_classes

TOKENS = 32
"""How many predictions of one row are kept."""
_CLASSES = 3
_ROUNDING = 1e-7
_VALUES = 6


@dataclass(frozen=True)
class Measure:
    """One way to say how far rows are apart.

    Attributes:
        label: its name and unit, as a heading.
        distances: from an output, the reference's and the target to one number for each row of a number of rows; None
            of rows says that all of the batch is one row.
        shown: what to show of a number.
        predicts: whether outputs are scores of classes.
    """

    label: str
    distances: Callable[[Any, Any, Any, int | None], torch.Tensor]
    shown: Callable[[float], float] = lambda value: value
    predicts: bool = False


def measure_for(metric: Any, output: Any, target: Any) -> Measure:
    """How rows are compared where candidates are scored by ``metric``."""
    totals = totals_of(metric)
    if metric is metrics.token_agreement:
        return OTHERS
    if totals is not None or _counts_classes(metric):
        scores = _scores(output, target)
        return DIVERGENCE if scores.is_floating_point() else OTHERS
    return NOISE if metrics.signal_tensors(output) else OTHERS


def rows_in(first_input: torch.Tensor | None, output: Any, target: Any) -> int | None:
    """How many rows a batch has: a size of the first input that results have, too; None where there is none.

    Where several sizes do, it is the one that most results and the target have, and of these the first: batches whose
    first dimension is time are told by their states.
    """
    if first_input is None:
        return None
    results = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    leading = target.shape[:1] if isinstance(target, torch.Tensor) else ()
    votes = [
        sum(row_dim(result, size) is not None for result in results) + (bool(results) and leading == (size,))
        for size in first_input.shape
    ]
    return int(first_input.shape[votes.index(max(votes))]) if any(votes) else None


def row_dim(tensor: torch.Tensor, rows: int) -> int | None:
    """The dimension along which rows lie: the first of this size, if it is dimension 0 or the only one."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size == rows]
    return dims[0] if dims and (dims[0] == 0 or len(dims) == 1) else None


def row_of(tensor: torch.Tensor, rows: int | None, row: int | None) -> torch.Tensor:
    """One row of a tensor; all of it where it has no rows."""
    dim = None if rows is None or row is None else row_dim(tensor, rows)
    return tensor if dim is None or row is None else tensor.select(dim, row)


def output_text(output: Any, target: Any, measure: Measure, rows: int | None, row: int | None) -> str:
    """An output's row in short: its likeliest classes, its tokens, or its first numbers."""
    if measure.predicts:
        return _classes_text(row_of(_scores(output, target), rows, row).float())
    tensors = [x for x in pytree.tree_leaves(output) if isinstance(x, torch.Tensor)]
    return "; ".join(numbers_text(row_of(x, rows, row)) for x in tensors[:_CLASSES])


def predicted_tokens(output: Any, target: Any, rows: int | None, row: int | None) -> tuple[int, ...]:
    """The first tokens that a row predicts; none where it has scores of other things."""
    scores = row_of(_scores(output, target), rows, row)
    return tuple(scores[:TOKENS].argmax(-1).tolist()) if scores.dim() == 2 else ()


def numbers_text(tensor: torch.Tensor) -> str:
    """The first numbers of a tensor, and how many there are."""
    flat = tensor.detach().flatten()
    more = f", … ({flat.numel()} numbers)" if flat.numel() > _VALUES else ""
    return ", ".join(_number(value) for value in flat[:_VALUES].tolist()) + more


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _classes_text(scores: torch.Tensor) -> str:
    if scores.dim() != 1:
        predicted = scores.argmax(-1).flatten()
        return " ".join(map(str, predicted[:TOKENS].tolist())) + " …" * (predicted.numel() > TOKENS)
    if not bool(torch.isfinite(scores).all()):
        return numbers_text(scores)
    likely, classes = scores.softmax(-1).topk(min(_CLASSES, len(scores)))
    return ", ".join(f"{label} ({share:.0%})" for label, share in zip(classes.tolist(), likely.tolist(), strict=True))


def _counts_classes(metric: Any) -> bool:
    return metric is metrics.accuracy or str(getattr(metric, "__qualname__", "")).startswith("top_")


def _scores(output: Any, target: Any) -> torch.Tensor:
    """Scores with the classes in the last dimension."""
    if target is None:
        return logits_of(output).detach()
    try:
        return scores_and_classes(output, target)[0]
    except ValueError:
        return logits_of(output).detach()  # of a language model, whose last logits have no target


def _per_row(values: torch.Tensor, rows: int | None) -> torch.Tensor:
    """``values`` with the shape (rows, numbers of a row)."""
    dim = None if rows is None else row_dim(values, rows)
    if rows is None:
        return values.reshape(1, -1)
    # what has no rows of its own says nothing about one
    return values.new_zeros(rows, 1) if dim is None else values.movedim(dim, 0).reshape(rows, -1)


def _noise(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    del target
    signal = noise = torch.zeros(())
    for found, expected in _pairs(metrics.signal_tensors(output), metrics.signal_tensors(reference)):
        wide = torch.promote_types(found.dtype, torch.float32)
        given, wanted = (_per_row(each, rows).to(wide) for each in (found, expected))
        added = _square_sums(given - wanted), _square_sums(wanted)
        if not bool(torch.isfinite(added[0] + added[1]).all()):
            same = (given == wanted) | (given.isnan() & wanted.isnan())
            clean = torch.where(wanted.isfinite(), wanted, 0.0)
            added = _square_sums(torch.where(same, 0.0, given - wanted)), _square_sums(clean)
        noise, signal = noise + added[0], signal + added[1]
    # noise without any signal is as far as can be
    return torch.where(noise == 0, 0.0, noise / signal)


def _square_sums(rows: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.double().square()


def _divergences(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    found, expected = _scores(output, target), _scores(reference, target)
    _check_alike(found, expected)
    wanted, given = (scores.float().log_softmax(-1) for scores in (expected, found))
    terms = (wanted.exp() * (wanted - given)).sum(-1)
    if not bool(terms.isfinite().all()):
        # what cannot be predicted has a probability of 0, and says nothing
        terms = torch.where(wanted.isneginf(), 0.0, wanted.exp() * (wanted - given)).sum(-1)
        both = (found == expected) | (found.isnan() & expected.isnan())
        terms = torch.where(both.all(-1), 0.0, terms)
    # equal predictions are 0 apart, but for rounding
    kept = terms.masked_fill(terms.abs() < _ROUNDING, 0.0)
    return _per_row(kept, rows).mean(1)


def _others(output: Any, reference: Any, target: Any, rows: int | None) -> torch.Tensor:
    del target
    different: list[torch.Tensor] = []
    pairs = _pairs(
        *([x for x in pytree.tree_leaves(each) if isinstance(x, torch.Tensor)] for each in (output, reference))
    )
    for found, expected in pairs:
        pair = [x.argmax(-1) if x.is_floating_point() and x.dim() > 1 else x for x in (found, expected)]
        different.append(_per_row((pair[0] != pair[1]).float(), rows))
    return torch.cat(different, 1).mean(1)


def _pairs(found: list[torch.Tensor], expected: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if len(found) != len(expected) or not found:
        raise ValueError(f"outputs hold {len(found)} tensors, and those of the first candidate {len(expected)}")
    for pair in zip(found, expected, strict=True):
        _check_alike(*pair)
    return [(a.detach(), b.detach().to(a.device)) for a, b in zip(found, expected, strict=True)]


def _check_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.shape != expected.shape:
        raise ValueError(f"outputs have the shapes {tuple(found.shape)} and {tuple(expected.shape)}")


def _decibels(ratio: float) -> float:
    if ratio == 0:
        return math.inf
    return -10 * math.log10(ratio) if math.isfinite(ratio) else -math.inf


NOISE = Measure("SQNR dB", _noise, _decibels)
DIVERGENCE = Measure("divergence in nats", _divergences, predicts=True)
OTHERS = Measure("share that differs", _others)
