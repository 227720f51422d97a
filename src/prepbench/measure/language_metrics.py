"""Metrics of models that predict tokens, taken over all the data: a mean over batches would be another number.

Two of them compare with the first candidate, as SQNR does: :func:`prepbench.compare` gives them its output as
target.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from prepbench.checks import described
from prepbench.errors import InputError, SettingsError
from prepbench.quantize.predictions import divergence
from prepbench.running.metric_facts import TOTALS, Totals

# Find the logits in a model's output, and the targets that fit them.


IGNORED_CLASS = -100
"""Targets of this value are left out, as in ``torch.nn.functional.cross_entropy``."""


def logits_of(output: Any) -> torch.Tensor:
    """Return a model's logits: its output, the output's ``logits``, its only tensor, or a tuple's first element."""
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


def scores_and_classes(output: Any, target: Any, ignored: int = IGNORED_CLASS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores with the classes in the last dimension (or predictions), and class numbers.

    One logit for each target becomes the scores of two classes, of which the first one is 0: the softmax of both is
    the sigmoid of the logit.

    Raises:
        InputError: the shapes do not fit each other, or there is one logit for targets other than 0 and 1.
    """
    scores, classes, is_one = _aligned(output, target, ignored)
    return (torch.stack([torch.zeros_like(scores), scores], -1) if is_one else scores), classes


def _aligned(output: Any, target: Any, ignored: int) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return scores, class numbers, and whether the scores are one logit for each target."""
    scores = logits_of(output).detach()
    try:
        classes = torch.as_tensor(target).detach().to(scores.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"target must be a tensor or numbers, got {described(target)}. Give class numbers.") from error
    if scores.shape == classes.shape:
        if not scores.is_floating_point():
            return scores, classes, False
        dim = _dim_of_class_scores(classes, ignored)
        if dim is not None:
            return scores.movedim(dim, -1), classes.argmax(dim), False
        if scores.dim() == 1 or scores.shape[-1] == 1 or scores.shape[1] == 1:
            return _of_two_classes(scores, classes, ignored)
    elif scores.dim() >= 2 and scores.shape[:-1] == classes.shape:
        if scores.shape[-1] == 1:
            return _of_two_classes(scores[..., 0], classes, ignored)
        return scores, classes, False
    elif scores.dim() > 2 and scores.shape[:1] + scores.shape[2:] == classes.shape:
        if scores.shape[1] == 1:
            return _of_two_classes(scores[:, 0], classes, ignored)
        return scores.movedim(1, -1), classes, False
    raise InputError(
        f"logits of shape {tuple(scores.shape)} and a target of shape {tuple(classes.shape)} do not fit: expected "
        "logits (batch, classes) with targets (batch,), or of their shape with one class each; of larger ones, the "
        "classes in the last dimension or in 1, which has size 1 for one logit of two classes"
    )


def _dim_of_class_scores(target: torch.Tensor, ignored: int) -> int | None:
    """Return the dimension of the classes in a target of the logits' shape, where it holds scores of classes."""
    dims = [dim for dim in (-1, 1) if target.dim() > (1 if dim < 0 else 2) and target.shape[dim] > 1]
    if not target.is_floating_point() or not dims:
        return None
    for dim in dims:
        sums = target.sum(dim)
        if torch.allclose(sums, torch.ones_like(sums), atol=1e-2):
            return dim
    # zeros and ones are no scores of classes if several or none of them are 1, nor are shares of a single channel
    counted = target[target != ignored]
    are_shares = bool(((counted >= 0) & (counted <= 1)).all())
    are_masks = are_shares and (target.shape[1] == 1 or bool(((counted == 0) | (counted == 1)).all()))
    return None if are_masks or dims[0] != -1 else -1


def _of_two_classes(
    logits: torch.Tensor, classes: torch.Tensor, ignored: int
) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return what :func:`_aligned` does where there is one number for each target."""
    if not logits.is_floating_point():
        return logits, classes, False  # predicted classes, with a dimension of 1
    wanted = classes[classes != ignored]
    if not bool(((wanted == 0) | (wanted == 1)).all()):
        least, most = wanted.aminmax()
        raise InputError(
            f"one logit for each target, of shape {tuple(logits.shape)}, and targets between {least.item():g} and "
            f"{most.item():g}: one logit tells classes 0 and 1 apart. Give targets of 0 and 1, or one logit for each "
            "class in the last dimension or in 1"
        )
    return logits, classes, True


class LogitWatch:
    """Refuses probabilities in place of logits, which would count as class 1 each.

    Numbers between 0 and 1 in a batch may be logits, above all where it is small or of one class. Of all the data they
    hardly are.

    Args:
        ignored: the target that is not counted.
    """

    def __init__(self, ignored: int = IGNORED_CLASS) -> None:
        self._ignored = ignored
        self._classes: set[int] = set()
        self._are_shares = True

    def add(self, output: Any, target: Any) -> None:
        """Look at a batch whose output and target fit each other."""
        with contextlib.suppress(InputError):  # a metric that takes other shapes than these has many logits
            logits, classes, is_one = _aligned(output, target, self._ignored)
            if is_one:
                counted = classes != self._ignored
                given = logits[counted]
                self._classes |= {one for one in (0, 1) if bool((classes[counted] == one).any())}
                self._are_shares &= bool(((given >= 0) & (given <= 1)).all())

    def check(self) -> None:
        """Raise ``InputError`` where all batches so far hold probabilities of two classes."""
        if self._are_shares and self._classes == {0, 1}:
            raise InputError(
                "one number for each target, all between 0 and 1, like probabilities: expected logits, which are above "
                "0 for class 1. Return logits, or wrap the metric: lambda output, target: metric(output.logit(), "
                "target)"
            )


_NO_TOKEN = torch.iinfo(torch.int64).min


def perplexity(output: Any, target: Any) -> float:
    """``exp`` of the mean cross-entropy: the number of tokens among which the model is undecided on average; 1 at
    best.

    As the ``metric`` of :func:`prepbench.compare` it is taken over all tokens of the data.

    Args:
        output: logits ``(batch, tokens, vocabulary)``, or an object, dict or tuple with them.
        target: the token that comes next at each position, ``(batch, tokens)``, or ``ids[:, 1:]``, which leaves the
            last logits out. Entries of ``-100`` are not counted.

    Returns:
        The perplexity of the batch, at least 1.

    Raises:
        InputError: the shapes do not fit each other, a target is no token of the vocabulary, or none counts.

    Example:
        >>> logits = torch.zeros(1, 3, 50)
        >>> round(perplexity(logits, torch.tensor([[7, 8]])), 3)
        50.0
    """
    return taken(_PERPLEXITY, output, target)


def kl_divergence(output: Any, target: Any) -> float:
    """Kullback-Leibler divergence of the predicted distributions from the reference's, the mean in nats.

    As the ``metric`` of :func:`prepbench.compare` the reference is the first candidate, and data holds inputs alone.

    Args:
        output: logits ``(..., vocabulary)``, or an object, dict or tuple with them.
        target: the reference's output, of the same shape.

    Returns:
        The divergence in nats, at least 0.

    Raises:
        InputError: the shapes differ.

    Example:
        >>> kl_divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]]))
        0.0
    """
    return taken(_DIVERGENCE, output, target)


def token_agreement(output: Any, target: Any) -> float:
    """Share of positions at which the likeliest token is the reference's, between 0 and 1.

    As the ``metric`` of :func:`prepbench.compare` the reference is the first candidate, and data holds inputs alone.
    Logits with NaN have no likeliest token, so nothing agrees.

    Args:
        output: logits ``(..., vocabulary)``, an object, dict or tuple with them, or token numbers.
        target: the reference's output, of the same shape.

    Returns:
        The share.

    Raises:
        InputError: the shapes differ.

    Example:
        >>> token_agreement(torch.tensor([[0.1, 0.9], [0.2, 0.1]]), torch.tensor([[0.3, 0.4], [0.2, 0.5]]))
        0.5
    """
    return taken(_AGREEMENT, output, target)


def bits_per_byte(bytes_per_token: float | Sequence[float] | torch.Tensor = 1.0) -> Callable[[Any, Any], float]:
    """Return a metric: cross-entropy in bits per byte of text, which is comparable between vocabularies.

    Args:
        bytes_per_token: bytes of text that a token stands for: one number, or one for each token of the vocabulary.

    Returns:
        A metric with the arguments of :func:`perplexity`.

    Raises:
        SettingsError: not a positive number, or a list of other things than numbers.

    Example:
        >>> metric = bits_per_byte([len(word) for word in ("a", "be", "sea", "deed")])
        >>> round(metric(torch.zeros(1, 2, 4), torch.tensor([[3]])), 3)
        0.5
    """
    sizes = _sizes(bytes_per_token)

    def sums(output: Any, target: Any) -> tuple[float, float]:
        entropy, classes = _entropies(output, target)
        try:
            of_each = sizes[classes] if sizes.dim() else sizes.expand(classes.shape)
        except IndexError as error:
            raise InputError(
                f"bytes_per_token has {len(sizes)} entries, and the targets go up to {int(classes.max())}. Give one "
                "for each token of the vocabulary"
            ) from error
        return float(entropy.sum()) / math.log(2), float(of_each.sum())

    def metric(output: Any, target: Any) -> float:
        return taken(totals, output, target)

    totals = Totals(sums, _mean, watch=LogitWatch)
    metric.__name__ = metric.__qualname__ = "bits_per_byte"
    setattr(metric, TOTALS, totals)
    return metric


def _sizes(given: Any) -> torch.Tensor:
    try:
        sizes = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        sizes = torch.zeros(0)
    is_good = sizes.dim() <= 1 and sizes.numel() and not isinstance(given, bool) and not sizes.is_meta
    if not is_good or not bool(((sizes >= 0) & sizes.isfinite()).all()) or not bool(sizes.sum() > 0):
        raise SettingsError(
            f"bytes_per_token must be a positive number, or one for each token of the vocabulary, got "
            f"{described(given)}. Give e.g. 4.2, or [len(token) for token in vocabulary]."
        )
    return sizes


def taken(totals: Totals, output: Any, target: Any) -> float:
    """Return a metric of one batch."""
    sums = torch.as_tensor(totals.sums(output, target), dtype=torch.float64)
    if totals.watch is not None:
        watch = totals.watch()
        watch.add(output, target)
        watch.check()
    return float(totals.score(sums))


def _entropies(output: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy in nats of each target that counts, and these targets."""
    scores = logits_of(output).detach()
    length = target.shape[1] if isinstance(target, torch.Tensor) and target.dim() == 2 else None
    if length is not None and scores.dim() == 3 and scores.shape[1] == length + 1:
        scores = scores[:, :-1]  # the token after the last one is unknown
    if length is not None and length > 1 and scores.dim() == 3 and scores.shape[1] == 1:
        raise InputError(
            f"logits of one token, of shape {tuple(scores.shape)}, and targets of {length}: the model gives the logits "
            "of the last token alone, as with logits_to_keep=1. Compile it with samples without logits_to_keep to "
            "score all tokens, or give the beginnings of texts as data, each with its next token, ids[:, n : n + 1]"
        )
    scores, classes = scores_and_classes(scores, target)
    if scores.dim() == classes.dim() or classes.is_floating_point():
        raise InputError(
            f"predictions of shape {tuple(scores.shape)} and targets {classes.dtype} of shape {tuple(classes.shape)}: "
            "expected logits and token numbers. Give the model's logits, and ids[:, 1:] as the target"
        )
    counted = classes != IGNORED_CLASS
    if not bool(counted.any()):
        raise InputError(f"no target to count: all are {IGNORED_CLASS}, or the batch is empty")
    _check_tokens(classes[counted], scores.shape[-1])
    entropy = torch.nn.functional.cross_entropy(scores[counted].float(), classes[counted].long(), reduction="none")
    return entropy.double(), classes[counted].long()


