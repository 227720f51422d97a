"""The workbench as a widget: controls, diagram and comparison chart around one :class:`prepbench.Bench`. It
computes nothing.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

from prepbench.errors import PrepbenchError
from prepbench.jobs import Cancelled, Progress
from prepbench.views.page import STATIC
from prepbench.widgets.diagram import diagram

if TYPE_CHECKING:
    from prepbench.bench import Bench

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class BenchControls(anywidget.AnyWidget):
    """The controls of the bench: every trait mirrors the bench, every click is a method call on it."""

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    title = traitlets.Unicode().tag(sync=True)
    summary = traitlets.Unicode().tag(sync=True)
    axes: traitlets.List[Any] = traitlets.List().tag(sync=True)
    layers: traitlets.List[Any] = traitlets.List().tag(sync=True)
    precisions: traitlets.List[Any] = traitlets.List().tag(sync=True)
    quantizable = traitlets.Bool().tag(sync=True)
    target = traitlets.Unicode().tag(sync=True)
    targets: traitlets.List[Any] = traitlets.List().tag(sync=True)
    leaf_wrap = traitlets.Bool().tag(sync=True)
    failures = traitlets.Int().tag(sync=True)
    running = traitlets.Bool().tag(sync=True)
    progress = traitlets.Dict().tag(sync=True)
    message = traitlets.Dict().tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    can_undo = traitlets.Bool().tag(sync=True)
    can_redo = traitlets.Bool().tag(sync=True)

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        super().__init__(
            **bench.summary(), running=False, progress=_plain(Progress("", 0, 0)), message=_message("", "")
        )
        self._stop_listening = bench.on_change(self.refresh)
        self.on_msg(self._on_action)

    def refresh(self) -> None:
        """Read everything from the bench again."""
        self.set_trait_values(self._bench.summary())

    def set_trait_values(self, values: dict[str, Any]) -> None:
        """Set several traits in one message to the page."""
        with self.hold_sync():
            for name, value in values.items():
                setattr(self, name, value)

    def close(self) -> None:
        """Stop listening to the bench and close the widget."""
        self._stop_listening()
        super().close()

    def _on_action(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        action = content.get("action")
        try:
            if action == "set_axis":
                self._bench.set_axis(content["path"], int(content["dim"]), bool(content["dynamic"]))
            elif action == "set_precision":
                self._bench.set_precision(content["fqns"], content["precision"])
            elif action == "set_target":
                self._bench.set_target(content["target"])
            elif action == "set_leaf_wrap":
                self._bench.set_leaf_wrap(bool(content["leaf_wrap"]))
            elif action in ("undo", "redo"):
                getattr(self._bench, action)()
            elif action == "compile":
                self._compile()
            elif action == "cancel" and self._bench.job is not None:
                self._bench.job.cancel()
        except PrepbenchError as error:
            self.message = _message("error", str(error))

    def _compile(self) -> None:
        self.set_trait_values(
            {"running": True, "message": _message("", ""), "progress": _plain(Progress("starting", 0, 0))}
        )
        self._bench.start(self._on_progress, self._on_end)

    def _on_progress(self, progress: Progress) -> None:
        self.progress = _plain(progress)

    def _on_end(self, error: BaseException | None) -> None:
        if error is None:
            message = _message("info", self._bench.outcome())
        elif isinstance(error, Cancelled):
            message = _message("info", str(error))
        elif isinstance(error, PrepbenchError):
            message = _message("error", str(error))
        else:
            message = _message("error", f"{type(error).__name__}: {error}")
        self.set_trait_values({"running": False, "message": message})


def bench_widget(bench: Bench) -> ipywidgets.VBox:
    """The workbench of ``bench``: diagram and controls side by side, the comparison chart below."""
    controls = BenchControls(bench)
    picture = diagram(bench.collection.document())
    chart = ipywidgets.Output()

    def refresh_chart() -> None:
        if bench.comparison is not None:
            data = bench.comparison._repr_mimebundle_()
            # assigned, not captured: the change may come from the compile thread
            chart.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    coloured: dict[str, str] = {}

    def colour() -> None:
        if bench.precisions and coloured != bench.precisions:  # else whoever chose another overlay would lose it
            coloured.update(bench.precisions)
            picture.add_overlay(coloured, name="precision")

    for refresh in (refresh_chart, colour):
        bench.on_change(refresh)
        refresh()
    for part, basis in ((picture, "440px"), (controls, "520px")):
        part.layout = ipywidgets.Layout(flex=f"1 1 {basis}", min_width="0", width="auto")
    top = ipywidgets.HBox(
        [picture, controls], layout=ipywidgets.Layout(flex_flow="row wrap", align_items="stretch", grid_gap="12px")
    )
    return ipywidgets.VBox([top, chart], layout=ipywidgets.Layout(grid_gap="12px"))


def bench_bundle(bench: Bench) -> dict[str, Any]:
    """What a cell shows: the live widget, and a static summary where there is no kernel or no trust."""
    widget = bench_widget(bench)
    return {
        _WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id},
        "text/html": f"<pre>{html.escape(repr(bench))}</pre>",
        "text/plain": repr(bench),
    }


def _plain(progress: Progress) -> dict[str, Any]:
    return {"stage": progress.stage, "done": progress.done, "total": progress.total, "message": progress.message}


def _message(kind: str, text: str) -> dict[str, str]:
    return {"kind": kind, "text": text}
