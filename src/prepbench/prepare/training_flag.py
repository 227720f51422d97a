"""``Module.training``: record its readers, and run a model in the other mode."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from prepbench.document.model import SourceLine
from prepbench.objects.parts import is_user_code
from prepbench.patching import patched, undoing
from prepbench.running.source_lines import source_of_frame

Reads = dict[int, tuple[torch.nn.Module, SourceLine | None]]
"""The modules whose flag the user's code reads, with the line that does; by ``id``."""

UNKNOWN_LINE = SourceLine("", 0, "code that depends on self.training")


class _WatchedFlag:
    """``Module.training`` as a property that records reads by the user's code."""

    def __init__(self) -> None:
        self.reads: Reads = {}
        self._here = threading.get_ident()

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        frame = sys._getframe(1)
        here = threading.get_ident() == self._here
        if here and id(module) not in self.reads and is_user_code(frame.f_code):
            self.reads[id(module)] = module, source_of_frame(frame)
        own = vars(module)
        return own["training"] if "training" in own else type(module).__getattr__(module, "training")

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)["training"] = value


@contextlib.contextmanager
def reads_of_training() -> Iterator[Reads]:
    """Record the readers of ``training`` during the block."""
    flag = _WatchedFlag()
    with patched(torch.nn.Module, "training", flag):
        yield flag.reads


@contextlib.contextmanager
def in_other_mode(model: torch.nn.Module, *others: torch.nn.Module) -> Iterator[None]:
    """Put all modules into the mode that ``model`` is not in, without calling ``train()``, during the block."""
    modules = [part for root in (model, *others) for part in root.modules()]
    flags = [(part, part.training) for part in modules if not isinstance(part, torch.jit.ScriptModule)]
    other = not model.training
    with undoing() as undo:
        for part, flag in flags:
            undo.add(functools.partial(setattr, part, "training", flag))
            part.training = other
        yield


def place_text(source: SourceLine | None) -> str:
    """Return a user's line for a message; only its code if the line number is unknown."""
    source = source or UNKNOWN_LINE
    return f"{source.file}:{source.line}: {source.code}" if source.line else source.code
