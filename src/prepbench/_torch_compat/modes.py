"""Global modes that a thread may be in: autocast and function transforms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def in_functorch() -> bool:
    """Whether a function transform (vmap, grad) is running in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def vmap_module() -> Any:
    """The module whose ``vmap_impl`` runs every ``torch.vmap``."""
    return sys.modules["torch._functorch.apis"]


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions that enter autocast and leave it, for use as nodes of a graph."""
    from torch.amp import autocast_mode

    return autocast_mode._enter_autocast, autocast_mode._exit_autocast


def autocast_state() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """``(device, enabled, dtype)`` of autocast in this thread."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    )
