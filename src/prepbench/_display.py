"""Late-bound calls from lower layers to higher ones, to display results.

Results belong to the layer that computes them, their diagrams, charts and tables to ``views``. Only this module reaches
upwards: by name, when something is displayed, so that computing never loads pandas, plotly or Graphviz.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prepbench.checks import check_path, check_texts


def view(module: str, function: str, *arguments: Any, **keywords: Any) -> Any:
    """Call ``prepbench.<module>.<function>``, e.g. ``view("views.display", "collection_bundle", self)``."""
    return getattr(importlib.import_module(f"prepbench.{module}"), function)(*arguments, **keywords)


class HasDiagram:
    """A result with a diagram: it can be displayed, printed as text, and saved in several formats."""

    def document(self) -> Any:
        """Return the document that the diagram draws, as plain data."""
        raise NotImplementedError(f"{type(self).__name__} has no document() to draw.")

    def diagram(self, *others: Any) -> Any:
        """Return the live, interactive diagram: an anywidget with the traits ``selected``, ``view`` and ``overlay``.

        Args:
            others: more graphs of the same model to switch to, e.g. its ATen graph beside its module graph.

        Returns:
            The widget.
        """
        return view("views.display", "diagram", self, *others)

    def to_text(self, expanded: Iterable[str] | None = None) -> str:
        """Return the diagram as plain text: an indented tree.

        Args:
            expanded: ids of the open modules; None for the default view.

        Returns:
            The tree, one line for each visible box.
        """
        check_texts("expanded", expanded, "encoder", optional=True)
        opened = None if expanded is None else frozenset(expanded)
        text: str = view("views.page", "to_text", self.document(), opened)
        return text

    def to_html(self, path: str | os.PathLike[str]) -> Path:
        """Write the interactive diagram to one HTML file that needs no network.

        Args:
            path: of the file.

        Returns:
            Its path.
        """
        check_path("path", path)
        written: Path = view("views.page", "write_page", view("views.display", "combined", self), path)
        return written

    def to_graphviz(self, expanded: Iterable[str] | None = None) -> Any:
        """Return the diagram as a ``graphviz.Digraph`` to style or render further.

        Args:
            expanded: ids of the open modules; None for the default view.

        Returns:
            The diagram; rendering it needs the program ``dot``.
        """
        check_texts("expanded", expanded, "encoder", optional=True)
        return view("views.dot", "document_to_graphviz", self.document(), expanded)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document; a file whose name ends in ``.graph.json`` opens as a diagram in JupyterLab.

        Args:
            path: of the file.

        Returns:
            Its path.
        """
        check_path("path", path)
        written: Path = view("views.page", "write_document", self.document(), path)
        return written
