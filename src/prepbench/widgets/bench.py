"""The workbench as a widget: controls, diagram and comparison chart around a :class:`prepbench.Bench`.

It computes nothing: the controls show what the bench says, and every click calls a method.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import anywidget
import ipywidgets
import traitlets

from prepbench.bench import Bench, BenchSummary
from prepbench.bench.bench import TARGET
from prepbench.bench.cards import Card, error_card
from prepbench.bench.progress import COMPARING, RunProgress
from prepbench.bench.shown import still
from prepbench.bench.state import Precision, display_name
from prepbench.errors import PrepbenchError
from prepbench.jobs import CANCELLING, Cancelled, Job, Progress, ProgressCallback
from prepbench.views.page import STATIC, packed
from prepbench.views.run_chart import runs_bundle
from prepbench.widgets.actions import perform
from prepbench.widgets.bench_actions import BENCH_ACTIONS
from prepbench.widgets.diagram import DiagramWidget, diagram
from prepbench.widgets.mirror import plain_fields, traits_of

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_NOTHING = Card()
_PAUSE = 0.1  # seconds between two messages about one stage


@dataclass(frozen=True)
class RunStatus:
    """Whether something runs in the background, how far it is, and what the last action had to say.

    Attributes:
        running: whether it runs.
        cancelling: whether it was asked to stop.
        stage: what it does.
        done: steps of the stage that are done.
        total: steps of the stage; 0 if that is not known.
        fraction: how much of the whole run is done, 0 to 1.
        elapsed_s: seconds since it began.
        remaining_s: seconds that are left; -1 while that would be a guess.
        queue: the targets that wait.
        log: what was done so far, with times.
        message: what the last action had to say.
    """

    running: bool = False
    cancelling: bool = False
    stage: str = ""
    done: int = 0
    total: int = 0
    fraction: float = 0.0
    elapsed_s: float = 0.0
    remaining_s: float = -1.0
    queue: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    message: Card = _NOTHING


class BenchCode(anywidget.AnyWidget):
    """The Python lines that do the same as the bench."""

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    part = traitlets.Unicode("code").tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)


class BenchControls(anywidget.AnyWidget):
    """The steps of the bench. Their traits are the fields of :class:`BenchSummary` and :class:`RunStatus`."""

    _esm = STATIC / "bench.js"
    _css = STATIC / "bench.css"

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._status = RunStatus()
        self._run = RunProgress(1)
        self._told = 0.0
        self._search: Job[None] | None = None
        self._still: tuple[BenchSummary, dict[str, Any]] | None = None
        self._shown = {**vars(bench.summary()), **vars(self._status)}
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
        self._start(self.bench.compile, len(self.bench.state.targets))

    def capture(self) -> None:
        """Capture again in the background."""
        self._start(self.bench.capture, 1)

    def look_for_fixes(self) -> None:
        """Look for changes that work in the background, while nothing else runs there."""
        is_looking = self._search is not None and not self._search.done
        if not (is_looking or self._status.running or self.bench.summary().fixes_known):
            self._search = Job(self.bench.find_fixes)

    def cancel(self) -> None:
        """Stop what runs in the background, if anything does."""
        self.bench.cancel()

    def still(self) -> dict[str, Any]:
        """The bench as it stands, for where there is no kernel or no trust; made once per change."""
        summary = replace(self.bench.summary(), selected="", fixes_known=True)  # nothing is looked for there
        if self._still is None or self._still[0] != summary:
            self._still = summary, {**still(self.bench), "text/plain": repr(self.bench)}
        return self._still[1]

    def send_still(self) -> None:
        """Send the bench as it stands, so that the page can keep it in the output."""
        self.send({"action": "still"}, [packed(json.dumps(self.still(), ensure_ascii=False))])

    def close(self) -> None:
        """Stop listening to the bench and close the widget."""
        self._end_search()
        self._stop_listening()
        super().close()

    def _end_search(self) -> None:
        if self._search is not None:
            self._search.cancel()

    def _start(self, work: Callable[[ProgressCallback], Any], targets: int) -> None:
        seconds = next((run.stages for run in reversed(self.bench.runs) if not run.error), {})
        self._run = RunProgress(targets, seconds)
        self._set_status(replace(RunStatus(), running=True, stage="starting"))
        self._end_search()  # it would hold up what was asked for, and goes on afterwards
        try:
            self.bench.in_background(work, self._on_progress, functools.partial(self._on_end, work))
        except PrepbenchError:
            self._set_status(RunStatus())
            raise

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
        except (PrepbenchError, OSError) as error:
            self._set_status(replace(self._status, message=error_card(error, leaf_wrap=self.bench.state.leaf_wrap)))

    def _on_progress(self, step: Progress) -> None:
        run, before = self._run, self._run.step
        names = [display_name(target) for target in self.bench.state.targets]
        if step.stage == TARGET:
            run.begin(step.done, step.message)
        else:
            run(step)
        queue = tuple(names[run.target + 1 :]) if run.step.stage not in COMPARING else ()
        now = time.monotonic()
        if step.stage == before.stage and now - self._told < _PAUSE:
            return
        self._told = now
        self._set_status(
            replace(
                self._status,
                cancelling=self._status.cancelling or step.stage == CANCELLING,
                stage=f"{run.step.stage} · {run.step.message}" if run.step.message else run.step.stage,
                done=run.step.done,
                total=run.step.total,
                fraction=round(run.fraction, 4),
                elapsed_s=round(run.elapsed, 1),
                remaining_s=round(run.remaining, 1),
                queue=queue,
                log=run.log,
            )
        )

    def _on_end(self, work: Callable[[ProgressCallback], Any], error: BaseException | None) -> None:
        if error is None:
            text = self.bench.outcome() if work == self.bench.compile else "Captured again."
            message = Card("info", text)
        elif isinstance(error, Cancelled):
            message = Card("info", str(error))
        else:
            message = error_card(error, leaf_wrap=self.bench.state.leaf_wrap)
        if error is None and work == self.bench.compile and self.bench.runs[-1].reused:
            self._run.note(f"used again: {', '.join(self.bench.runs[-1].reused)}")
        self._run.note("done" if error is None else "cancelled" if isinstance(error, Cancelled) else "failed")
        self._set_status(RunStatus(log=self._run.log, elapsed_s=round(self._run.elapsed, 1), message=message))
        self.look_for_fixes()


def bench_widget(bench: Bench) -> ipywidgets.VBox:
    """The workbench of ``bench``: the steps, the diagram, the chart of all runs, the code."""
    controls, code = BenchControls(bench), BenchCode()
    picture = BenchPicture(bench)
    chart = ipywidgets.Output()
    drawn: list[tuple[Any, ...]] = []

    def show_chart() -> None:
        results = bench.all_results()
        if results is not None and drawn != [results.rows]:
            drawn[:] = [results.rows]
            # assigned, not captured: the change may come from the compile thread
            data = runs_bundle(results, {run.name: run.id for run in bench.runs})
            chart.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
        (chart.add_class if bench.summary().stale else chart.remove_class)("pbb-stale")

    def show_code() -> None:
        code.code = bench.summary().code

    box = ipywidgets.VBox([controls, picture.widget, chart, code]).add_class("pbb-box")

    def show_picture() -> None:
        picture.refresh()
        if picture.widget not in box.children:
            box.children = (controls, picture.widget, chart, code)

    for refresh in (show_chart, show_code, show_picture):
        bench.on_change(refresh)
        refresh()
    chart.add_class("pbb-chart")
    return box


class BenchPicture:
    """The diagram of the bench: another widget once a fix changes the graph, with what was open and selected."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._coloured: dict[str, Precision] = {}
        self.widget = self._made()

    def refresh(self) -> None:
        """Show the graphs, precisions and selection of now."""
        if self._bench.collection is not self._collection:
            before, self._coloured = self.widget, {}
            self.widget = self._made()
            self.widget.view = before.view
            before.close()
        precisions = dict(self._bench.precisions)
        if precisions and self._coloured != precisions:  # else whoever chose another overlay would lose it
            self._coloured = precisions
            self.widget.add_overlay(precisions, name="precision")
        selected = self._bench.selected
        if (selected not in self.widget.selected) if selected else bool(self.widget.selected):
            self.widget.selected = [selected] if selected else []

    def _made(self) -> DiagramWidget:
        self._collection = self._bench.collection
        widget = diagram(self._collection.document())
        widget.add_class("pbb-picture")
        widget.observe(self._selected, "selected")
        return widget

    def _selected(self, change: Any) -> None:
        fqn = change["new"][-1] if change["new"] else ""
        if self._bench.has_module(fqn):  # operations can be selected there, too
            self._bench.select(fqn)


def bench_bundle(bench: Bench) -> dict[str, Any]:
    """What a cell shows: the live widget, and the bench as it stands where there is no kernel or no trust."""
    bench.refresh()  # the notebook may have named it since
    widget = bench_widget(bench)
    controls: BenchControls = widget.children[0]
    controls.look_for_fixes()
    return {
        _WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id},
        **controls.still(),
    }
