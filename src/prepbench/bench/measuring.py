"""Measure single layers on the bench: the cost of quantizing each, and its share of the time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from prepbench.bench.compiling import Compiling
from prepbench.bench.layer_costs import (
    LayerCosts,
    candidates_of,
    cost_columns,
    costs_of,
    refusals_of,
    shares_of,
    wanted_settings,
)
from prepbench.bench.progress import MEASURING
from prepbench.bench.queue import QueuedRun
from prepbench.bench.runs import OTHER_VALUES
from prepbench.bench.state import BenchState, display_name
from prepbench.bench.summary import LayerColumn
from prepbench.checks import check_function, check_progress
from prepbench.errors import PrepbenchError
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.profile import profile
from prepbench.results.run import Run
from prepbench.search.sensitivity import sensitivity
from prepbench.settings import ExplainedLayer

TIMED = "time layers"
"""The stage in which layers are timed."""

_ROUNDS = 10
_NOT_CALIBRATED = "The cost of layers is unknown: that needs calibration inputs."


class Measuring(Compiling):
    """The measurements of single layers of a bench; see :class:`prepbench.Bench`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.layer_costs = LayerCosts()
        super().__init__(*given, **named)

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement of layers with the current choices is running or queued."""
        return self._queue.has(self.state, "layers")

    def measure_layers(self, progress: ProgressCallback = report_nothing) -> tuple[LayerColumn, ...]:
        """Measure the effect of quantizing each layer alone on the model's output, and its share of a call's time.

        Each layer is measured with its planned settings; a float layer with those of layers without a rule. The time
        is that of the compiled model of the shown run, or else of the float model. Both become columns of the table
        of layers, bars, and overlays of the diagram. Without calibration inputs only the time is measured.

        Args:
            progress: receives each step; raise :class:`prepbench.Cancelled` from it to stop.

        Returns:
            The columns, as :meth:`summary` has them.

        Raises:
            PrepbenchError: one of the two could not be measured; the other one was, if it could.

        Example:
            >>> for column in bench.measure_layers():
            ...     print(column.title, column.unit, column.values)
        """
        check_progress(progress)
        self._measure_layers(self.state, self.explained, progress)
        return self.cost_columns()

    def start_measuring(
        self, progress: ProgressCallback = report_nothing, on_end: Callable[[BaseException | None], None] | None = None
    ) -> Job[None]:
        """Run :meth:`measure_layers` in a background thread with the current choices, after the running and waiting
        work.

        Args:
            progress: receives each step, in the job's thread.
            on_end: called once at the end, in the job's thread, with the error or None.

        Returns:
            The job, which can be waited for or cancelled.
        """
        check_progress(progress)
        check_function("on_end", on_end, "on_end(error)", optional=True)
        state, explained = self.state, self.explained
        run = QueuedRun.other("layers", "measure layers", state, explained)
        return self._enqueued(
            run,
            lambda step: self._measure_layers(state, explained, step),
            progress,
            on_end,
            said=lambda: f"Layers measured. {self.layer_costs.caption}",
            stages=MEASURING,
        )

    def cost_columns(self) -> tuple[LayerColumn, ...]:
        """Return the columns measured with the currently planned settings; none before the first measurement."""
        found = self.layer_costs
        if not found.unit and not found.shares:
            return ()
        wanted = wanted_settings(self.explained, self.state)
        return cost_columns(self.layer_rules.layers, wanted, found, self._old_costs(), self._old_times())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _measure_layers(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> None:
        """Measure both costs and times, even if one fails; the first error is raised at the end."""
        errors = []
        for measure in (self._measure_costs, self._measure_times):
            try:
                found = measure(state, explained, progress)
            except (Cancelled, KeyboardInterrupt):
                raise
            except PrepbenchError as error:
                errors.append(error)
            else:
                self.layer_costs = replace(self.layer_costs, **found)
                self._changed()
        if errors:
            raise errors[0]

    def _measure_costs(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> dict[str, Any]:
        """Measure costs; return fields of :class:`LayerCosts`."""
        if not self.calibration_inputs:
            return {"said": _NOT_CALIBRATED}
        wanted = wanted_settings(explained, state)
        candidates, refused = candidates_of(wanted, state)
        if not candidates:
            why = next(iter(refused.values()), "the model has no layer that can be quantized")
            return {"costs": {}, "unit": "", "said": f"The cost of layers is unknown: {why}."}
        values = self.value_mark
        kept = {} if self._old_costs() else self.layer_costs.costs  # of other settings, which are as true as they were
        found = sensitivity(
            self._captures.model(state.fixes),
            self.calibration_inputs,
            candidates=candidates,
            deployment_settings=state.targets[0],
            tracing_inputs=self.tracing_inputs,
            compile_options=state.options,
            dynamic_axes=state.axes,
            fullgraph=state.fullgraph,
            reuse=self._kept,
            progress=progress,
        )
        return {
            "costs": {**kept, **refusals_of(wanted, refused), **costs_of(found)},
            "unit": found.unit,
            "state": state.for_target(state.targets[0]),
            "target": display_name(state.targets[0]),
            "said": found.caption,
            "values": values,
        }

    def _measure_times(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> dict[str, Any]:
        """Measure times; return fields of :class:`LayerCosts`."""
        run = self._timed_now()
        name = f"{self.float_name} in PyTorch" if run is None else run.name
        progress(Progress(TIMED, 0, 1, name))
        sample = (self.tracing_inputs or self.calibration_inputs)[0]
        model = self._captures.model(state.fixes) if run is None else self._compiled_of(run.id)
        found = profile(model, [sample], rounds=_ROUNDS)
        progress(Progress(TIMED, 1, 1, name))
        return {
            "shares": shares_of(found),
            "timed": "" if run is None else run.id,
            "timed_name": name,
            "said_of_time": f"Time of {name}: {found.total_ms:.3g} ms a call under its profiler, {found.placed:.0%} "
            "of it in layers.",
        }

    def _timed_now(self) -> Run | None:
        """Return the run whose model would be timed; None for the float model."""
        shown = self._shown_run()
        return shown if shown is not None and shown.id in self.live_runs else None

    def _old_costs(self) -> str:
        found = self.layer_costs
        if found.state is None:
            return ""
        differences = self.state.differences(replace(found.state, axes=self.state.axes))
        said = [*differences, *([OTHER_VALUES] if found.values != self.value_mark else [])]
        return f"measured before a change: {'; '.join(said)}" if said else ""

    def _old_times(self) -> str:
        found, now = self.layer_costs, self._timed_now()
        if found.timed != ("" if now is None else now.id):
            name = f"{self.float_name} in PyTorch" if now is None else now.name
            return f"of {found.timed_name}, and not of {name}, whose results are shown"
        differences = () if now is None else self._differences_of(now, self.value_mark)
        return f"of a run before a change: {'; '.join(differences)}" if differences else ""
