"""The cost of quantizing each layer alone, and its share of the time, as columns of the table of layers."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prepbench.bench.layer_summaries import settings_label
from prepbench.bench.queue import QueuedRun, SharedParts
from prepbench.bench.runs import OTHER_VALUES
from prepbench.bench.state import EVERYTHING, BenchState, display_name
from prepbench.bench.status import MEASURING
from prepbench.bench.summary import LayerColumn
from prepbench.checks import check_function, check_progress
from prepbench.document.model import Combine
from prepbench.errors import PrepbenchError
from prepbench.jobs import Cancelled, Job, Progress, ProgressCallback, report_nothing
from prepbench.measure.profile import Profile, profile
from prepbench.results.measurement import Run
from prepbench.search.candidates import name_of_settings
from prepbench.search.sensitivity import Sensitivity, sensitivity
from prepbench.settings import ExplainedLayer, QuantizationSettings
from prepbench.targets import target_for
from prepbench.targets.base import unsupported

SENSITIVITY, TIME = "sensitivity", "time"
"""The keys of the two columns, and the names of the overlays."""
TIMED = "time layers"
"""The stage in which layers are timed."""
_ROUNDS = 10
_NOT_CALIBRATED = "The cost of layers is unknown: that needs calibration inputs."


@dataclass(frozen=True)
class Cost:
    """The cost of a layer with some settings: a number, and how it was measured or why it is missing."""

    value: float | None
    note: str


@dataclass(frozen=True)
class LayerCosts:
    """The measurements of single layers.

    Attributes:
        costs: the effect of each layer alone on the model's output, by layer and settings.
        unit: of these: ``"dB"`` of signal to noise, or ``"nats"`` of divergence; "" before.
        state: the choices that these were measured with.
        target: the target of the measurement.
        said: how these were measured, in words; why they were not.
        values: of the model's tensors, as :func:`value_mark` tells them apart.
        shares: percent of a call's time, by layer.
        timed: the id of the run whose compiled model was timed; "" for the float model.
        timed_name: the display name of the timed model; "" before.
        said_of_time: how it was timed, in words, or why not.
    """

    costs: Mapping[tuple[str, QuantizationSettings], Cost] = field(default_factory=dict)
    unit: str = ""
    state: BenchState | None = None
    target: str = ""
    said: str = ""
    values: Hashable = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    timed: str = ""
    timed_name: str = ""
    said_of_time: str = ""

    @property
    def caption(self) -> str:
        """How costs and times were measured, in words; "" before."""
        return " ".join(filter(None, (self.said, self.said_of_time)))


def wanted_settings(
    explained: Iterable[ExplainedLayer], state: BenchState
) -> dict[str, tuple[QuantizationSettings, ...]]:
    """Return the planned settings of each layer; for a float layer, those of layers without a rule.

    Several where bits are chosen automatically.
    """
    everything = state.rules.get(EVERYTHING)
    is_general = everything is not None and not everything.skips
    base = everything.applied_to(state.quantization) if everything is not None and is_general else state.quantization
    found: dict[str, tuple[QuantizationSettings, ...]] = {}
    for layer in explained:
        settings = layer.settings if layer.settings is not None else base
        assert settings is not None
        found[layer.fqn] = tuple(settings.candidates())
    return found


def candidates_of(
    wanted: Mapping[str, Sequence[QuantizationSettings]], state: BenchState
) -> tuple[dict[str, QuantizationSettings], dict[QuantizationSettings, str]]:
    """Return the settings to measure by name, and why the first target of ``state`` does not support the others."""
    target = target_for(state.targets[0])
    kinds = dict.fromkeys(settings for several in wanted.values() for settings in several)
    lacking = {settings: unsupported(settings, target.placement) for settings in kinds}
    taken = {name_of_settings(settings): settings for settings in kinds if not lacking[settings]}
    refused = {settings: f"{target.display_name} does not support {what}" for settings, what in lacking.items() if what}
    return taken, refused


def costs_of(found: Sensitivity) -> dict[tuple[str, QuantizationSettings], Cost]:
    """Return the measured costs by layer and settings."""
    costs = {}
    for row in found.rows:
        settings = found.candidates[row.candidate]
        how = "measured" if row.exact is not None else "estimated"
        note = row.refusal or f"{settings_label(settings)} in this layer alone, {how}"
        costs[row.fqn, settings] = Cost(None if row.refusal else row.effect, note)
    return costs


def refusals_of(
    wanted: Mapping[str, Sequence[QuantizationSettings]], refused: Mapping[QuantizationSettings, str]
) -> dict[tuple[str, QuantizationSettings], Cost]:
    """Return why costs are missing for settings that the target does not support."""
    pairs = [(fqn, settings) for fqn, several in wanted.items() for settings in several if settings in refused]
    return {pair: Cost(None, refused[pair[1]]) for pair in pairs}


def shares_of(found: Profile) -> dict[str, float]:
    """Return the percentage of a call's time for each layer."""
    return {row.name: 100.0 * row.share for row in found.rows if row.is_layer}


