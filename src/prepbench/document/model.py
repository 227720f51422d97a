"""The graph-collection document: captured graphs as plain data (standard library only).

Diagrams, tables and files are made from a document. It holds no tensors and no code, and every string in it that
comes from a user's model is untrusted text.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from prepbench.checks import check_path
from prepbench.errors import DocumentError

VERSION = "1.2"
MIME_TYPE = "application/vnd.prepbench.graph+json"

Status = Literal["traced", "failed", "leaf", "unvisited"]
STATUS_WORDS: dict[Status, str] = {
    "traced": "traced",
    "leaf": "kept in PyTorch",
    "failed": "failed",
    "unvisited": "not reached",
}
"""What a status is called wherever people read it."""
Level = Literal["module", "aten"]
Kind = Literal["number", "category", "precision"]
Combine = Literal["sum", "mean", "max", "min"]
Arrangement = Literal["levels", "compare"]
Change = Literal["added", "removed", "changed"]
Operation = Literal["placeholder", "get_attr", "call_module", "call_function", "call_method", "output"]


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code: ``file`` as Python names it, 1-based ``line``, and its stripped text."""

    file: str
    line: int
    code: str = ""


@dataclass(frozen=True)
class Failure:
    """The reason why one module could not be captured.

    Attributes:
        fqn: fully qualified name of the module ("" is the model itself).
        module_type: class name of the module.
        kind: stable name of the reason, e.g. ``"data-dependent branch"``.
        exception_type: class name of the exception that was raised.
        message: its message, normalised (no addresses, no colours).
        source: the user's line that raised it, if known.
        remedy: how to fix it, in one or two sentences.
        frame: the lines around ``source`` with their numbers, the failing one marked with ``>``.
    """

    fqn: str
    module_type: str
    kind: str
    exception_type: str
    message: str
    source: SourceLine | None = None
    remedy: str = ""
    frame: str = ""

    @property
    def lines(self) -> tuple[int, int] | None:
        """The first and the last line of the statements that are a leaf; None where the whole module is.

        Known in the process that captured; in a document the node of the leaf is labelled with its lines.
        """
        return self.__dict__.get("_lines")

    @property
    def part(self) -> str:
        """The failing part in words: the module's name, and the lines where only these fail."""
        if self.lines is None:
            return self.fqn or "the model itself"
        first, last = self.lines
        lines = f"line {first}" if first == last else f"lines {first} to {last}"
        return f"{lines} of {self.fqn or 'the model'}"

    @property
    def fix(self) -> Any:
        """The proven fix of this failure, or its draft, if :func:`prepbench.fix` searched for one; else None."""
        return self.__dict__.get("_fix")

    def reproduce(self, path: str | os.PathLike[str]) -> Path:
        """Write a self-contained script with the failing module and its inputs; running it fails alike.

        Large tensors go to a ``.safetensors`` file beside it.

        Raises:
            DocumentError: this failure was read from a document, which holds neither code nor weights.
            CaptureError: the module holds something that a script cannot; the message names it.
        """
        check_path("path", path)
        reproduction = self.__dict__.get("_reproduction")
        if reproduction is None:
            raise DocumentError(
                f"The failure of {self.fqn or 'the model'} is data without its module. Take it from the result of "
                "recursive_trace, capture or check_traceability to reproduce it."
            )
        written: Path = reproduction.write(Path(path))
        return written


@dataclass(frozen=True)
class Finding:
    """An assumption of a successful capture.

    Attributes:
        fqn: the module it belongs to.
        module_type: its class, "" if not known.
        kind: stable name, e.g. ``"training flag fixed"``.
        message: the assumption or the effect.
        source: the user's line, if known.
        frame: the lines around it.
        remedy: how to avoid it.
    """

    fqn: str
    module_type: str
    kind: str
    message: str
    source: SourceLine | None = None
    frame: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Node:
    """One operation of a graph.

    Attributes:
        id: unique within the document and stable from capture to capture.
        op: the FX operation.
        label: short text for people, e.g. ``"conv1"`` or ``"relu"``.
        target: full text of the FX target, e.g. ``"layer1.0.conv1"`` or ``"torch.nn.functional.relu"``.
        fqn: the module that owns the operation (for ``call_module``, the called module itself).
        type: module class name for ``call_module``, else the operator's name.
        status: the capture status.
        shapes: one text per output, e.g. ``"B×3×H×W"``.
        dtypes: one text per output, e.g. ``"float32"``.
        inputs: ids of the nodes whose values this node uses, in argument order.
        source: the user's line that made the operation.
        group: id of the group that it is drawn in; None for nodes that are not drawn (parameters, sizes). A node whose
            ``fqn`` is not that group's stands for a whole module.
        call: which call of its module it belongs to, from 1.
    """

    id: str
    op: Operation
    label: str
    target: str
    fqn: str = ""
    type: str = ""
    status: Status = "traced"
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    source: SourceLine | None = None
    group: str | None = None
    call: int = 1


