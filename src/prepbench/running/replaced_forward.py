"""Replace the forward of a submodule during a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from prepbench.patching import patched, patched_item

FURTHER = "__prepbench_further_forwards__"
"""The attribute of a model that has more objects with a ``forward`` by name; their callers ask for it, as for that of a
module. They are not among its modules, because forwards go through these."""


def replaceable_modules(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """Return everything whose forward Python can replace, by name: all modules but those inside scripted ones, and the
    further objects of the model.
    """
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    found = [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]
    return [*found, *vars(model).get(FURTHER, {}).items()]


def part_named(model: torch.nn.Module, fqn: str) -> Any:
    """Return the submodule or further object of this name."""
    return vars(model).get(FURTHER, {}).get(fqn) or model.get_submodule(fqn)


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Run ``forward`` for calls of the submodule ``fqn``, or of a further object, during the block."""
    module = part_named(model, fqn)
    if not isinstance(module, torch.jit.ScriptModule):
        with patched(module, "forward", forward):
            yield
        return
    parent, _, name = fqn.rpartition(".")
    children: dict[str, Any] = model.get_submodule(parent)._modules
    with patched_item(children, name, _StandIn(module, forward)):
        yield


class _StandIn(torch.nn.Module):
    """Stands in for a scripted module, whose forward runs outside of Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)
