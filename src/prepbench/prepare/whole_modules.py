"""Modules that stay single calls in a prepared model, and why."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prepbench.capture.modules.tracer import RobustTracer
from prepbench.document.model import SourceLine
from prepbench.patching import patched
from prepbench.prepare.modules import Operator
from prepbench.prepare.training_flag import place_text

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class WholeModules:
    """Which modules of the user's stay single calls.

    Attributes:
        by_mode: modules that compute other things in training than in evaluation, by ``id``, with the line that does.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], classes: Sequence[Any]) -> None:
        self._excluded = {id(module) for module in modules}
        self._classes = tuple(classes)
        self.by_mode: dict[int, SourceLine | None] = {}

    def reason(self, module: torch.nn.Module) -> str:
        """Why this module stays a single call; "" if its code is traced."""
        if id(module) in self._excluded:
            return "excluded by modules_to_exclude"
        if type(module) in self._classes:
            return f"excluded by module_classes_to_exclude ({type(module).__name__})"
        if id(module) in self.by_mode:
            return f"it computes other things in training than in evaluation ({place_text(self.by_mode[id(module)])})"
        if any(getattr(module, name, None) for name in _HOOKS):
            return "it has hooks, which run only when it is called"
        return ""


class PreparationTracer(RobustTracer):
    """A tracer for which whole modules and prepared operations are leaves."""

    _makes_twin = False

    def __init__(self, whole: WholeModules) -> None:
        super().__init__()
        self._whole = whole
        self.reasons: dict[str, str] = {}

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        if m is self.root:
            return False
        if isinstance(m, Operator):
            return True
        reason = self._whole.reason(m)
        if reason:
            self.reasons[module_qualified_name] = reason
        return bool(reason) or super().is_leaf_module(m, module_qualified_name)


@contextlib.contextmanager
def without_hooks(model: torch.nn.Module) -> Iterator[None]:
    """The model's own hooks are off inside the block: they stay with the prepared model instead of in its graph."""
    with contextlib.ExitStack() as stack:
        for name in _HOOKS:
            if name in vars(model):
                stack.enter_context(patched(model, name, OrderedDict()))
        yield
