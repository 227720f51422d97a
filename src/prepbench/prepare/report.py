"""The report of preparation: changes, kept operations with reasons, and the differences of outputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from prepbench._display import view
from prepbench.document.model import SourceLine


@dataclass(frozen=True)
class Change:
    """One change by preparation.

    Attributes:
        kind: the kind of change, e.g. ``"operation to module"``.
        node: the graph's node, as it is called now.
        module: fully qualified name (FQN) of the module that does it now.
        module_type: its class.
        was: its former operation: a function such as ``"torch.nn.functional.relu"``, or another module's name.
        why: the reason.
        source: the user's line, if known.
    """

    kind: str
    node: str
    module: str
    module_type: str
    was: str
    why: str
    source: SourceLine | None = None


@dataclass(frozen=True)
class Kept:
    """An operation that preparation did not change."""

    node: str
    fqn: str
    operation: str
    why: str
    source: SourceLine | None = None


@dataclass(frozen=True)
class Compared:
    """One comparison of the prepared model with the original.

    Attributes:
        inputs: the description of the inputs, e.g. ``"inputs[0]"`` or ``"unseen sizes: x (3, 3, 32, 32)"``.
        largest: the largest difference of outputs and buffers, relative to the largest value of the same tensor.
        note: why nothing was compared; "" if it was.
    """

    inputs: str
    largest: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class PreparationReport:
    """The report of one preparation.

    Attributes:
        model_type: class of the prepared model.
        changes: one entry for each thing that was changed, in the order of the passes.
        kept: the remaining functions, methods and whole modules of the user's, with the reasons.
        compared: the comparisons with the original; empty without inputs.
        notes: assumptions and limits of the prepared model.

    Example:
        >>> import torch
        >>> from prepbench.prepare import prepare_model
        >>> prepared = prepare_model(torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()))
        >>> prepared.preparation_report
        Preparation of Sequential: nothing to change
          not compared: without inputs= there is nothing to compare on
    """

    model_type: str
    changes: tuple[Change, ...] = ()
    kept: tuple[Kept, ...] = ()
    compared: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def largest_difference(self) -> float | None:
        """The largest relative difference of all comparisons; ``None`` if nothing was compared."""
        found = [comparison.largest for comparison in self.compared if not comparison.note]
        return max(found) if found else None

    @property
    def renames(self) -> dict[str, str]:
        """New names of modules that replaced others: ``{new name: old name}``."""
        return {change.module: change.was for change in self.changes if change.kind in _RENAMES and change.module}

    def table(self) -> Any:
        """Return all changes as a ``pandas.DataFrame``."""
        return view("views.display", "records_table", self.changes, Change)

    def kept_table(self) -> Any:
        """Return the unchanged operations as a ``pandas.DataFrame``."""
        return view("views.display", "records_table", self.kept, Kept)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "preparation_bundle", self)

    def __repr__(self) -> str:
        count = Counter(change.kind for change in self.changes)
        done = ", ".join(f"{number} {_plural(kind, number)}" for kind, number in count.items())
        lines = [f"Preparation of {self.model_type}: {done or 'nothing to change'}"]
        reasons = Counter(kept.why for kept in self.kept)
        lines += [f"  {number} left as they are: {why}" for why, number in reasons.items()]
        for comparison in self.compared:
            lines.append(f"  {comparison.inputs}: {comparison.note or _difference(comparison.largest)}")
        if not self.compared:
            lines.append("  not compared: without inputs= there is nothing to compare on")
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


_RENAMES = ("reused module", "batch norm folded", "activation decomposed")
_PLURALS = {
    "operation to module": "operations to modules",
    "reused module": "reused modules",
    "argument kept": "arguments kept",
    "batch norm folded": "batch norms folded",
    "module removed": "modules removed",
    "activation decomposed": "activations decomposed",
}


def _plural(kind: str, number: int) -> str:
    return _PLURALS.get(kind, kind) if number != 1 else kind


def _difference(largest: float) -> str:
    return "equal" if largest == 0 else f"largest relative difference {largest:.1e}"
