"""The live diagram: an anywidget around pictures that ``views`` makes. It computes nothing itself."""

from __future__ import annotations

import pathlib
from typing import Any

import anywidget
import traitlets

from prepbench.document.model import GraphCollectionDocument
from prepbench.views.details import details, legend, next_level, toggled
from prepbench.views.scene import scene
from prepbench.views.svg import HINT, render, variables

_STATIC = pathlib.Path(__file__).parent / "static"


def _css() -> str:
    """The widget's rules, with the palette's colours for both themes."""
    light, dark = variables("light"), variables("dark")
    return (
        f".pbd{{{light}}}\n@media (prefers-color-scheme:dark){{.pbd{{{dark}}}}}\n"
        f'body[data-jp-theme-light="true"] .pbd{{{light}}}\nbody[data-jp-theme-light="false"] .pbd{{{dark}}}\n'
        + (_STATIC / "diagram.css").read_text()
    )


class DiagramWidget(anywidget.AnyWidget):
    """An interactive diagram of a document.

    Attributes:
        selected: id of the selected box, "" for none; settable.
        expanded: FQNs of the open modules; settable.
        details: what is known about the selection, as shown beside the picture.
    """

    _esm = _STATIC / "diagram.js"
    _css = _css()

    svg = traitlets.Unicode().tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    hint = traitlets.Unicode(HINT).tag(sync=True)
    legend: traitlets.List[Any] = traitlets.List().tag(sync=True)
    selected = traitlets.Unicode().tag(sync=True)
    details = traitlets.Dict().tag(sync=True)
    expanded = traitlets.List(traitlets.Unicode())

    def __init__(self, document: GraphCollectionDocument) -> None:
        self._document = document
        first = scene(document)
        super().__init__(title=document.model_type, svg=render(first, standalone=False) or "", legend=legend(first))
        self.set_trait("expanded", sorted(first.expanded))
        self.observe(self._draw, "expanded")
        self.observe(self._describe, "selected")
        self.on_msg(self._on_action)

    def _draw(self, change: Any) -> None:
        self.svg = render(scene(self._document, self.expanded), standalone=False) or self.svg
        self._describe(change)

    def _describe(self, change: Any) -> None:
        self.details = details(self._document, self.selected, frozenset(self.expanded)) if self.selected else {}

    def _on_action(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        action, box = content.get("action"), str(content.get("id", ""))
        if action == "select":
            self.selected = box
        elif action == "toggle":
            self.expanded = sorted(toggled(self._document, frozenset(self.expanded), box))
        elif action == "open_level":
            self.expanded = sorted(next_level(self._document, frozenset(self.expanded)))
        elif action == "reset":
            self.expanded = sorted(scene(self._document).expanded)


def diagram(document: GraphCollectionDocument) -> DiagramWidget:
    """The live diagram of a document."""
    return DiagramWidget(document)
