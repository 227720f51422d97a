"""The cost of quantizing each layer alone, and its share of the time, as columns of the table of layers."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prepbench.bench.layer_summaries import settings_label
from prepbench.bench.state import EVERYTHING, BenchState
from prepbench.bench.summary import LayerColumn
from prepbench.document.model import Combine
from prepbench.measure.profile_result import Profile
from prepbench.search.candidates import name_of_settings
from prepbench.search.sensitivity_result import Sensitivity
from prepbench.settings import ExplainedLayer, QuantizationSettings
from prepbench.targets import target_for
from prepbench.targets.capabilities import unsupported

SENSITIVITY, TIME = "sensitivity", "time"
"""The keys of the two columns, and the names of the overlays."""


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


def shares_of(profile: Profile) -> dict[str, float]:
    """Return the percentage of a call's time for each layer."""
    return {row.name: 100.0 * row.share for row in profile.rows if row.is_layer}


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
                "Sensitivity",
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