def _check_tokens(classes: torch.Tensor, vocabulary: int) -> None:
    least, most = (int(value) for value in torch.aminmax(classes))
    if least < 0 or most >= vocabulary:
        raise InputError(
            f"targets reach from {least} to {most}, and the logits are of {vocabulary} tokens: expected 0 to "
            f"{vocabulary - 1}, or {IGNORED_CLASS} for what does not count. Take targets of this model's tokenizer"
        )


def _perplexity_sums(output: Any, target: Any) -> tuple[float, float]:
    entropy, _ = _entropies(output, target)
    return float(entropy.sum()), float(len(entropy))


def _divergence_sums(output: Any, target: Any) -> tuple[float, float]:
    found, expected = logits_of(output), logits_of(target)
    _check_alike(found, expected)
    total, count = divergence(expected, found)
    return total, float(count)


def _agreement_sums(output: Any, target: Any) -> tuple[float, float]:
    found, expected = _tokens(logits_of(output), _NO_TOKEN), _tokens(logits_of(target), _NO_TOKEN + 1)
    _check_alike(found, expected)
    return float((found == expected).sum()), float(found.numel())


def _tokens(value: torch.Tensor, none: int) -> torch.Tensor:
    """Return the likeliest tokens; ``none`` where there is none."""
    return value.argmax(-1).where(~value.isnan().any(-1), none) if value.is_floating_point() else value


def _check_alike(found: torch.Tensor, expected: torch.Tensor) -> None:
    if found.shape != expected.shape or not found.numel():
        raise InputError(
            f"logits of shape {tuple(found.shape)}, and those of the reference {tuple(expected.shape)}: give two "
            "outputs for the same tokens"
        )


def _mean(sums: torch.Tensor) -> torch.Tensor:
    return sums[..., 0] / sums[..., 1]


_PERPLEXITY = Totals(_perplexity_sums, lambda sums: _mean(sums).exp(), watch=LogitWatch)
_DIVERGENCE = Totals(_divergence_sums, _mean, against_reference=True)
_AGREEMENT = Totals(_agreement_sums, _mean, against_reference=True, higher_is_better=True)
for _metric, _totals in ((perplexity, _PERPLEXITY), (kl_divergence, _DIVERGENCE), (token_agreement, _AGREEMENT)):
    setattr(_metric, TOTALS, _totals)
