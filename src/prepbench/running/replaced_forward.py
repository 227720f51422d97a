"""Another forward for a submodule while a block runs."""

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
    """What has a forward that Python can replace, by name: all modules but those inside scripted ones, and the further
    objects of the model.
    """
    modules = list(model.named_modules())
    scripted = [fqn for fqn, module in modules if isinstance(module, torch.jit.ScriptModule)]
    found = [(fqn, module) for fqn, module in modules if not any(fqn.startswith(f"{outer}.") for outer in scripted)]
    return [*found, *vars(model).get(FURTHER, {}).items()]


def part_named(model: torch.nn.Module, fqn: str) -> Any:
    """The submodule or further object of this name."""
    return vars(model).get(FURTHER, {}).get(fqn) or model.get_submodule(fqn)


@contextmanager
def replaced_forward(model: torch.nn.Module, fqn: str, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside the block, calls of the submodule ``fqn``, or of a further object, run ``forward``."""
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
    """Takes the place of a scripted module, whose forward runs outside Python and cannot be replaced on it."""

    def __init__(self, original: torch.nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["original"] = original
        self.forward = forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["original"], name)
