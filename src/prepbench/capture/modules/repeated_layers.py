"""Outputs of repeated layers, computed once: equal layers give outputs of equal sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from prepbench._torch_compat.modes import autocast_state
from prepbench._torch_compat.tensors import memory_of


class RepeatedLayers:
    """The outputs of layers on tensors without data, remembered within one tracing run.

    Two calls are alike when the layers have the same class, settings and parameter shapes, and the inputs the same
    sizes, strides, dtype and device.

    Args:
        quietly: calls a function without recording it.
    """

    def __init__(self, quietly: Callable[..., Any]) -> None:
        self._quietly = quietly
        self._known: dict[Any, torch.Tensor] = {}

    def output(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """What ``module`` returns for these fake tensors: a copy of what a layer like it returned, or computed."""
        key = None if kwargs or not _is_plain(module) else _key(module, args)
        if key is None:
            return compute()
        if key in self._known:
            return self._quietly(self._known[key].clone)
        result = compute()
        if isinstance(result, torch.Tensor) and not _shares_memory(result, args):
            self._known[key] = result
        return result


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether the module is one of torch's own layers, as torch made it."""
    own = vars(module)
    return (
        type(module).__module__.startswith("torch.nn.modules.")
        and "forward" not in own
        and not module._modules
        and not any(own[name] for name in ("_forward_hooks", "_forward_pre_hooks"))
    )


def _key(module: torch.nn.Module, args: tuple[Any, ...]) -> Any:
    if not all(type(arg) is not torch.nn.Parameter and isinstance(arg, torch.Tensor) for arg in args):
        return None
    own = [
        (name, None if tensor is None else _metadata(tensor))
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
    ]
    settings = {
        name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str | tuple)
    }
    state = torch.is_grad_enabled(), autocast_state()
    return (
        type(module), module.extra_repr(), tuple(sorted(settings.items(), key=str)), state, tuple(own),
        tuple(_metadata(arg) for arg in args),
    )  # fmt: skip


def _metadata(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided:
        return id(tensor)
    sizes = tuple(map(_expression, tensor.shape)), tuple(map(_expression, tensor.stride()))
    return sizes, tensor.dtype, tensor.device, tensor.requires_grad


def _expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def _shares_memory(result: torch.Tensor, args: tuple[Any, ...]) -> bool:
    storages = {memory_of(arg) for arg in args if arg.layout is torch.strided}
    return result.layout is not torch.strided or memory_of(result) in storages
