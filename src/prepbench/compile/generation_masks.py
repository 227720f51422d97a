"""Masks of generation in the two forms that models take: one entry for each token, or a row for each new token.

``transformers`` makes the second form itself where a cache has a fixed length, and leaves it out where nothing is
padded and the cache is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prepbench.errors import InputError


def is_square(mask: Any) -> bool:
    """Whether it is a mask of (batch, heads or 1, new tokens, entries of the cache)."""
    return isinstance(mask, torch.Tensor) and mask.dim() == 4


def has_squares(mask: Any) -> bool:
    """Whether it is such a mask, or one for each kind of layer."""
    return any(map(is_square, mask.values())) if isinstance(mask, Mapping) else is_square(mask)


def flat_masks(name: str, masks: Any, past: int, new: int, windows: Mapping[str, int]) -> torch.Tensor | None:
    """:func:`flat_mask` of a mask, or of one for each kind of layer; None where all of them are left out.

    Args:
        name: of the argument.
        masks: one, or several by kind, such as ``"sliding_attention"``.
        past: tokens in the cache.
        new: further tokens.
        windows: how many entries windows have, by kind; ``""`` is that of a mask that is the only one.
    """
    kinds = dict(masks) if isinstance(masks, Mapping) else {"": masks}
    flat = [
        flat_mask(f"{name}[{kind!r}]" if kind else name, mask, past, new, windows.get(kind, 0))
        for kind, mask in sorted(kinds.items(), key=lambda item: windows.get(item[0], 0))
        if mask is not None
    ]
    return flat[0] if flat else None  # that of all tokens, where there is one


def flat_mask(name: str, mask: torch.Tensor, past: int, new: int, window: int = 0) -> torch.Tensor:
    """The mask of (batch, past + new) that says the same: each token sees those before it, but for padding.

    Args:
        name: of the argument.
        mask: of (batch, 1, new, entries): true, or 0 where it is added to scores, where a token is seen.
        past: tokens in the cache.
        new: further tokens.
        window: of how many tokens the first new one sees only the last; 0 for all. Tokens before them count as seen.

    Raises:
        InputError: it says something else.

    Example:
        >>> mask = torch.ones(1, 1, 2, 5, dtype=torch.bool).tril(1)
        >>> flat_mask("attention_mask", mask, 1, 2).tolist()
        [[1, 1, 1]]
    """
    seen = mask if mask.dtype == torch.bool else mask == 0
    first = max(past - window + 1, 0) if window else 0
    count = past + new - first
    flat = seen[:, 0, :, :count].any(1) if window else seen[:, 0, -1, :count]
    expected = _causal(past - first, new, seen.shape[-1])[None, None].repeat(len(flat), 1, 1, 1)
    expected[..., :count] &= flat[:, None, None]
    # of what lies before its own window, a later token sees nothing
    is_right = not bool((seen & ~expected).any()) if window else torch.equal(seen, expected.expand_as(seen))
    if flat.shape[-1] != count or not is_right:
        raise InputError(
            f"{name}: tokens see others than those before them here, and the model was compiled with a mask of one "
            f"entry for each token, or none. Compile with {name}= of this form, {tuple(mask.shape)}, in the tracing "
            "inputs."
        )
    return torch.nn.functional.pad(flat.long(), (first, 0), value=1)


def square_mask(spec: Mapping[str, Any], batch: int, past: int, new: int, room: int) -> torch.Tensor:
    """The mask of (batch, 1, new, entries) for tokens without padding that see those before them.

    Args:
        spec: of the mask that the graph takes.
        batch: number of rows.
        past: tokens in the cache.
        new: further tokens.
        room: entries of a cache of a fixed length; less than the tokens for one that grows.
    """
    seen = _causal(past, new, max(room, past + new)).expand(batch, 1, -1, -1)
    dtype = getattr(torch, spec["dtype"])
    if dtype == torch.bool:
        return seen.clone()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)


def _causal(past: int, new: int, entries: int) -> torch.Tensor:
    return torch.arange(entries) <= past + torch.arange(new)[:, None]
