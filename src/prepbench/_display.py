"""Late-bound calls from lower layers to higher ones, to display results.

Results belong to the layer that computes them, their diagrams, charts and tables to ``views``. Only this module reaches
upwards: by name, when something is displayed, so that computing never loads pandas, plotly or Graphviz.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prepbench.checks import check_path, check_switch, check_texts
from prepbench.strict_pages import for_strict_pages


def view(module: str, function: str, *arguments: Any, **keywords: Any) -> Any:
    """Call ``prepbench.<module>.<function>``, e.g. ``view("views.display", "collection_bundle", self)``.

    Of a bundle, which is what functions of that name return, the parts that were chosen by :func:`static`. HTML is
    made readable for strict pages.
    """
    made = getattr(importlib.import_module(f"prepbench.{module}"), function)(*arguments, **keywords)
    if function.endswith("_html"):
        return for_strict_pages(made)
    return as_chosen(made) if function.endswith("bundle") else made


_VARIABLE = "PREPBENCH_STATIC"
_OF_A_PROGRAM = re.compile(r"[^_]+_\d+_\d+")  # session, process and count: how jupyter_client numbers its messages

_chosen: bool | None = None


def static(on: bool = True) -> AbstractContextManager[None]:
    """Show pictures in the place of live views, from now on or during a ``with`` block.

    Diagrams and benches are shown live only where somebody can use them: where a page asked for the cell to run. A
    program that runs a notebook, such as nbconvert, papermill or a book, gets the picture, and no state of widgets.
    This overrules it, as does the environment variable ``PREPBENCH_STATIC`` (``1`` for pictures, ``0`` for live views).

    Args:
        on: True for a text and a picture or table everywhere, also in JupyterLab, and nothing else: without the
            documents that JupyterLab draws, of which Sphinx warns. False for live views everywhere, also where a
            program runs the notebook.

    Returns:
        What ends it when used in a ``with`` statement; what is shown inside it follows it.

    Raises:
        SettingsError: ``on`` is not a boolean.

    Example:
        >>> import prepbench as pb
        >>> from IPython.display import display
        >>> graph = pb.recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2)), inputs=torch.ones(2, 4))
        >>> with pb.static():
        ...     display(graph.diagram())  # pb.static() in a line of its own holds for all that follows
    """
    check_switch("on", on)
    return _Static(on)


class _Static(AbstractContextManager[None]):
    def __init__(self, on: bool) -> None:
        global _chosen
        self._on, self._before = on, _chosen
        _chosen = on

    def __enter__(self) -> None:
        """Nothing: it is on since it was made."""

    def __exit__(self, *error: object) -> None:
        global _chosen
        _chosen = self._before

    def __repr__(self) -> str:
        return f"static({self._on}): {'pictures' if self._on else 'live views'} from here on"


def is_static() -> bool:
    """Whether what is shown now is no live view."""
    chosen = _choice()
    return is_asked_by_program() if chosen is None else chosen


def as_chosen(bundle: dict[str, Any]) -> dict[str, Any]:
    """Return an output with what every reader knows only, if that was chosen; its HTML is readable in strict pages."""
    chosen = {kind: data for kind, data in bundle.items() if not (_choice() and kind.startswith("application/vnd."))}
    if "text/html" in chosen:
        chosen["text/html"] = for_strict_pages(chosen["text/html"])
    return chosen


def _choice() -> bool | None:
    wanted = os.environ.get(_VARIABLE, "")
    return _chosen if _chosen is not None or not wanted else wanted.lower() not in ("0", "false", "no", "off")


def is_asked_by_program() -> bool:
    """Whether a program asked for the running cell; its pages come later and from a file, without the kernel."""
    if os.environ.get("SERVER_SOFTWARE", "").startswith("voila"):  # a program that leaves the kernel to its pages
        return False
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return _OF_A_PROGRAM.fullmatch(str((request or {}).get("header", {}).get("msg_id", ""))) is not None


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
