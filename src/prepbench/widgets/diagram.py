"""The live diagram: a document, and the page's selection, open groups and colours. It computes nothing."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from prepbench._display import as_chosen, is_static
from prepbench.document.codec import from_json, to_json
from prepbench.document.model import DiagramDocument, GraphCollectionDocument, Overlay
from prepbench.errors import InputError, PrepbenchError
from prepbench.objects.code import change_text
from prepbench.views.display import LEVELS, combined, diagram_bundle
from prepbench.views.overlays import make_overlay
from prepbench.views.page import STATIC, packed, page, script, to_text, write_page
from prepbench.widgets.actions import Action, Nothing, perform
from prepbench.widgets.displays import add_display, call_after_cells, close_all


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
    overlay = _OverlayTrait().tag(sync=True, to_json=lambda name, widget: str(name))
    overlay_data = traitlets.Bytes().tag(sync=True)  # packed: an overlay names every layer, and a click may change it
    height = traitlets.Unicode("620px").tag(sync=True)

    newer = traitlets.Unicode("").tag(sync=True)  # the changes of the code since, in a sentence

    def __init__(
        self, document: GraphCollectionDocument | DiagramDocument, sources: Sequence[Any] = (), **traits: Any
    ) -> None:
        self._sources = tuple(sources)
        self._end: Callable[[], None] = _nothing
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

    def remove_overlay(self, name: str) -> None:
        """Offer an overlay no longer; the boxes have no colours where it was the one that is shown."""
        if self._made.pop(name, None) is None:
            return
        with self.hold_sync():
            if self.overlay == name:
                self.overlay = ""
            self.overlay_data = packed(json.dumps(self.overlays, ensure_ascii=False))

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

    def again(self) -> None:
        """Give the shown models the newest definitions of their classes, capture them again, and show that.

        Raises:
            InputError: a module cannot take on its newest class.
            CaptureError: a model cannot be captured any more; what was shown stays.
        """
        self._sources = tuple(each.again() if _newer((each,)) else each for each in self._sources)
        shown = self._document
        with self.hold_sync():
            self._show(combined(*self._sources, titles=shown.titles, compare=shown.arrangement == "compare"))
            self.newer = ""

    def replace_document(self, document: GraphCollectionDocument) -> None:
        """Show another document, without the overlays of the one before; what is open and selected stays."""
        self._made = {}
        with self.hold_sync():
            self.overlay, self.overlay_data = "", b""
            self._show(DiagramDocument((document,)))

    def _show(self, document: DiagramDocument) -> None:
        self._document = document
        self.data = packed(to_json(document))

    def look_at_code(self) -> None:
        """Say whether the code of the shown models has changed."""
        self.newer = change_text(_newer(self._sources))

    def _follow_code(self) -> None:
        if any(hasattr(each, "newer_code") for each in self._sources):
            reference = weakref.ref(self)  # the notebook keeps what it calls
            self._end = call_after_cells(lambda: _look_at_code(reference))

    def close(self) -> None:
        """Stop following the code, and close the widget; who shows it again opens it again."""
        self._end()
        super().close()
        self.__dict__.pop("_repr_mimebundle_", None)  # which ipywidgets sets to None

    def open(self) -> None:
        """Tell the page of the widget. Where pictures are shown there is no page, and a notebook would keep the state
        of a widget that it does not show.
        """
        if not is_static():
            super().open()
            self._follow_code()

    @property
    def model_id(self) -> str:
        """Return the widget's id, for a box that it is put into: then there is a page, whatever is shown."""
        if self.comm is None:
            if self.layout.comm is None:
                self.layout.open()
            super().open()
            self._follow_code()
        return str(super().model_id)

    def send_again(self) -> None:
        """Do :meth:`again`, for the page."""
        self.again()
        self.send({"action": "again"})

    def __repr__(self) -> str:
        graphs = (f"{each.model_type} ({LEVELS[each.level]} graph)" for each in self._document.documents)
        return f"Diagram of {', '.join(graphs)}"

    def _text(self) -> str:
        return "\n\n".join([repr(self), *map(to_text, self._document.documents)])

    def _on_request(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        try:
            perform(DIAGRAM_ACTIONS, self, content)
        except PrepbenchError as error:
            self.send({"action": content.get("action"), "error": str(error)})

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        """Return a text, a picture and the document; with them the live view, where somebody can use it."""
        still = as_chosen({**diagram_bundle(self.document), "text/plain": self._text()})
        bundle = None if is_static() else super()._repr_mimebundle_(**keywords)
        if bundle is not None:
            add_display(self, lambda: close_all(self))
        return ({**bundle[0], **still}, *bundle[1:]) if isinstance(bundle, tuple) else still


@dataclass(frozen=True)
class MakePage:
    """Make one HTML file of a document."""

    document: str


def _nothing() -> None:
    """Nothing has to be ended."""


def _newer(sources: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in sources for name in getattr(each, "newer_code", ())))


def _look_at_code(reference: weakref.ref[DiagramWidget]) -> None:
    widget = reference()
    if widget is not None:
        widget.look_at_code()


DIAGRAM_ACTIONS: Mapping[str, Action[DiagramWidget]] = {
    "again": Action(Nothing, lambda widget: widget.send_again),
    "layout": Action(Nothing, lambda widget: widget.send_layout),
    "page": Action(MakePage, lambda widget: widget.send_page),
}


def diagram(document: GraphCollectionDocument | DiagramDocument, sources: Sequence[Any] = ()) -> DiagramWidget:
    """Return the live diagram of one or several documents; ``sources`` is what they were made of."""
    return DiagramWidget(document, sources)
