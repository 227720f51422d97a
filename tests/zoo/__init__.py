"""Hard models: one function per model, with its inputs and what tracing it must give.

Every model is registered in :data:`ZOO` with :func:`case`; tests of capture, preparation and export take their models
from there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ZooCase:
    """One hard model.

    Attributes:
        name: its key in :data:`ZOO`.
        make: makes the model, seeded by the caller.
        samples: sample inputs, in the forms that ``inputs=`` takes.
        unseen: inputs of sizes that no sample has; the traced graph must equal the model on them.
        failed: modules that cannot be traced even with samples, in order.
        kinds: the reasons, in the same order.
        assumes: part of the one assumption about sizes that the graph must report; such a graph refuses ``unseen``.
        symbolic_failed: modules that fail without samples; ``None`` if not checked.
        leaves: modules that ``capture(fullgraph=False)`` keeps as operators, in order.
        bounded: axes, such as ``"x.shape[1]"``, for which the captured graph says that it does not take every size.
        refused: part of the message with which ``capture(fullgraph=False)`` refuses the model.
    """

    name: str
    make: Callable[[], Any]
    samples: list[Any]
    unseen: list[Any]
    failed: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    assumes: str = ""
    symbolic_failed: tuple[str, ...] | None = None
    leaves: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    refused: str = ""


ZOO: dict[str, ZooCase] = {}


def case(samples: list[Any], unseen: list[Any], **expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register the decorated factory under its name."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        ZOO[make.__name__] = ZooCase(make.__name__, make, samples, unseen, **expected)
        return make

    return register


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """One seeded tensor per shape."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


_GROUPS = (
    "control_flow", "python_values", "structures", "mutation", "operators", "modules", "failures", "networks", "leaves",
    "leaf_writes", "habits", "state",
)  # fmt: skip
for _group in _GROUPS:
    importlib.import_module(f"{__name__}.{_group}")