@dataclass(frozen=True)
class Graph:
    """One captured graph: that of the module ``fqn`` ("" is the model itself); nodes are in execution order."""

    id: str
    fqn: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Module:
    """One submodule of the model, in ``named_modules()`` order; the hierarchy is in the names.

    ``parameters`` counts elements of the module's own and its descendants' parameters.
    """

    fqn: str
    type: str
    status: Status
    parameters: int = 0
    calls: int = 0
    failure: Failure | None = None


@dataclass(frozen=True)
class CodeFrame:
    """The lines around a line of the user's code, with their numbers, the line itself marked with ``>``."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Size:
    """A name in shapes, and its meaning: ``"x.shape[2]"``, or a formula such as ``"(H - 1)//2 + 1"``."""

    name: str
    meaning: str


@dataclass(frozen=True)
class Group:
    """A module as the diagram nests it: one call and its content.

    Attributes:
        id: the module's FQN, with ``@2`` and so on for later calls; "" is the model.
        parent: id of the group around it; None for the model.
        fqn: the module.
        call: which call it is, from 1.
        alike: groups with the same number hold the same operations, wired alike, with the same shapes and status; 0
            when there is no other like it.
        label: for a part of a module with very many operations, its name, e.g. ``"operations 1 … 40"``.
    """

    id: str
    parent: str | None
    fqn: str
    call: int = 1
    alike: int = 0
    label: str = ""


@dataclass(frozen=True)
class GraphCollectionDocument:
    """Everything captured of one model at one level.

    ``groups`` are ordered by their first operation, parents before children. ``frames`` has the lines around those
    that nodes name, each once. ``sizes`` defines the names in shapes.
    """

    model_type: str
    level: Level
    graphs: tuple[Graph, ...]
    modules: tuple[Module, ...]
    failures: tuple[Failure, ...] = ()
    findings: tuple[Finding, ...] = ()
    groups: tuple[Group, ...] = ()
    frames: tuple[CodeFrame, ...] = ()
    sizes: tuple[Size, ...] = ()
    version: str = VERSION


@dataclass(frozen=True)
class OverlayValue:
    """The value of an overlay for one module: a number or, for categories, a text."""

    fqn: str
    number: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Overlay:
    """Values by module that colour the boxes of a diagram.

    Attributes:
        name: shown in the legend and in the list to choose from.
        kind: numbers on a continuous scale, categories, or a precision such as ``"int8"``.
        unit: e.g. ``"ms"``; "" for none.
        combine: how the values inside a closed module become one.
        diverging: whether the scale has zero in its middle.
        values: at most one for each module; modules without one stay as they are.
    """

    name: str
    kind: Kind
    unit: str = ""
    combine: Combine = "sum"
    diverging: bool = False
    values: tuple[OverlayValue, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A difference between two documents, at a node or a module of one of them (by position in ``documents``)."""

    document: int
    id: str
    change: Change
    note: str = ""


@dataclass(frozen=True)
class DiagramDocument:
    """Several documents of the same model that are shown together, and their overlays.

    Attributes:
        documents: one, or several with a name each in ``titles``.
        overlay: name of the overlay that is shown at first; "" for none.
        arrangement: one at a time, to switch between (``"levels"``), or side by side (``"compare"``).
    """

    documents: tuple[GraphCollectionDocument, ...]
    titles: tuple[str, ...] = ()
    arrangement: Arrangement = "levels"
    overlays: tuple[Overlay, ...] = ()
    overlay: str = ""
    marks: tuple[Mark, ...] = ()
    version: str = VERSION


# Merge failures for display: one reason at one line is shown once, with all its modules.


def alike_failures(failures: Iterable[Failure]) -> list[Failure]:
    """Merge failures of one reason at one line into one, with the names of all its modules.

    The FQN of such a failure is e.g. ``"layers.*.attention (24)"``; it is for display only.
    """
    alike: dict[object, list[Failure]] = {}
    for failure in failures:
        place = failure.source or failure.message
        alike.setdefault((failure.module_type, failure.kind, failure.exception_type, place), []).append(failure)
    return [
        with_lines(replace(same[0], fqn=_names(failure.fqn for failure in same)), same[0].lines)
        if len(same) > 1
        else same[0]
        for same in alike.values()
    ]


def with_lines(failure: Failure, lines: tuple[int, int] | None) -> Failure:
    """Change a failure in place to one of some lines of its module, and return it."""
    # no field: documents and their schema know the lines by the label of the node
    object.__setattr__(failure, "_lines", lines)
    return failure


def _names(fqns: Iterable[str]) -> str:
    """Return names with ``*`` for numbers, each with the number of names it stands for."""
    counts = Counter(re.sub(r"(?<![^.])\d+(?![^.])", "*", fqn) or "the model" for fqn in fqns)
    return ", ".join(f"{name} ({count})" if count > 1 else name for name, count in counts.items())