def cost_columns(
    layers: Sequence[str],
    wanted: Mapping[str, Sequence[QuantizationSettings]],
    found: LayerCosts,
    stale: str,
    stale_time: str,
) -> tuple[LayerColumn, ...]:
    """Return the columns with the measured costs and times.

    Args:
        layers: FQNs.
        wanted: the settings of each that count; layers that cannot be quantized as all are have none.
        found: the measurements.
        stale: what changed since the costs were measured.
        stale_time: what changed since the times were measured.
    """
    columns = []
    if found.unit:
        what = "SQNR of the model's output" if found.unit == "dB" else "divergence of the model's predictions"
        end = "less costs more" if found.unit == "dB" else "more costs more"
        costs = [_cost(fqn, wanted.get(fqn, ()), found) for fqn in layers]
        columns.append(
            _column(
                SENSITIVITY,
                "Model SQNR" if found.unit == "dB" else "Sensitivity",
                found.unit,
                f"{what} on {found.target} with this layer alone quantized as planned, or as by default where it is "
                f"left in float; {end}",
                costs,
                stale,
            )
        )
    if found.shares:
        help_ = f"share of the time of a call, of {found.timed_name}"
        none = Cost(None, "no time of its own: it is fused with a neighbour, or not part of what was timed")
        times = [Cost(found.shares[fqn], "") if fqn in found.shares else none for fqn in layers]
        columns.append(_column(TIME, "Time", "%", help_, times, stale_time))
    return tuple(columns)


@dataclass(frozen=True)
class CostOverlay:
    """Arguments of an overlay: values by layer, a name, a unit, and how the values of inner layers are combined."""

    values: Mapping[str, float]
    name: str
    unit: str
    combine: Combine


def cost_overlays(
    layers: Sequence[str], columns: Iterable[LayerColumn], modules: Container[str]
) -> tuple[CostOverlay, ...]:
    """Return the costs of single layers as overlays of a diagram that has these modules."""
    combines: dict[str, Combine] = {SENSITIVITY: "max", TIME: "sum"}
    found = []
    for column in columns:
        pairs = zip(layers, column.values, strict=True)
        values = {fqn: value for fqn, value in pairs if value is not None and fqn in modules}
        if column.key in combines and values:
            combine = "min" if column.worst == "least" else combines[column.key]
            found.append(CostOverlay(values, column.key, column.unit, combine))
    return tuple(found)


def _cost(fqn: str, wanted: Sequence[QuantizationSettings], found: LayerCosts) -> Cost:
    """Return the highest cost among the settings that a layer may get."""
    if not wanted:
        return Cost(None, "not quantized by these settings")
    known = [found.costs[fqn, settings] for settings in wanted if (fqn, settings) in found.costs]
    if len(known) < len(wanted):
        if not any(layer == fqn for layer, _ in found.costs):
            return Cost(None, f"{found.target} quantizes no such layer")
        return Cost(None, "not measured with these settings: measure layers again")
    numbers = [cost for cost in known if cost.value is not None]
    if not numbers:
        return known[0]
    sign = 1.0 if found.unit == "dB" else -1.0
    return min(numbers, key=lambda cost: sign * (cost.value or 0.0))


def _column(key: str, title: str, unit: str, help_: str, costs: Sequence[Cost], stale: str) -> LayerColumn:
    kinds: dict[str, int] = {}
    noted = tuple(kinds.setdefault(cost.note, len(kinds)) for cost in costs)
    return LayerColumn(
        key,
        title,
        unit,
        help_,
        tuple(cost.value for cost in costs),
        worst="least" if unit == "dB" else "greatest",
        stale=stale,
        notes=tuple(kinds),
        noted=noted,
    )


# Measure single layers on the bench.


