"""The workbench as a widget: controls, diagram and comparison chart around a :class:`prepbench.Bench`.

It computes nothing: the controls show what the bench says, and every click calls a method.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import anywidget
import ipywidgets
import traitlets

from prepbench.bench import Bench, BenchSummary
from prepbench.bench.cards import Card, error_card
from prepbench.bench.state import Precision
from prepbench.errors import PrepbenchError
from prepbench.jobs import Cancelled, Progress
from prepbench.measure.comparison import Comparison
from prepbench.views.page import STATIC
from prepbench.widgets.actions import Action, Nothing, perform
from prepbench.widgets.diagram import diagram
from prepbench.widgets.mirror import plain_fields, traits_of

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_IDLE = Progress("", 0, 0)
_NOTHING = Card()


@dataclass(frozen=True)
class RunStatus:
    """Whether a compile is running, how far it is, and what the last action had to say."""

    running: bool = False
    progress: Progress = _IDLE
    message: Card = _NOTHING


class BenchCode(anywidget.AnyWidget):
    """The Python lines that do the same as the bench."""

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    part = traitlets.Unicode("code").tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)


class BenchControls(anywidget.AnyWidget):
    """The controls of the bench. Their traits are the fields of :class:`BenchSummary` and :class:`RunStatus`, but for
    the code, which has a place of its own.
    """

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._status = RunStatus()
        self._shown = {**vars(bench.summary()), **vars(self._status)}
        self._shown.pop("code")
        traits = traits_of(BenchSummary, RunStatus)
        self.add_traits(part=traitlets.Unicode("controls").tag(sync=True), **{n: traits[n] for n in self._shown})
        super().__init__(**plain_fields(self._shown))
        self._stop_listening = bench.on_change(self.refresh)
        self.on_msg(self._on_action)

    def refresh(self) -> None:
        """Show the current state of the bench."""
        self._show(self.bench.summary())

    def compile(self) -> None:
        """Compile in the background with the current choices."""
        self._set_status(RunStatus(running=True, progress=Progress("starting", 0, 0)))
        self.bench.start(self._on_progress, self._on_end)

    def compile_with_leaves(self) -> None:
        """Make what fails a leaf module and compile again: the button on an error's card."""
        self.bench.set_leaf_wrap(True)
        self.compile()

    def cancel(self) -> None:
        """Stop the running compile, if there is one."""
        if self.bench.job is not None:
            self.bench.job.cancel()

    def close(self) -> None:
        """Stop listening to the bench and close the widget."""
        self._stop_listening()
        super().close()

    def _show(self, shown: BenchSummary | RunStatus) -> None:
        """Set the traits of the fields that changed, in one message to the page."""
        fields = ((name, value) for name, value in vars(shown).items() if name in self._shown)
        changed = {name: value for name, value in fields if self._shown[name] != value}
        self._shown.update(changed)
        with self.hold_sync():
            for name, value in plain_fields(changed).items():
                setattr(self, name, value)

    def _set_status(self, status: RunStatus) -> None:
        self._status = status
        self._show(status)

    def _on_action(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        try:
            perform(BENCH_ACTIONS, self, content)
        except PrepbenchError as error:
            self._set_status(replace(self._status, message=error_card(error, leaf_wrap=self.bench.state.leaf_wrap)))

    def _on_progress(self, progress: Progress) -> None:
        self._set_status(replace(self._status, progress=progress))

    def _on_end(self, error: BaseException | None) -> None:
        if error is None:
            message = Card("info", self.bench.outcome())
        elif isinstance(error, Cancelled):
            message = Card("info", str(error))
        else:
            message = error_card(error, leaf_wrap=self.bench.state.leaf_wrap)
        self._set_status(replace(self._status, running=False, message=message))


@dataclass(frozen=True)
class SetAxis:
    """Make a dim of an input dynamic or static."""

    path: str
    dim: int
    dynamic: bool


@dataclass(frozen=True)
class SetPrecision:
    """Choose the precision of layers, by FQN."""

    pattern: tuple[str, ...]
    precision: Precision


@dataclass(frozen=True)
class SetTarget:
    """Choose the deployment target by its display name."""

    target: str


@dataclass(frozen=True)
class SetLeafWrap:
    """Choose whether modules that cannot be captured become leaf modules."""

    leaf_wrap: bool


BENCH_ACTIONS: Mapping[str, Action[BenchControls]] = {
    "set_axis": Action(SetAxis, lambda controls: controls.bench.set_axis),
    "set_precision": Action(SetPrecision, lambda controls: controls.bench.set_precision),
    "set_target": Action(SetTarget, lambda controls: controls.bench.set_target),
    "set_leaf_wrap": Action(SetLeafWrap, lambda controls: controls.bench.set_leaf_wrap),
    "undo": Action(Nothing, lambda controls: controls.bench.undo),
    "redo": Action(Nothing, lambda controls: controls.bench.redo),
    "compile": Action(Nothing, lambda controls: controls.compile),
    "compile_with_leaves": Action(Nothing, lambda controls: controls.compile_with_leaves),
    "cancel": Action(Nothing, lambda controls: controls.cancel),
}


def bench_widget(bench: Bench) -> ipywidgets.VBox:
    """The workbench of ``bench``: diagram and controls side by side, below them the comparison and the code."""
    controls, code = BenchControls(bench), BenchCode()
    picture = diagram(bench.collection.document())
    chart = ipywidgets.Output()

    drawn: list[Comparison] = []

    def show_chart() -> None:
        if bench.comparison is not None and bench.comparison not in drawn:
            drawn[:] = [bench.comparison]
            data = bench.comparison._repr_mimebundle_()
            # assigned, not captured: the change may come from the compile thread
            chart.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
        (chart.add_class if bench.summary().stale else chart.remove_class)("pbb-stale")

    def show_code() -> None:
        code.code = bench.summary().code

    coloured: dict[str, str] = {}

    def colour() -> None:
        if bench.precisions and coloured != bench.precisions:  # else whoever chose another overlay would lose it
            coloured.update(bench.precisions)
            picture.add_overlay(coloured, name="precision")

    for refresh in (show_chart, show_code, colour):
        bench.on_change(refresh)
        refresh()
    for part, basis in ((picture, "440px"), (controls, "520px")):
        part.layout = ipywidgets.Layout(flex=f"1 1 {basis}", min_width="0", width="auto")
    top = ipywidgets.HBox(
        [picture, controls], layout=ipywidgets.Layout(flex_flow="row wrap", align_items="stretch", grid_gap="12px")
    )
    return ipywidgets.VBox([top, chart, code], layout=ipywidgets.Layout(grid_gap="12px"))


def bench_bundle(bench: Bench) -> dict[str, Any]:
    """What a cell shows: the live widget, and a static summary where there is no kernel or no trust."""
    bench.refresh()  # the notebook may have named it since
    widget = bench_widget(bench)
    return {
        _WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id},
        "text/html": f"<pre>{html.escape(repr(bench))}</pre>",
        "text/plain": repr(bench),
    }
