"""Run ``torch.export`` quietly, and imitate what code sees while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from prepbench._torch_compat.checks import needed_for
from prepbench._torch_compat.left_behind import strict_export_let_go
from prepbench.patching import logs_dropped_here, patched, patched_here, undoing, warnings_ignored_here


@contextmanager
def quiet_export() -> Iterator[None]:
    """Inside the block, a failing ``torch.export`` only raises: it prints no partial graph and logs no warning."""
    with needed_for("exporting without messages"):
        import torch.export._trace as trace
        from torch.fx.experimental import proxy_tensor

    names = (
        "torch.fx.experimental.symbolic_shapes",
        "torch.export",
        "torch._export",
        "torch._dynamo",
        "torch._subclasses",
    )
    # this table would keep the last exported graph, and with it the model, alive until the next export
    table = getattr(proxy_tensor, "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT", {})
    # the module prints through the builtin of this name
    silent = patched(trace, "print", lambda *args, **kwargs: None)
    with undoing() as undo, silent, logs_dropped_here(*names), warnings_ignored_here(), strict_export_let_go():
        undo.add(table.clear)
        yield


def mark_module_stack() -> Callable[[], None]:
    """Return a function that resets export's stack of entered modules to its current state, for after a caught
    exception.
    """
    with needed_for("going on with an export after an exception"):
        from torch.fx.experimental.proxy_tensor import get_proxy_mode
    mode = get_proxy_mode()
    stack = getattr(getattr(mode, "tracer", None), "module_stack", None)
    depth = len(stack) if stack is not None else 0

    def restore() -> None:
        while stack is not None and len(stack) > depth:
            stack.popitem(last=True)

    return restore


@contextmanager
def seen_as_exporting() -> Iterator[None]:
    """Inside the block, ``torch.compiler`` says that a model is being compiled and exported."""
    with needed_for("telling models that they are being exported"):
        _ = torch.compiler._is_compiling_flag
    flags = [name for name in ("_is_compiling_flag", "_is_exporting_flag") if hasattr(torch.compiler, name)]
    with ExitStack() as stack:
        for name in flags:
            stack.enter_context(patched(torch.compiler, name, True))
        yield


@contextmanager
def conversions_that_change_nothing_skipped() -> Iterator[None]:
    """Inside the block, ``module.to(...)`` returns at once when every tensor of the module already has the requested
    form.

    Tensors without data cannot replace parameters, so even such a call would fail during tracing.
    """
    with needed_for("tracing conversions that change nothing"):
        parse: Any = torch._C._nn._parse_to
    original = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        wanted: tuple[Any, ...] = parse(*args, **kwargs)
        device, dtype, _, memory_format = wanted
        tensors = [*self.parameters(), *self.buffers()]
        same = memory_format is None and all(
            (device is None or device in (tensor.device, torch.device(tensor.device.type)))
            and (dtype is None or tensor.dtype == dtype or not (tensor.is_floating_point() or tensor.is_complex()))
            for tensor in tensors
        )
        return self if same else original(self, *args, **kwargs)

    with patched_here(torch.nn.Module, "to", to):
        yield