@dataclass(eq=False)
class Costs(SharedParts):
    """Measures the cost of quantizing each layer, and its share of the time; see :class:`prepbench.Bench`."""

    measured: LayerCosts = field(default_factory=LayerCosts)

    @property
    def is_measuring(self) -> bool:
        """Whether a measurement of layers with the current choices is running or queued."""
        return self.jobs.has(self.choices.state, "layers")

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
        self._measure(self.choices.state, self.choices.explained, progress)
        return self.columns()

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
        state, explained = self.choices.state, self.choices.explained
        run = QueuedRun.other("layers", "measure layers", state, self.choices.planned)
        return self.jobs.add(
            run,
            lambda step: self._measure(state, explained, step),
            progress,
            on_end,
            said=lambda: f"Layers measured. {self.measured.caption}",
            stages=MEASURING,
        )

    def columns(self) -> tuple[LayerColumn, ...]:
        """Return the columns measured with the currently planned settings; none before the first measurement."""
        found = self.measured
        if not found.unit and not found.shares:
            return ()
        wanted = wanted_settings(self.choices.explained, self.choices.state)
        return cost_columns(self.choices.layer_rules.layers, wanted, found, self._old_costs(), self._old_times())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _measure(self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback) -> None:
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
                self.measured = replace(self.measured, **found)
                self.changed()
        if errors:
            raise errors[0]

    def _measure_costs(
        self, state: BenchState, explained: Sequence[ExplainedLayer], progress: ProgressCallback
    ) -> dict[str, Any]:
        """Measure costs; return fields of :class:`LayerCosts`."""
        if not self.inputs.calibration_inputs:
            return {"said": _NOT_CALIBRATED}
        wanted = wanted_settings(explained, state)
        candidates, refused = candidates_of(wanted, state)
        if not candidates:
            why = next(iter(refused.values()), "the model has no layer that can be quantized")
            return {"costs": {}, "unit": "", "said": f"The cost of layers is unknown: {why}."}
        values = self.runs.value_mark
        kept = {} if self._old_costs() else self.measured.costs  # of other settings, which are as true as they were
        found = sensitivity(
            self.captures.model(state.fixes),
            self.inputs.calibration_inputs,
            candidates=candidates,
            deployment_settings=state.targets[0],
            tracing_inputs=self.inputs.tracing_inputs,
            compile_options=state.options,
            dynamic_axes=state.axes,
            fullgraph=state.fullgraph,
            reuse=self.kept,
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
        name = f"{self.runs.float_name} in PyTorch" if run is None else run.name
        progress(Progress(TIMED, 0, 1, name))
        sample = (self.inputs.tracing_inputs or self.inputs.calibration_inputs)[0]
        model = self.captures.model(state.fixes) if run is None else self.runs.compiled_of(run.id)
        found = profile(model, [sample], rounds=_ROUNDS)
        progress(Progress(TIMED, 1, 1, name))
        shares = shares_of(found)
        placed = sum(shares.get(fqn, 0.0) for fqn in self.choices.layer_rules.layers)  # what the table adds up to
        return {
            "shares": shares,
            "timed": "" if run is None else run.id,
            "timed_name": name,
            "said_of_time": f"Time of {name}: {found.total_ms:.3g} ms a call under its profiler, {placed:.0f}% "
            f"of it in layers that can be quantized{'; ' * bool(found.remark)}{found.remark}.",
        }

    def _timed_now(self) -> Run | None:
        """Return the run whose model would be timed; None for the float model."""
        shown = self.runs.shown_run()
        return shown if shown is not None and shown.id in self.runs.live_runs else None

    def _old_costs(self) -> str:
        found = self.measured
        if found.state is None:
            return ""
        differences = self.choices.state.differences(replace(found.state, axes=self.choices.state.axes))
        said = [*differences, *([OTHER_VALUES] if found.values != self.runs.value_mark else [])]
        return f"measured before a change: {'; '.join(said)}" if said else ""

    def _old_times(self) -> str:
        found, now = self.measured, self._timed_now()
        if found.timed != ("" if now is None else now.id):
            name = f"{self.runs.float_name} in PyTorch" if now is None else now.name
            return f"of {found.timed_name}, and not of {name}, whose results are shown"
        differences = () if now is None else self.runs.differences_of(now, self.runs.value_mark)
        return f"of a run before a change: {'; '.join(differences)}" if differences else ""
