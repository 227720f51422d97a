"""Another forward for a submodule while a block runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import patched, patched_item


def replaceable_modules(model: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The modules whose forward Python can replace, by name: all but those inside scripted modules."""
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    return [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, calls of the submodule ``fqn`` run ``forward``."""
    module = model.get_submodule(fqn)
    if not isinstance(module, torch.jit.ScriptModule):
        with patched(module, "forward", forward):
            yield
        return
    parent, _, name = fqn.rpartition(".")
    children: dict[str, Any] = model.get_submodule(parent)._modules
    with patched_item(children, name, _StandIn(module, forward)):
        yield


class _StandIn(torch.nn.Module):
    """Takes the place of a scripted module, whose forward runs outside Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)
