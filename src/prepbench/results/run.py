"""A measurement with a name and its choices, as a history keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from prepbench.results.measurement import Measurement, Result

_OF_THE_PAGE = ("targets",)  # choices of the bench that say nothing about one compile


@dataclass(frozen=True, kw_only=True)
class Run(Measurement):
    """One compile of the bench: a measurement with its choices.

    Attributes:
        id: names the run; the same in the history, the journal and saved files.
        name: the display name.
        state: the choices that it was made with, as ``BenchState.to_json()`` writes them.
        target_name: the target for people, e.g. ``"ONNX Runtime"``.
        targets: all targets that were compiled for together, as ``BenchState.to_json()`` writes them.
        pinned: whether it stays at the top of the history.
        pruned: the outcome of pruning in words, by FQN of each layer with a decision.
        recovered: the gain of the training, in a sentence; empty without training.
    """

    id: str
    name: str
    state: Mapping[str, Any]
    target_name: str
    targets: tuple[Mapping[str, Any], ...] = ()
    pinned: bool = False
    pruned: Mapping[str, str] = field(default_factory=dict, repr=False)
    recovered: str = ""

    @property
    def result(self) -> Result:
        """Return the measurement without the fields of the history."""
        plan = {name: value for name, value in self.state.items() if name not in _OF_THE_PAGE}
        return Result(plan=plan, **{one.name: getattr(self, one.name) for one in fields(Measurement)})
