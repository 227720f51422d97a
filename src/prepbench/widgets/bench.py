"""The workbench as a widget: controls, diagram and comparison chart around a :class:`prepbench.Bench`.

It computes nothing: the controls show the bench's summary, and every click calls a method of the bench.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import anywidget
import ipywidgets

from prepbench._display import is_static
from prepbench.bench import Bench, BenchSummary, RecoverySettings
from prepbench.bench.cards import About, Card
from prepbench.bench.history import is_far
from prepbench.bench.layer_costs import CostOverlay, cost_overlays
from prepbench.bench.saved import JournalWatch
from prepbench.bench.shown import runs_chart, still
from prepbench.bench.state import Precision
from prepbench.bench.status import RunStatus
from prepbench.bench.summary import InspectionSummary, LayerColours, RunSummary
from prepbench.bench.variables import is_named, user_namespace
from prepbench.document.bench import Chart
from prepbench.errors import PrepbenchError, SettingsError
from prepbench.jobs import Job
from prepbench.objects.code import change_text
from prepbench.search.objective import Budget
from prepbench.views.charts import runs_bundle
from prepbench.views.page import STATIC, packed
from prepbench.widgets.actions import perform
from prepbench.widgets.bench_actions import BENCH_ACTIONS
from prepbench.widgets.diagram import diagram
from prepbench.widgets.displays import add_display, call_after_cells, close_all, is_replaced
from prepbench.widgets.traits import plain_fields, traits_of

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_DRAWN = 60  # runs in the page's own chart; the newest

_LIMITS = {
    "max_drop": "The drop",
    "min_metric": "The least SQNR",
    "max_latency_ms": "The latency",
    "max_size_mb": "The size",
}

_PLACES: Mapping[str, About] = {
    **{about: about for about in get_args(About) if about},
    "train_back": "recover",
    "measure_layers": "layers",
    "compare_runs": "samples",
}
"""Where the page says how an action ended."""


class BenchControls(anywidget.AnyWidget):
    """The steps and the code of the bench; traits are the fields of :class:`BenchSummary` and :class:`RunStatus`."""

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.draws_chart = False  # where nothing can show the one of plotly
        self._drawn: tuple[tuple[RunSummary, ...], Chart] = (), Chart()
        self._lock = threading.RLock()  # the page hears of changes from several threads
        self._search: Job[None] | None = None
        self._looks = False
        self._views = 0  # visible ones
        self.is_followed = True  # until its last view goes
        self._watch: JournalWatch | None = None
        self._still: tuple[BenchSummary, dict[str, Any]] | None = None
        self._shown = {**vars(bench.summary()), **vars(bench.status)}
        traits = traits_of(BenchSummary, RunStatus)
        self.add_traits(**{name: traits[name] for name in self._shown})
        super().__init__(**plain_fields(self._shown))
        self._values = bench.run_history.value_mark
        reference = weakref.ref(self)  # the notebook keeps what it calls
        self._ends = [
            bench.on_change(self.refresh),
            bench.jobs.on_status(self._follow),
            call_after_cells(lambda: _look_at_model(reference)),
        ]
        self.on_msg(self._on_action)

    def refresh(self) -> None:
        """Show the current state of the bench."""
        if not self.is_followed:
            return
        summary = self.bench.summary()
        if self.draws_chart and self._drawn[0] != summary.runs:  # placing its labels takes long
            history = self.bench.run_history
            chart = runs_chart(history.runs, history.float_name, history.speed_ups, _DRAWN)
            self._drawn = summary.runs, chart
        self._show(replace(summary, chart=self._drawn[1]))
        self._look_at_journal()
        if self._looks and not self._shown["fixes_known"]:  # an axis was made dynamic, say
            self.look_for_fixes()

    def mark_outdated_results(self) -> None:
        """Mark outdated results after a cell has written to the model or changed its code."""
        if not self.is_followed:
            return
        now = self.bench.run_history.value_mark
        if now != self._values:
            self._values = now
            self.bench.refresh()
        elif change_text(self.bench.newer_code) != self._shown["newer_code"]:
            self.bench.refresh()

    def compile(self) -> None:
        """Compile in the background with the current choices; a second click has no effect."""
        if not self.bench.compiling.is_queued:
            self.bench.start()

    def capture(self) -> None:
        """Capture again in the background."""
        self.bench.jobs.in_background(self.bench.capture)

    def again(self) -> None:
        """Capture with the newest code in the background."""
        self.bench.jobs.in_background(self.bench.again)

    def measure_layers(self) -> None:
        """Measure single layers in the background; a second click has no effect."""
        if not self.bench.costs.is_measuring:
            self.bench.start_measuring()

    def start_search(self, minimize: str, loss: str, latency: str, size: str) -> None:
        """Search the best settings within bounds in the background."""
        scored = self.bench.metric is not None
        typed = {"max_drop" if scored else "min_metric": loss, "max_latency_ms": latency, "max_size_mb": size}
        limits = {name: _number(text) for name, text in typed.items() if text.strip()}
        if not limits:
            raise SettingsError("Nothing is limited. Give at least one limit.")
        try:
            budget = Budget(**limits, minimize=minimize)
        except SettingsError as error:  # names the fields of Python, which are none of the page
            said = re.sub(r"Budget\.(\w+) must be None or", lambda match: f"{_LIMITS[match[1]]} must be", str(error))
            raise SettingsError(re.sub(r" Write \w+=\.\.\.$", " Leave it empty for no limit.", said)) from None
        if not self.bench.found.is_searching:
            self.bench.start_search(budget)

    def train_back(self, steps: str, distill: bool, by_metric: bool, learning_rate: str) -> None:
        """Train and compile in the background; a second click has no effect."""
        count, rate = _number(steps), _number(learning_rate)
        settings = RecoverySettings(steps=count, distill=distill, by_metric=by_metric, learning_rate=rate)
        if not (self.bench.state.recovery == settings and self.bench.compiling.is_queued):
            self.bench.start_recovery(settings)

    def repeat(self, about: About) -> None:
        """Ask again for an action of the bench, with the choices of now."""
        bench = self.bench
        if about == "search" and bench.found.asked is not None and not bench.found.is_searching:
            bench.start_search(bench.found.asked)
        elif about == "recover":
            bench.start_recovery()
        elif about == "layers":
            self.measure_layers()
        elif about == "compile":
            self.compile()

    def look_for_fixes(self) -> None:
        """Search for fixes in the background, unless something else runs there."""
        self._looks = True
        is_looking = self._search is not None and not self._search.done
        if not (is_looking or self.bench.status.running or self.bench.summary().fixes_known):
            self._search = Job(self.bench.find_fixes)

    def still(self) -> dict[str, Any]:
        """Return the static form of the bench for outputs without a kernel or trust; computed once per change."""
        # nothing is looked at or looked for there
        summary = replace(self.bench.summary(), selected="", inspection=InspectionSummary(), fixes_known=True)
        if self._still is None or self._still[0] != summary:
            self._still = summary, _still(self.bench)
        return self._still[1]

    def shown(self, shown: bool) -> None:
        """Count the visible views; changes that others write to the journal are shown while there is any."""
        self._views = max(0, self._views + (1 if shown else -1))
        self._look_at_journal()

    def _look_at_journal(self) -> None:
        """Start or stop watching the journal."""
        path = self.bench.journal_path if self._views else None
        with self._lock:
            watch = self._watch
            if (watch.path if watch is not None else None) == path:
                return
            reference = weakref.ref(self.bench)
            self._watch = None if path is None else JournalWatch(path, lambda: _update(reference))
        if watch is not None:
            watch.stop()

    def send_still(self) -> None:
        """Send the static form of the bench, which the page keeps in the output."""
        self.send({"action": "still"}, [packed(json.dumps(self.still(), ensure_ascii=False))])

    def close(self) -> None:
        """Stop listening to the bench and close the widget."""
        self._end_search()
        for end in self._ends:
            end()
        self._views = 0
        self._look_at_journal()
        super().close()

    def cancel_all(self) -> None:
        """End all work in the background, because nobody can see or ask for its results any more."""
        self._end_search()
        self.bench.jobs.cancel_all()

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.cancel()

    def _show(self, shown: BenchSummary | RunStatus) -> None:
        """Set the traits of the changed fields, in one message to the page."""
        with self._lock:
            fields = ((name, value) for name, value in vars(shown).items() if name in self._shown)
            changed = {name: value for name, value in fields if self._shown[name] != value}
            self._shown.update(changed)
            with self.hold_sync():
                for name, value in plain_fields(changed).items():
                    setattr(self, name, value)

    def _follow(self, status: RunStatus) -> None:
        """Show the status of background work; it interrupts a search for fixes, which resumes afterwards."""
        begins = status.running and not self._shown["running"]
        ends = self._shown["running"] and not status.running
        if begins:
            self._end_search()
        if status.running and not begins:  # keep the last message until there is a new one
            said = status.message if status.message.kind else self._shown["message"]
            status = replace(status, message=said)
        self._show(status)
        if ends:
            self.look_for_fixes()

    def _on_action(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        try:
            perform(BENCH_ACTIONS, self, content)
        except (PrepbenchError, OSError) as error:
            asked = _PLACES.get(str(content.get("again") or content.get("action")), "")
            card = self.bench.jobs.error_card(error, self.bench.state, asked)
            self._show(replace(self.bench.status, message=card))
        else:
            said = self._shown["message"]
            if said.kind == "error" and not said.about and content.get("action") not in ("shown", "still"):
                self._show(replace(self.bench.status, message=Card()))  # what was refused is over


def _look_at_model(reference: weakref.ref[BenchControls]) -> None:
    controls = reference()
    if controls is not None:
        controls.mark_outdated_results()


def _update(reference: weakref.ref[Bench]) -> bool:
    """Merge what others wrote; return False if the bench no longer exists."""
    bench = reference()
    if bench is not None:
        bench.update_runs()
    return bench is not None


def bench_widget(bench: Bench) -> ipywidgets.VBox:
    """Return the workbench of ``bench``: the steps with the code, the diagram, the chart of all runs."""
    return BenchDisplay(bench).box


class BenchDisplay:
    """The workbench in one place. It follows the bench while a page shows it, and is brought up to date once one does.

    Attributes:
        box: the controls, the diagram and the chart of all runs.
        controls: the controls alone.
        picture: the diagram.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.controls = BenchControls(bench)
        self.picture = BenchPicture(bench)
        self._chart = ipywidgets.Output().add_class("pbb-chart")
        self._drawn: tuple[Any, ...] | None = None
        self.box = ipywidgets.VBox([self.controls, self.picture.place, self._chart]).add_class("pbb-box")
        self.box._view_count = 0
        self.box.observe(self._seen, "_view_count")
        self._end = bench.on_change(self._changed)
        self._refresh()

    def close(self) -> None:
        """Close all widgets, and stop following the bench."""
        self._end()
        close_all(self.controls, self.picture.widget, self.picture.place, self._chart, self.box)

    def rest(self) -> None:
        """Follow the bench no more until a page shows this."""
        self.controls.is_followed = False

    def _seen(self, change: Any) -> None:
        self.controls.is_followed = bool(change["new"])
        if self.controls.is_followed:
            self.controls.mark_outdated_results()
            self.controls.refresh()
            self._refresh()
        elif is_replaced(self.box) and not is_named(self._bench, user_namespace()):
            self.controls.cancel_all()

    def _changed(self) -> None:
        if self.controls.is_followed:
            self._refresh()

    def _refresh(self) -> None:
        self._show_chart()
        self.picture.refresh()

    def _show_chart(self) -> None:
        bench, chart = self._bench, self._chart
        results = bench.all_results()
        if results is not None and self._drawn != results.rows:
            self._drawn = results.rows
            # assigned, not captured: the change may come from the compile thread
            far = {run.name for run in bench.run_history.listed_runs if is_far(run)}
            data = runs_bundle(results, {run.name: run.id for run in bench.runs}, far)
            chart.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
        (chart.add_class if bench.summary().stale else chart.remove_class)("pbb-stale")


