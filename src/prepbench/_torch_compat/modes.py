"""Global modes that a thread may be in: autocast and function transforms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for

with needed_for("seeing operators and function transforms"):
    from torch.utils._python_dispatch import TorchDispatchMode as _TorchDispatchMode

    _innermost_transform = torch._C._functorch.peek_interpreter_stack


class OperatorMode(_TorchDispatchMode):
    """A mode whose ``__torch_dispatch__`` sees every operator, also ``torch.cond`` and its like, which have no schema.

    For other modes dynamo skips what it would compile, and goes on to skip it once they are left. So functions that
    somebody has compiled would run without their graph from then on, and ``torch.cond`` would raise.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tells dynamo not to skip anything."""
        return True


def in_functorch() -> bool:
    """Whether a function transform (vmap, grad) is running in this thread."""
    return _innermost_transform() is not None


def transforms() -> tuple[tuple[Any, str], ...]:
    """Where the functions are that run every ``torch.vmap`` and ``torch.func.grad``: module and name."""
    with needed_for("seeing torch.vmap and torch.func.grad"):
        apis = importlib.import_module("torch._functorch.apis")
        eager = importlib.import_module("torch._functorch.eager_transforms")
        found = (apis, "vmap_impl"), (eager, "grad_impl"), (eager, "grad_and_value_impl")
        _ = [getattr(module, name) for module, name in found]
    return found


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Functions that enter autocast and leave it, for use as nodes of a graph."""
    with needed_for("recording autocast"):
        from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
    return _enter_autocast, _exit_autocast


def autocast_state() -> tuple[tuple[str, bool, torch.dtype], ...]:
    """``(device, enabled, dtype)`` of autocast in this thread."""
    return tuple(
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in ("cpu", "cuda")
    )
