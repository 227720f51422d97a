"""The live diagram: a document, and the page's selection, open groups and colours. It computes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from prepbench._display import as_chosen, is_static
from prepbench.document.codec import from_json, to_json
from prepbench.document.model import DiagramDocument, GraphCollectionDocument, Overlay
from prepbench.errors import InputError, PrepbenchError
from prepbench.views.display import LEVELS, diagram_bundle
from prepbench.views.overlays import make_overlay
from prepbench.views.page import STATIC, packed, page, script, write_page
from prepbench.widgets.actions import Action, Nothing, perform


class _Overlay(str):
    """The name of the shown overlay; calling it with a table adds one."""

    _widget: DiagramWidget

    def __call__(self, table: Any, column: str | None = None, **options: Any) -> DiagramWidget:
        return self._widget.add_overlay(table, column, **options)


class _OverlayTrait(traitlets.Unicode[Any, Any]):
    def get(self, obj: Any, cls: Any = None) -> Any:
        value = _Overlay(super().get(obj, cls))
        value._widget = obj
        return value


class DiagramWidget(anywidget.AnyWidget):
    """An interactive diagram.

    The page draws it: opening and closing modules, search and the rest need no kernel.

    Attributes:
        selected: FQNs of the selected modules; settable, which brings them into view.
        view: the open and shown parts, as the diagram keeps them: ``open`` (ids of open modules, None for the first
            view), ``unfolded``, ``root``, ``around``, ``hops``, ``depth``; settable, in parts too.
        overlay: name of the overlay that colours the boxes, "" for none; settable. Call it with a table to add one:
            ``diagram.overlay(table, "sqnr")``.
        height: CSS height, e.g. ``"640px"``.

    Example:
        >>> import torch, prepbench as pb
        >>> diagram = pb.recursive_trace(torch.nn.Sequential(torch.nn.Linear(4, 2))).diagram()
        >>> diagram.overlay({"0": 8}, name="bits").overlay
        'bits'
    """

    _esm = STATIC / "diagram.js"
    _css = STATIC / "diagram.css"

    data = traitlets.Bytes().tag(sync=True)
    selected: traitlets.List[Any] = traitlets.List(traitlets.Unicode()).tag(sync=True)
    view = traitlets.Dict().tag(sync=True)
    overlay = _OverlayTrait().tag(sync=True)
    overlay_data = traitlets.Bytes().tag(sync=True)  # packed: an overlay names every layer, and a click may change it
    height = traitlets.Unicode("620px").tag(sync=True)

    def __init__(self, document: GraphCollectionDocument | DiagramDocument, **traits: Any) -> None:
        whole = document if isinstance(document, DiagramDocument) else DiagramDocument((document,))
        self._document = replace(whole, overlays=(), overlay="")
        self._made: dict[str, Overlay] = {}
        super().__init__(data=packed(to_json(self._document)), **traits)
        for overlay in whole.overlays:
            self._add(overlay)
        self.on_msg(self._on_request)

    def add_overlay(
        self,
        table: Any,
        column: str | None = None,
        *,
        name: str | None = None,
        unit: str = "",
        combine: str = "",
        diverging: bool | None = None,
        show: bool = True,
    ) -> DiagramWidget:
        """Colour the boxes by a table, and show that; an overlay of the same name is replaced.

        Args:
            table: values by FQN: a mapping, a pandas ``Series`` or a ``DataFrame``.
            column: the column with the values, if there are several.
            name: shown in the legend; the column's name if left out.
            unit: e.g. ``"ms"``.
            combine: how the values inside a closed module become one: ``"sum"``, ``"mean"``, ``"max"``, ``"min"``.
            diverging: put zero in the middle of the scale.
            show: False only offers it, and leaves the one that is shown.

        Returns:
            This widget.

        Raises:
            InputError: no such column, or no name in the table is a module of the model.
        """
        given: dict[str, Any] = {"name": name, "unit": unit, "combine": combine, "diverging": diverging}
        self._add(make_overlay(table, self._document.documents, column=column, **given), show=show)
        return self

    def to_html(self, path: str) -> Path:
        """Write the diagram with its overlays to one HTML file that needs no network."""
        return write_page(self.document, path)

    @property
    def document(self) -> DiagramDocument:
        """Return the shown document, with the overlays."""
        return replace(self._document, overlays=tuple(self._made.values()), overlay=str(self.overlay))

    @property
    def overlays(self) -> list[dict[str, Any]]:
        """Return the overlays as plain data."""
        return [asdict(each) for each in self._made.values()]

    def _add(self, overlay: Overlay, *, show: bool = True) -> None:
        self._made[overlay.name] = overlay
        with self.hold_sync():
            self.overlay_data = packed(json.dumps(self.overlays, ensure_ascii=False))
            if show:
                self.overlay = overlay.name

    @traitlets.validate("overlay")
    def _check_overlay(self, proposal: Any) -> Any:
        if proposal["value"] and proposal["value"] not in self._made:
            raise InputError(f"There is no overlay {proposal['value']!r}; there are {list(self._made) or 'none'}.")
        return proposal["value"]

    def send_layout(self) -> None:
        """Send the layout engine, compressed; the page asks for it once."""
        self.send({"action": "layout"}, [packed(script("layout.js"))])

    def send_page(self, document: str) -> None:
        """Send the document, which the page returns as JSON, as one HTML file."""
        self.send({"action": "page"}, [page(from_json(document)).encode()])

    def open(self) -> None:
        """Tell the page of the widget. Where pictures are shown there is no page, and a notebook would keep the state
        of a widget that it does not show.
        """
        if not is_static():
            super().open()

    @property
    def model_id(self) -> str:
        """Return the widget's id, for a box that it is put into: then there is a page, whatever is shown."""
        if self.comm is None:
            super().open()
        return str(super().model_id)

    def __repr__(self) -> str:
        graphs = (f"{each.model_type} ({LEVELS[each.level]} graph)" for each in self._document.documents)
        return f"Diagram of {', '.join(graphs)}"

    def _on_request(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        try:
            perform(DIAGRAM_ACTIONS, self, content)
        except PrepbenchError as error:
            self.send({"action": content.get("action"), "error": str(error)})

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        """Return a text, a picture and the document; with them the live view, where somebody can use it."""
        still = as_chosen(diagram_bundle(self.document))
        bundle = None if is_static() else super()._repr_mimebundle_(**keywords)
        return ({**bundle[0], **still}, *bundle[1:]) if isinstance(bundle, tuple) else still


@dataclass(frozen=True)
class MakePage:
    """Make one HTML file of a document."""

    document: str


DIAGRAM_ACTIONS: Mapping[str, Action[DiagramWidget]] = {
    "layout": Action(Nothing, lambda widget: widget.send_layout),
    "page": Action(MakePage, lambda widget: widget.send_page),
}


def diagram(document: GraphCollectionDocument | DiagramDocument) -> DiagramWidget:
    """Return the live diagram of one or several documents."""
    return DiagramWidget(document)
