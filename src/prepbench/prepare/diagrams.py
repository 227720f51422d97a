"""The graphs of a model before and after preparation, side by side."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prepbench._display import view
from prepbench.capture.modules.collection import GraphCollection, recursive_trace
from prepbench.prepare.model import PreparedModel


@dataclass(frozen=True)
class BeforeAfter:
    """Two collections that a notebook shows side by side.

    Attributes:
        before: the graphs of the original.
        after: the graphs of the prepared model.
    """

    before: GraphCollection
    after: GraphCollection

    def __repr__(self) -> str:
        return f"before: {self.before!r}\nafter: {self.after!r}"

    def diagram(self) -> Any:
        """Return the live diagram: both graphs side by side, with linked selection and changes marked."""
        return view("views.diagrams", "diagram", self.before, self.after, compare=True)

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write both graphs, side by side and interactive, to one HTML file that needs no network; return its path."""
        both = view("views.diagrams", "combined", self.before, self.after, compare=True)
        written: Path = view("views.page", "write_page", both, path)
        return written

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return view("views.display", "before_after_bundle", self)


def before_and_after(model: torch.nn.Module, prepared: PreparedModel, *, inputs: Any = None) -> BeforeAfter:
    """Return the graphs of both models, to show the changes by preparation.

    Args:
        model: the original.
        prepared: the result of :func:`prepbench.prepare_model`.
        inputs: sample inputs, as for :func:`prepbench.recursive_trace`.
    """
    return BeforeAfter(recursive_trace(model, inputs=inputs), recursive_trace(prepared, inputs=inputs))
