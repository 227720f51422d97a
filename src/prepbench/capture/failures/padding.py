"""Padding that moves the positions of what it stands beside: a mask leaves tokens out, and positions count them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prepbench.document.model import Finding
from prepbench.inputs import Sample, named_leaves
from prepbench.running.nested_values import collect
from prepbench.running.object_nodes import register_nodes
from prepbench.running.outcomes import without_output
from prepbench.running.twin import Twin
from prepbench.running.unchanged import own_copy, unchanged

PADDING = "padding moves positions"
_MASK, _TOKENS = "attention_mask", "input_ids"
_TOLERANCE = 1e-2


def findings_of_padding(model: torch.nn.Module, samples: Sequence[Sample]) -> Iterator[Finding]:
    """What tokens of a padded row get, beside what they get without the padding; one finding for the first difference.

    Runs the model on one row of the first sample that has a mask with zeros, with and without what the mask leaves out.
    """
    if any(module.training for module in model.modules()):
        return  # dropout would make a difference of its own
    for sample in samples:
        values = dict(named_leaves(model, sample))
        mask, tokens = values.get(_MASK), values.get(_TOKENS)
        if not _is_padded(mask, tokens):
            continue
        assert isinstance(mask, torch.Tensor)
        row = int((mask == 0).any(1).nonzero()[0])
        kept = (mask[row] != 0).nonzero().flatten()
        difference = _difference(model, sample, row, kept, tuple(mask.shape))
        if difference is not None and difference > _TOLERANCE:
            count = int(mask.shape[1] - len(kept))
            yield Finding(
                "",
                type(model).__name__,
                PADDING,
                f"{_MASK} leaves out {count} of {mask.shape[1]} tokens of row {row} in inputs[{sample.index}], and "
                f"with them gone the others get other results (by {difference:.2g} of the largest): their positions "
                "count the padding.",
                None,
                "",
                "Give position_ids that do not count it, such as (attention_mask.cumsum(-1) - 1).clamp(min=0), if the "
                "model takes them, or pad on the other side (tokenizer.padding_side).",
            )
        return


def _is_padded(mask: Any, tokens: Any) -> bool:
    if not (isinstance(mask, torch.Tensor) and isinstance(tokens, torch.Tensor)) or mask.device.type == "meta":
        return False
    padded = (mask == 0).any(-1)
    return mask.dim() == 2 and mask.shape == tokens.shape and bool((padded & (mask != 0).any(-1)).any())


def _difference(
    model: torch.nn.Module, sample: Sample, row: int, kept: torch.Tensor, shape: tuple[int, ...]
) -> float | None:
    """The largest difference at the tokens that stay, as a share of the largest result; None if it cannot be told."""

    def row_of(leaf: Any) -> Any:
        is_batched = isinstance(leaf, torch.Tensor) and leaf.dim() and leaf.shape[0] == shape[0]
        return leaf[row : row + 1] if is_batched else leaf

    def without_padding(leaf: Any) -> Any:
        part = row_of(leaf)
        along = isinstance(part, torch.Tensor) and part.dim() in (2, 3) and tuple(part.shape[:2]) == (1, shape[1])
        return part[:, kept] if along else part

    own = Twin(model).model
    results = []
    try:
        for change in (row_of, without_padding):
            with unchanged(own), without_output(), torch.no_grad():
                result = own_copy(sample.map(change)).call(own)
            register_nodes(result)
            results.append(collect(result)[0])
    except Exception:  # a row alone, or a shorter one, may be no call that the model takes
        return None
    long, short = results
    if long.dim() < 2 or tuple(long.shape[:2]) != (1, shape[1]) or tuple(short.shape[:2]) != (1, len(kept)):
        return None
    largest = float(short.abs().max())
    return float((long[:, kept] - short).abs().max()) / largest if largest else None
