"""Size branches in caches and masks of ``transformers``, rewritten during tracing into forms for all sizes.

A sliding window branches on whether it is full, so that a graph would hold for one answer only. One formula covers
both: the number of stored keys tells the number of entries, full or not.

Where a window has a fixed length, only a number tells that. Graphs get it as a tensor (``running/tensor_numbers``), and
entries are then picked by computed indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._transformers_compat import replaceable_parts
from prepbench.patching import patched_here


@contextmanager
def one_answer_for_all_sizes() -> Iterator[None]:
    """Keep this thread's caches and masks from branching on sizes on which samples may differ, during the block.

    Nothing happens where ``transformers`` is not imported, or where its parts have another form.
    """
    parts = replaceable_parts()
    with ExitStack() as stack:

        def replace(key: str, name: str, made: Any) -> None:
            if key in parts:
                stack.enter_context(patched_here(parts[key], name, made(getattr(parts[key], name))))

        replace("static window", "get_mask_sizes", _static_mask_sizes)
        replace("static window", "update", _static_update)
        replace("window", "get_mask_sizes", _mask_sizes)
        # its result is constant under export, but it branches before returning it
        replace("causal mask", "_ignore_causal_mask_sdpa", lambda original: lambda *args, **kwargs: False)
        replace("padding mask", "prepare_padding_mask", _padding_mask)
        yield


def _mask_sizes(original: Any) -> Any:
    def mask_sizes(layer: Any, query_length: int) -> tuple[Any, Any]:
        """Return the number of entries that the queries see, and the position of the first one."""
        if getattr(layer, "keys", None) is None or getattr(layer, "record_past", False) or layer.keys.dim() != 4:
            sizes: tuple[Any, Any] = original(layer, query_length)
            return sizes
        held = layer.keys.shape[-2]
        return held + query_length, layer.cumulative_length - held

    return mask_sizes


def _static_mask_sizes(original: Any) -> Any:
    def mask_sizes(layer: Any, query_length: int) -> tuple[Any, Any]:
        """Return the largest number of entries; the causal mask excludes those that are empty."""
        seen, room = layer.cumulative_length_int, layer.max_cache_len
        if not isinstance(seen, torch.Tensor):
            sizes: tuple[Any, Any] = original(layer, query_length)
            return sizes
        return room + query_length - 1, (seen - room + 1).clamp(min=0)

    return mask_sizes


def _static_update(original: Any) -> Any:
    def update(layer: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Write new entries, and return those that the queries may see: the window of the first query and all after
        it.
        """
        seen = layer.cumulative_length_int
        if not isinstance(seen, torch.Tensor):
            states: tuple[Any, Any] = original(layer, keys, values, *args, **kwargs)
            return states
        room, new = layer.keys.shape[-2], keys.shape[-2]
        held = seen.clamp(max=room)
        kept, places = torch.arange(room), torch.arange(room) + (held + new - room).clamp(min=0)
        kept = torch.where(places < held + new, _source(places, held, room), kept)
        given = kept  # for one new entry, both are the same
        if not (isinstance(new, int) and new == 1):
            places = torch.arange(room + new - 1) + (seen >= room)
            given = _source(places, held, room).clamp(max=room + new - 1)
        found = []
        for name, added in (("keys", keys), ("values", values)):
            before = getattr(layer, name)
            both = torch.cat([before, added], -2)
            found.append(both.index_select(-2, given))
            before.copy_(found[-1] if given is kept else both.index_select(-2, kept))
        layer.cumulative_length_int = seen + new
        # the library stops counting here when the window is full
        layer.cumulative_length.add_(torch.where(seen + new <= room, new, 0))
        return found[0], found[1]

    return update


def _source(places: torch.Tensor, held: torch.Tensor, room: int) -> torch.Tensor:
    """Return the indices of the entries at these sequence positions, of which ``room`` lie before the new ones."""
    return torch.where(places < held, places, places - held + room)


def _padding_mask(original: Any) -> Any:
    def padding_mask(mask: Any, kv_length: Any, kv_offset: Any) -> Any:
        """Return a mask that covers all positions of the keys."""
        if mask is None or not isinstance(kv_offset, torch.Tensor):
            return original(mask, kv_length, kv_offset)
        return torch.nn.functional.pad(mask, (0, kv_length))

    return padding_mask
