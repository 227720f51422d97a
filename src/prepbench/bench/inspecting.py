"""One layer in detail, for the page's inspector: computed beside other work, and again when its settings change."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from prepbench.bench.cards import error_card
from prepbench.bench.layer_costs import Costs
from prepbench.bench.queue import SharedParts
from prepbench.bench.state import LABELS, PRECISIONS, Precision, display_name, layer_settings_of
from prepbench.bench.summary import InspectedError, InspectedValues, InspectionSummary, WhatIfChoice
from prepbench.checks import check_text
from prepbench.compile.request import CompileRequest
from prepbench.compile.simulation import Simulation
from prepbench.document.model import SourceLine
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, stage_words
from prepbench.quantize.layer_values import LayerError, TensorValues
from prepbench.search.inspection import (
    LayerInspection,
    PlannedLayer,
    check_inspected,
    decided_by,
    inspected,
    plan_of,
)
from prepbench.settings import DeploymentSettings, QuantizationSettings
from prepbench.targets import target_for
from prepbench.targets.base import unsupported

CHANNELS = 128
"""The most channels that the page draws; of more, neighbours are put together."""


@dataclass(eq=False)
class Inspecting(SharedParts):
    """Looks at one layer at a time, in a thread beside the other work of a bench.

    Attributes:
        fqn: the layer that is looked at; empty for none.
        summary: what is known of it.
    """

    costs: Costs
    fqn: str = ""
    summary: InspectionSummary = field(default_factory=InspectionSummary)

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._job: Job[None] | None = None
        self._key: tuple[Any, ...] = ()
        self._simulation: tuple[tuple[Any, ...], Simulation] | None = None
        self.changed.on_change(self._follow)

    def inspect(self, fqn: str) -> None:
        """Look at a layer in the background; an empty name ends this.

        Args:
            fqn: the layer.
        """
        check_text("fqn", fqn, "encoder.0")
        with self._lock:
            self.fqn = fqn
            self._key = ()
        self._follow()

    def wait(self, timeout: float | None = None) -> InspectionSummary:
        """Wait until the layer has been looked at.

        Args:
            timeout: in seconds.

        Returns:
            What is known.
        """
        if self._job is not None:
            self._job.result(timeout)
        return self.summary

    # -- inside --------------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Begin anew if what is known is of another layer or other settings."""
        with self._lock:
            fqn = self.fqn
            key = (fqn, *self._graph_key(), self._planned(fqn)) if fqn else ()
            if key == self._key and bool(fqn) == bool(self.summary.fqn):
                return
            self._key = key
            if self._job is not None:
                self._job.cancel()
            if not fqn:
                self.summary = InspectionSummary()
            else:
                self.summary = InspectionSummary(fqn, "running", "Starting")
                self._job = Job(lambda progress: self._look(fqn, key, progress))
        self.changed.tell()

    def _look(self, fqn: str, key: tuple[Any, ...], progress: ProgressCallback) -> None:
        said = ""

        def step(one: Progress) -> None:
            nonlocal said
            progress(one)
            if (words := stage_words(one)) != said:
                said = words
                self._tell(key, InspectionSummary(fqn, "running", words))

        try:
            found = self._found(fqn, step)
        except Cancelled:
            return
        except Exception as error:  # told on the page, also where it is a mistake of the model
            card = error_card(error, leaf_wrap=self.choices.state.leaf_wrap)
            found = InspectionSummary(fqn, "failed", failure=card)
        self._tell(key, found)

    def _tell(self, key: tuple[Any, ...], found: InspectionSummary) -> None:
        with self._lock:
            if key != self._key:
                return  # another one is asked for by now
            self.summary = found
        self.changed.tell()

    @property
    def _target(self) -> DeploymentSettings:
        """The target of the run whose numbers the table of layers has, so that both agree; else the first one."""
        shown, targets = self.runs.shown_run(), self.choices.state.targets
        same = (one for one in targets if shown is not None and display_name(one) == shown.target_name)
        return next(same, targets[0])

    def _graph_key(self) -> tuple[Any, ...]:
        state = self.choices.state
        return state.fixes, self._target, state.options, state.axes, state.fullgraph, self.runs.value_mark

    def _planned(self, fqn: str) -> PlannedLayer:
        """Return the settings that the shown run decided on, if it is of the current choices; else the planned ones."""
        layer = next((one for one in self.choices.explained if one.fqn == fqn), None)
        general = plan_of(self.choices.state.quantization, "global")
        planned = general if layer is None else plan_of(layer.settings, layer.rule)
        shown = self.runs.shown_run()
        if shown is not None and not self.runs.differences_of(shown, self.runs.value_mark):
            row = next((one for one in shown.report if one.fqn == fqn), None)
            if row is not None:
                return decided_by(row, planned.settings)
        return planned

    def _simulated(self, progress: ProgressCallback) -> Simulation:
        key, state = self._graph_key(), self.choices.state
        if self._simulation is not None and self._simulation[0] == key:
            return self._simulation[1]
        request = CompileRequest(
            model=self.captures.model(state.fixes),
            calibration_inputs=self.inputs.calibration_inputs or self.inputs.tracing_inputs,
            tracing_inputs=self.inputs.tracing_inputs,
            deployment_settings=self._target,
            compile_options=state.options,
            dynamic_axes=state.axes,
            fullgraph=state.fullgraph,
            reuse=self.kept,
        )
        self._simulation = key, Simulation.captured(request, progress)
        return self._simulation[1]

    def _found(self, fqn: str, progress: ProgressCallback) -> InspectionSummary:
        planned = self._planned(fqn)
        named = {LABELS[one]: settings for one, settings in self._candidates().items()}
        simulation = self._simulated(progress)
        check_inspected(simulation, fqn, [name for name, _ in self.choices.model.named_modules()])
        found = inspected(simulation, fqn, planned, named, progress)
        return summary_of(found, self._facts(found), self._samples(found))

    def _candidates(self) -> dict[Precision, QuantizationSettings]:
        """Return what the buttons of the precisions would make of a layer."""
        state, placement = self.choices.state, target_for(self._target).placement
        found: dict[Precision, QuantizationSettings] = {}
        for precision in PRECISIONS:
            settings = layer_settings_of(precision).applied_to(state.quantization)
            if settings is not None and not unsupported(one := next(settings.candidates()), placement):
                found[precision] = one
        return found

    def _facts(self, found: LayerInspection) -> tuple[tuple[str, str], ...]:
        share = self.costs.measured.shares.get(found.layer)
        timed = self.costs.measured.timed_name
        time = f"{share:.2g} % of a call of {timed}" if share is not None else "not measured: Measure layers does that"
        return (
            ("Time", time),
            ("Weights", f"{found.weights_bytes:,} bytes, {found.float_bytes:,} in float"),
            ("Parameters", f"{found.parameters:,}"),
            ("Multiplications", f"{found.multiplications:,} for the first sample"),
            ("Calls", f"{found.calls:,} in one call of the model"),
        )

    def _samples(self, found: LayerInspection) -> str:
        what = "calibration input" if self.inputs.calibration_inputs else "tracing input"
        target = display_name(self._target)
        counted = f"{found.samples:,} {what}{'' if found.samples == 1 else 's'}"
        return f"{target}: values on {counted}, the error with all other layers in float."


