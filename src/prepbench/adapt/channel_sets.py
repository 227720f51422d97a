"""Choose the channels to remove: units of a layer by their score, as many as the settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from prepbench.adapt.channels.removal import Removal
from prepbench.adapt.channels.values import Value, only, varying
from prepbench.adapt.channels.walk import ChannelMap
from prepbench.adapt.layer_uses import Use, input_powers, noises, uses_of
from prepbench.inputs import Sample
from prepbench.settings.explain import PrunableLayer
from prepbench.settings.pruning import CHANNELS, PruningSettings

STEPS = 8
"""How many amounts are tried where a threshold limits the noise."""


@dataclass
class ChannelSet:
    """Units that lie side by side in the same weights, such as the channels of a convolution or the heads of a
    layer.

    Attributes:
        units: classes of channels.
        layers: FQNs of the layers that make them.
        settings: the settings that apply; None where the units stay.
        why: why they stay.
        removed: the classes to remove.
    """

    units: list[int]
    layers: tuple[str, ...]
    settings: PruningSettings | None = None
    why: str = ""
    removed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class WeightDim:
    """A dim of a weight, and the class of each of its indices.

    Attributes:
        placeholder: of the weight.
        dim: the dim.
        classes: of its indices.
        reads: whether the indices are of the layer's inputs.
        layer: the FQN of the module that has the weight.
    """

    placeholder: str
    dim: int
    classes: np.ndarray
    reads: bool
    layer: str


def chosen_sets(
    channels: ChannelMap, layers: Sequence[PrunableLayer], samples: Sequence[Sample]
) -> tuple[list[ChannelSet], np.ndarray]:
    """Return the sets of units with those to remove, and for each channel whether it is removed."""
    uses = uses_of(channels.program)
    dims = weight_dims(channels, uses)
    sets = _sets(channels, dims, {layer.fqn: layer for layer in layers})
    wanted = [each for each in sets if each.settings is not None]
    powers = {}
    if any(each.settings is not None and each.settings.score == "activations" for each in wanted):
        powers = input_powers(channels.program, samples, uses)
    scores = {
        "magnitude": _magnitudes(channels, dims),
        "activations": _activations(channels, dims, uses, powers),
    }
    orders = {}
    for index, each in enumerate(wanted):
        assert each.settings is not None
        values = scores[each.settings.score][each.units]
        if each.settings.score == "activations" and not values.any():  # nothing that was watched reads them
            values = scores["magnitude"][each.units]
        orders[index] = [each.units[place] for place in np.argsort(values, kind="stable")]
        each.removed = orders[index][: _count(each, 1.0)]
    _limit(channels, wanted, orders, uses, samples)
    removed = np.zeros(len(channels.classes), dtype=bool)
    gone = [unit for each in wanted for unit in each.removed]
    if gone:
        roots = channels.classes.of(torch.arange(len(channels.classes))).numpy()
        removed = np.isin(roots, gone)
    return sets, removed


def _count(each: ChannelSet, part: float) -> int:
    """Return the number of units to remove; at least one stays."""
    assert each.settings is not None
    return min(int(part * each.settings.share * len(each.units) + 1e-9), len(each.units) - 1)


def weight_dims(channels: ChannelMap, uses: Sequence[Use]) -> list[WeightDim]:
    """Return the dims of weights, with the classes of their channels."""
    reading = {(use.weight.name, use.inputs) for use in uses}
    found = []
    for node, value in channels.weights.items():
        name = channels.parameters[node.name]
        if len(value.shape) < 2:
            continue
        for layer in value.layers:
            (dim,) = varying(layer)
            classes = channels.classes.of(only(layer, (dim,)).reshape(-1)).numpy()
            found.append(WeightDim(node.name, dim, classes, (node.name, dim) in reading, name.rpartition(".")[0]))
    return found


def _sets(channels: ChannelMap, dims: Sequence[WeightDim], layers: Mapping[str, PrunableLayer]) -> list[ChannelSet]:
    places: dict[int, list[int]] = {}
    for index, each in enumerate(dims):
        for number in np.unique(each.classes).tolist():
            places.setdefault(number, []).append(index)
    by_place: dict[tuple[int, ...], list[int]] = {}
    for number, where in places.items():
        by_place.setdefault(tuple(where), []).append(number)
    found = []
    for indices, units in by_place.items():
        makers = tuple(dict.fromkeys(dims[index].layer for index in indices if not dims[index].reads))
        if not makers or not any(layer in layers for layer in makers):
            continue
        free = [unit for unit in sorted(units) if not channels.classes.why_kept(unit)]
        if len(free) > 1:
            settings, why = _settings(makers, layers)
            found.append(ChannelSet(free, makers, settings, why))
        reasons = [reason for unit in units if (reason := channels.classes.why_kept(unit))]
        if reasons:
            found.append(ChannelSet([], makers, None, reasons[0]))
        elif len(free) == 1:
            found.append(ChannelSet([], makers, None, "all of its channels are one unit"))
    return found


def _settings(makers: Sequence[str], layers: Mapping[str, PrunableLayer]) -> tuple[PruningSettings | None, str]:
    """Return the mildest settings among the layers that make the same channels."""
    rows = [layers[fqn] for fqn in makers if fqn in layers]
    for row in rows:
        if row.settings is None:
            return None, f"{row.fqn}, which makes the same channels, is skipped by rule {row.rule!r}"
        if row.settings.mask_type != CHANNELS:
            kind = row.settings.mask_type
            return None, f"{row.fqn}, which makes the same channels, is pruned by mask_type {kind!r}"
    gentlest = min((row.settings for row in rows if row.settings is not None), key=lambda each: each.share)
    return gentlest, ""


def _tensor(channels: ChannelMap, placeholder: str) -> torch.Tensor:
    name, program = channels.parameters[placeholder], channels.program
    tensor: torch.Tensor = program.state_dict[name] if name in program.state_dict else program.constants[name]
    return tensor.detach()


def _magnitudes(channels: ChannelMap, dims: Sequence[WeightDim]) -> np.ndarray:
    """Return the squares of the weights that make a channel, where each weight tensor has the same total."""
    scores = np.zeros(len(channels.classes))
    for each in dims:
        if not each.reads:
            _add(scores, each.classes, _power(_tensor(channels, each.placeholder), each.dim))
    return scores


def _activations(
    channels: ChannelMap, dims: Sequence[WeightDim], uses: Sequence[Use], powers: Mapping[torch.fx.Node, torch.Tensor]
) -> np.ndarray:
    """Return the power that a channel adds to the layers that read it, on samples."""
    scores = np.zeros(len(channels.classes))
    by_place = {(each.placeholder, each.dim): each for each in dims}
    for use in uses:
        each = by_place.get((use.weight.name, use.inputs))
        if each is not None and use.groups == 1 and use.node in powers:
            power = _power(_tensor(channels, each.placeholder), each.dim) * powers[use.node].cpu()
            _add(scores, each.classes, power)
    return scores


def _power(weight: torch.Tensor, dim: int) -> torch.Tensor:
    others = [each for each in range(weight.ndim) if each != dim]
    if weight.is_meta:  # only planned: any channels will do
        return torch.ones(weight.shape[dim], dtype=torch.float64)
    return weight.double().square().sum(others).cpu()


def _add(scores: np.ndarray, classes: np.ndarray, power: torch.Tensor) -> None:
    mean = float(power.mean())
    if mean > 0:
        np.add.at(scores, classes, (power / mean).numpy())


def _limit(
    channels: ChannelMap,
    sets: Sequence[ChannelSet],
    orders: Mapping[int, list[int]],
    uses: Sequence[Use],
    samples: Sequence[Sample],
) -> None:
    """Remove fewer units where layers that read them would change by more than the threshold."""
    for index, each in enumerate(sets):
        settings = each.settings
        if settings is None or settings.pruning_sensitivity_threshold is None:
            continue
        tried = [orders[index][: _count(each, part / STEPS)] for part in range(1, STEPS + 1)]
        weights = [_reading_weights(channels, units, uses) for units in tried]
        dense = {use.node: _tensor(channels, use.weight.name) for use in uses}
        changed = {node: [step.get(node, dense[node]) for step in weights] for node in weights[-1]}
        found = noises(channels.program, samples, uses, changed)
        worst = [max((ratios[step] for ratios in found.values()), default=0.0) for step in range(STEPS)]
        allowed = [
            units for units, ratio in zip(tried, worst, strict=True) if ratio <= settings.pruning_sensitivity_threshold
        ]
        each.removed = allowed[-1] if allowed else []
        if not each.removed:
            each.why = f"removing an eighth of the amount adds noise of {worst[0]:.3g}, above the threshold"


def _reading_weights(
    channels: ChannelMap, units: Sequence[int], uses: Sequence[Use]
) -> dict[torch.fx.Node, torch.Tensor]:
    """Return the weights of the layers that read some units, with zeros in place of these units."""
    roots = channels.classes.of(torch.arange(len(channels.classes))).numpy()
    removal = Removal(channels, np.isin(roots, list(units)))
    found = {}
    for use in uses:
        value = channels.values.get(use.weight)
        if isinstance(value, Value) and any(varying(layer) == (use.inputs,) for layer in value.layers):
            kept = {dim: stays for dim, stays in removal.kept(value).items() if dim == use.inputs}
            if kept:
                found[use.node] = removal.with_zeros(_tensor(channels, use.weight.name), kept)
    return found
