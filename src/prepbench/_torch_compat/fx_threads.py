"""Limit FX's replacements during a trace to the tracing thread."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import only_here, patched_together

_OF_TORCH = "_prepbench_original"


@contextmanager
def thread_local_fx_traces() -> Iterator[None]:
    """Inside the block, FX's replacements during a trace act only in the thread that traces, whichever that is.

    Otherwise a model that runs in one thread would be recorded by a trace in another. Without torch loaded, nothing
    traces.
    """
    if "torch" not in sys.modules:
        yield
        return
    with needed_for("tracing in one thread only"):
        from torch.fx._symbolic_trace import _Patcher

        patch = getattr(_Patcher.patch, _OF_TORCH, _Patcher.patch)
        patch_method = getattr(_Patcher.patch_method, _OF_TORCH, _Patcher.patch_method)

    def patch_here(
        self: Any, space: dict[str, Any], name: str, new: Callable[..., Any], deduplicate: bool = True
    ) -> None:
        original = space[name] if name in space else getattr(builtins, name)
        patch(self, space, name, only_here(original, new), deduplicate)

    def patch_method_here(self: Any, cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True) -> None:
        patch_method(self, cls, name, only_here(getattr(cls, name), new), deduplicate)

    setattr(patch_here, _OF_TORCH, patch)
    setattr(patch_method_here, _OF_TORCH, patch_method)
    with (
        patched_together(_Patcher, "patch", patch_here),
        patched_together(_Patcher, "patch_method", patch_method_here),
    ):
        yield