class BenchPicture:
    """The diagram of the bench, which follows its graphs, precisions, costs and selection."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._coloured: dict[str, Precision] = {}
        self._costs: tuple[CostOverlay, ...] = ()
        self._difference = LayerColours()
        self._source = bench.collection, bench.state.leaves
        self._document = bench.fixing.document
        self.widget = diagram(self._document)
        self.widget.observe(self._selected, "selected")
        self.place = ipywidgets.Box([self.widget]).add_class("pbb-picture")

    def refresh(self) -> None:
        """Show the current graphs, precisions and selection."""
        source = self._bench.collection, self._bench.state.leaves
        if source[0] is not self._source[0] or source[1] != self._source[1]:
            self._source = source
            self._document = self._bench.fixing.document
            self._coloured, self._costs, self._difference = {}, (), LayerColours()
            self.widget.replace_document(self._document)
        precisions = dict(self._bench.precisions)
        if precisions and self._coloured != precisions:  # else a user's choice of another overlay would be lost
            self._coloured = precisions
            shown = str(self.widget.overlay)
            show = shown in ("", "precision") or (not self._costs and shown != self._difference.title)
            self.widget.add_overlay(precisions, name="precision", show=show)
        self._colour_costs()
        self._colour_difference()
        selected = self._module_around(self._bench.selected)
        if (selected not in self.widget.selected) if selected else bool(self.widget.selected):
            self.widget.selected = [selected] if selected else []

    def _colour_difference(self) -> None:
        """Colour the layers by the difference of the two compared runs, until they are compared no longer."""
        colours = self._bench.run_history.difference.colours
        if colours == self._difference:
            return
        before, self._difference = self._difference, colours
        was_shown = str(self.widget.overlay) == before.title
        self.widget.remove_overlay(before.title)
        known = {module.fqn for module in self._document.modules}
        values = {fqn: value for fqn, value in zip(colours.fqns, colours.values, strict=True) if fqn in known}
        if values:
            self.widget.add_overlay(values, name=colours.title, unit=colours.unit, combine="mean", diverging=True)
        elif was_shown and self._coloured:
            self.widget.overlay = "precision"

    def _colour_costs(self) -> None:
        """Offer the measured costs of layers as overlays, and keep the shown one."""
        summary = self._bench.summary()
        fqns, modules = [layer.fqn for layer in summary.layers], {module.fqn for module in self._document.modules}
        costs = cost_overlays(fqns, summary.columns, modules)
        if costs == self._costs:
            return
        self._costs = costs
        for cost in costs:
            self.widget.add_overlay(cost.values, name=cost.name, unit=cost.unit, combine=cost.combine, show=False)

    def _selected(self, change: Any) -> None:
        fqn = change["new"][-1] if change["new"] else ""
        if fqn and fqn == self._module_around(self._bench.selected):
            return
        if self._bench.choices.has_module(fqn):  # operations can be selected there, too
            self._bench.select(fqn)

    def _module_around(self, fqn: str) -> str:
        """Return the module whose box stands for a layer: that of its tensor, where it is one."""
        while fqn and not self._bench.choices.has_module(fqn):
            fqn = fqn.rpartition(".")[0]
        return fqn


def bench_bundle(bench: Bench) -> dict[str, Any]:
    """Return the output of a cell: a static form, and the live widget where somebody can use it."""
    bench.refresh()  # the notebook may have named it since
    if is_static():
        return _still(bench)
    display = BenchDisplay(bench)
    add_display(display.box, display.close, display.rest)
    display.controls.look_for_fixes()
    return {
        _WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": display.box.model_id},
        **display.controls.still(),
    }


def marimo_view(bench: Bench) -> Any:
    """Return what a marimo notebook shows: it has no boxes of ipywidgets, so the controls stand above the diagram.

    marimo itself ends the widgets of a cell that runs again.
    """
    import marimo

    display = BenchDisplay(bench)
    display.controls.draws_chart = True
    display.controls.refresh()
    display.controls.look_for_fixes()
    return marimo.vstack([display.controls, display.picture.widget])


def _number(typed: str) -> Any:
    """Return a number as people write it; what is none stays as it was typed, for the error that refuses it."""
    try:
        number = float(typed.replace(",", "."))
    except ValueError:
        return typed.strip()
    return int(number) if number.is_integer() else number


def _still(bench: Bench) -> dict[str, Any]:
    return {**still(bench), "text/plain": repr(bench)}