def summary_of(found: LayerInspection, facts: tuple[tuple[str, str], ...], samples: str) -> InspectionSummary:
    """Return an inspected layer as the page shows it."""
    place: SourceLine | None = found.source
    return InspectionSummary(
        found.layer,
        "ready",
        type=found.type,
        decided=found.decided,
        why=found.why,
        shown="" if found.shown == found.decided else found.shown,
        values=(_values("Weights", found.weight), _values("Input", found.input), _values("Output", found.output)),
        error=InspectedError() if found.error is None else _error(found.error),
        what_if=_choices(found),
        facts=facts,
        place="" if place is None else f"{place.file}:{place.line}",
        file="" if place is None else place.file,
        line=0 if place is None else place.line,
        code="" if place is None else place.code,
        frame=found.frame,
        samples=samples,
    )


def _choices(found: LayerInspection) -> tuple[WhatIfChoice, ...]:
    by_name = {one.name: one for one in found.what_if}
    chosen = []
    for precision in PRECISIONS:
        one = by_name.get(LABELS[precision])
        if one is not None:
            now = found.decided == one.name
            chosen.append(WhatIfChoice(precision, LABELS[precision], one.sqnr, one.change, one.refusal, now))
    return tuple(chosen)


def _values(title: str, values: TensorValues) -> InspectedValues:
    if not values.count:
        return InspectedValues(title, note=values.note)
    lows = _together([low for low, _ in values.range_by_channel], min)
    highs = _together([high for _, high in values.range_by_channel], max)
    bins, grid = values.histogram, values.grid
    found = InspectedValues(title, *values.range, bins.start, bins.width, bins.counts, lows, highs, note=values.note)
    if grid is None:
        return found
    clipped = _together(grid.clipped_by_channel, max)
    fields = {**vars(found), "format": grid.format, "levels": grid.levels, "steps": grid.step, "grid": grid.range}
    return InspectedValues(**{**fields, "clipped": grid.clipped, "clipped_channels": clipped})


def _error(error: LayerError) -> InspectedError:
    size = _size(len(error.sqnr_by_channel))
    return InspectedError(error.sqnr, _together(error.sqnr_by_channel, min), size, error.reference, error.quantized)


def _size(channels: int) -> int:
    return max(1, -(-channels // CHANNELS))


def _together(values: Sequence[float], combine: Any) -> tuple[float, ...]:
    """Return one value for some neighbours each, where there are more than can be drawn."""
    size = _size(len(values))
    return tuple(combine(values[at : at + size]) for at in range(0, len(values), size))
