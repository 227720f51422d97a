"""What caches and masks of ``transformers`` ask of sizes while they are traced, asked so that it holds for all sizes.

A sliding window asks whether it is full, and a graph would hold for one answer only. Both answers are one formula: the
keys that it holds tell how many entries there are, full or not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from prepbench.patching import patched_here


@contextmanager
def one_answer_for_all_sizes() -> Iterator[None]:
    """Inside the block, this thread's caches and masks ask nothing of sizes that samples may answer differently.

    Nothing happens where ``transformers`` is not imported, or where its parts have other names.
    """
    with ExitStack() as stack:
        window: Any = getattr(sys.modules.get("transformers.cache_utils"), "DynamicSlidingWindowLayer", None)
        if hasattr(window, "get_mask_sizes"):
            stack.enter_context(patched_here(window, "get_mask_sizes", _mask_sizes(window.get_mask_sizes)))
        masks: Any = sys.modules.get("transformers.masking_utils")
        if hasattr(masks, "_ignore_causal_mask_sdpa"):
            # its answer is the same whenever it is exported, but it asks before it gives it
            stack.enter_context(patched_here(masks, "_ignore_causal_mask_sdpa", lambda *args, **kwargs: False))
        yield


def _mask_sizes(original: Any) -> Any:
    def mask_sizes(layer: Any, query_length: int) -> tuple[Any, Any]:
        """How many entries the queries see, and the position of the first of them."""
        if getattr(layer, "keys", None) is None or getattr(layer, "record_past", False) or layer.keys.dim() != 4:
            sizes: tuple[Any, Any] = original(layer, query_length)
            return sizes
        held = layer.keys.shape[-2]
        return held + query_length, layer.cumulative_length - held

    return mask_sizes
