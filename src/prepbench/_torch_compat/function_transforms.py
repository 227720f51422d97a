"""Derivatives by ``torch.func`` in a model: detect them, and trace them into plain operations."""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from prepbench._torch_compat.checks import needed_for
from prepbench.patching import patched_here

with needed_for("the module that takes a derivative"):
    CALL_OF_MODULES = torch.nn.Module._call_impl.__code__

with needed_for("telling a derivative in forward mode"):
    _FORWARD_MODE = importlib.import_module("torch._functorch.eager_transforms")._jvp_with_argnums.__code__

with needed_for("tracing derivatives"):
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import (
        PreDispatchTorchFunctionMode,
        disable_proxy_modes_tracing,
        make_fx,
    )
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode


def in_forward_mode(error: BaseException) -> bool:
    """Return whether an exception was raised inside forward-mode differentiation.

    Args:
        error: it is read only; its traceback tells.
    """
    return any(frame.f_code is _FORWARD_MODE for frame, _ in traceback.walk_tb(error.__traceback__))


@contextmanager
def transforms_noticed(note: Callable[[], None]) -> Iterator[None]:
    """Call ``note`` whenever ``torch.func`` takes a derivative in the block, in this thread."""
    with needed_for("noticing derivatives"):
        transforms = importlib.import_module("torch._functorch.eager_transforms")
        places = (
            (transforms, "grad_increment_nesting"),
            (transforms, "jvp_increment_nesting"),
        )
        originals = [getattr(owner, name) for owner, name in places]

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            note()
            return original(*args, **kwargs)

        return called

    with ExitStack() as stack:
        for (owner, name), original in zip(places, originals, strict=True):
            stack.enter_context(patched_here(owner, name, noting(original)))
        yield


def plain_operations(
    function: Callable[..., Sequence[torch.Tensor]], tensors: Sequence[torch.Tensor]
) -> fx.GraphModule:
    """Trace a function on tensors without data, derivatives included, into a graph of torch operators.

    Export records operators above autograd and the transforms of ``torch.func``, and so misses their effects. Here
    they are recorded below both, and operators that only occur in derivatives are decomposed where possible.
    """
    with _not_recorded(), disable_proxy_modes_tracing():
        graph: fx.GraphModule = make_fx(function, decomposition_table=backward_operators())(*tensors)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


@functools.cache
def backward_operators() -> dict[Any, Callable[..., Any]]:
    """Return the known decompositions of operators that only occur in derivatives; targets have no kernels for them."""
    return {op: made for op, made in core_aten_decompositions().items() if "_backward" in str(op)}


@contextmanager
def _not_recorded() -> Iterator[None]:
    """Disable export's mode that records the opening and closing of transform levels."""
    modes = _get_current_function_mode_stack()
    kept = [mode for mode in modes if not isinstance(mode, PreDispatchTorchFunctionMode)]
    _use(len(modes), kept)
    try:
        yield
    finally:
        _use(len(kept), modes)


def _use(count: int, modes: Sequence[Any]) -> None:
    for _ in range(count):
        _pop_mode()
    for mode in modes:
        _push_mode(mode)
