"""The parts of a program that pruning can remove: channels that belong together, and single weights of a layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from prepbench.adapt.channel_sets import WeightDim, chosen_sets, weight_dims
from prepbench.adapt.channels.removal import Removal
from prepbench.adapt.channels.walk import ChannelMap, channels_of
from prepbench.adapt.layer_uses import uses_of
from prepbench.adapt.prune import masked_layers, with_weights
from prepbench.inputs import Sample
from prepbench.settings.explain import PrunableLayer
from prepbench.settings.pruning import CHANNELS, PruningSettings

Program = torch.export.ExportedProgram


# Compared by identity: masks are tensors, whose comparison has no single truth value.
@dataclass(frozen=True, eq=False)
class Cut:
    """Parameters that are removed together, or not at all.

    Attributes:
        layers: FQNs of the layers that lose it: those that make the channels, or the one with the weights.
        units: classes of channels to remove.
        masks: ones for weights that stay, by name in the program.
        why: the reason if nothing, or less than the settings ask for, is removed.
    """

    layers: tuple[str, ...]
    units: frozenset[int] = frozenset()
    masks: Mapping[str, torch.Tensor] = field(default_factory=dict)
    why: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it removes nothing."""
        return not self.units and not self.masks


class Cuts:
    """The cuts of a program, which are simulated by zeros; samples are for scores and thresholds that need them."""

    def __init__(self, program: Program, layers: Sequence[tuple[str, str]], samples: Sequence[Sample]) -> None:
        self._program = program
        self._layers = layers
        self._samples = samples
        self._found: dict[PruningSettings, tuple[Cut, ...]] = {}

    def all(self, settings: PruningSettings) -> tuple[Cut, ...]:
        """Return the cuts if all layers had these settings; also empty ones, with the reason."""
        if settings not in self._found:
            # Every layer gets the settings, because the units of a layer depend on the other layers that make them. A
            # pruning of single layers is then a selection of these cuts, and following channels is done once.
            rows = [PrunableLayer(fqn, kind, "global", settings) for fqn, kind in self._layers]
            if settings.mask_type == CHANNELS:
                sets, _ = chosen_sets(self._channels, rows, self._samples)
                found = [Cut(self._with_tied(one.layers), frozenset(one.removed), why=one.why) for one in sets]
            else:
                masked = masked_layers(self._program, rows, self._samples)
                found = [Cut(self._with_tied([one.fqn]), masks=one.masks, why=one.why) for one in masked]
            self._found[settings] = tuple(found)
        return self._found[settings]

    def refusal(self, fqn: str, settings: PruningSettings) -> str:
        """Return why a layer would lose nothing; empty if it loses something."""
        mine = [cut for cut in self.all(settings) if fqn in cut.layers]
        if any(not cut.is_empty for cut in mine):
            return ""
        reasons = [cut.why for cut in mine if cut.why]
        if not mine and settings.mask_type != CHANNELS:
            return "it has no weight matrix"
        return reasons[0] if reasons else "too few channels for this amount"

    def of(self, pruning: Mapping[str, PruningSettings]) -> tuple[Cut, ...]:
        """Return the cuts for the settings of each layer; channels are cut only if all layers that make them agree."""
        # A cut needs the same settings in all of its layers: with others, other units would go. Searches never mix them
        # (`Shrinking.fits`).
        return tuple(
            cut
            for settings in dict.fromkeys(pruning.values())
            for cut in self.all(settings)
            if not cut.is_empty and all(pruning.get(fqn) == settings for fqn in cut.layers)
        )

    def around(self, fqn: str, settings: PruningSettings) -> tuple[Cut, ...]:
        """Return the cuts of a layer together with those of all layers that must lose the same channels."""
        together = {name for cut in self.all(settings) if fqn in cut.layers for name in cut.layers}
        return self.of(dict.fromkeys(together, settings))

    def program(self, cuts: Iterable[Cut]) -> Program:
        """Return the program with zeros in place of these cuts."""
        cuts = tuple(cuts)
        result, units = self._program, {unit for cut in cuts for unit in cut.units}
        if units:
            # A unit is named by the root of its class of channels, so all channels with a cut root become zero.
            roots = self._channels.classes.of(torch.arange(len(self._channels.classes))).numpy()
            # Zeros compute the same as the smaller program, without another export for each candidate.
            result = Removal(self._channels, np.isin(roots, list(units))).zeroed()
        masks = {name: mask for cut in cuts for name, mask in cut.masks.items()}
        if not masks:
            return result
        return with_weights(result, {name: result.state_dict[name].detach() * mask for name, mask in masks.items()})

    def left(self, fqn: str, cuts: Collection[Cut]) -> float:
        """Return the share of a layer's weights that remains after removing channels; masks remove none."""
        units = [unit for cut in cuts for unit in cut.units]
        whole = left = 0.0
        for placeholder, dims in self._dims.get(fqn, {}).items():
            gone: dict[int, np.ndarray] = {}
            for each in dims:
                lost = np.isin(each.classes, units)
                # A dim may carry several layers of labels; an index that any of them loses is gone.
                gone[each.dim] = gone[each.dim] | lost if each.dim in gone else lost
            name = self._channels.parameters[placeholder]
            count = self._program.state_dict[name].numel()
            whole += count
            # Rows and columns are removed independently of each other, so their shares multiply.
            left += count * math.prod(1 - float(lost.mean()) for lost in gone.values())
        return left / whole if whole else 1.0

    def reads(self, fqn: str, cut: Cut) -> bool:
        """Return whether a layer becomes smaller because it reads channels of a cut."""
        dims = (each for found in self._dims.get(fqn, {}).values() for each in found)
        return any(each.reads and bool(np.isin(each.classes, list(cut.units)).any()) for each in dims)

    def _with_tied(self, layers: Sequence[str]) -> tuple[str, ...]:
        """Return the layers with a weight matrix, and those that share it with them."""
        return tuple(dict.fromkeys(other for fqn in layers for other in self._tied.get(fqn, ())))

    @functools.cached_property
    def _tied(self) -> dict[str, tuple[str, ...]]:
        """Map each layer to those that share a weight matrix with it, itself included."""
        holders: dict[int, list[str]] = {}
        found = {fqn: [fqn] for fqn, _ in self._layers}
        for name, tensor in self._program.state_dict.items():
            fqn = name.rpartition(".")[0]
            if fqn in found and tensor.ndim > 1:
                # Tied weights are one tensor object under several names of the state dict.
                holders.setdefault(id(tensor), []).append(fqn)
        for group in holders.values():
            for fqn in group:
                found[fqn] += group
        return {fqn: tuple(dict.fromkeys(group)) for fqn, group in found.items()}

    @functools.cached_property
    def _channels(self) -> ChannelMap:
        return channels_of(self._program)

    @functools.cached_property
    def _dims(self) -> dict[str, dict[str, list[WeightDim]]]:
        """The dims of each layer's weights, by layer and placeholder; a shared weight counts for each of its layers."""
        found: dict[str, dict[str, list[WeightDim]]] = {}
        for each in weight_dims(self._channels, uses_of(self._program)):
            for fqn in self._tied.get(each.layer, (each.layer,)):
                found.setdefault(fqn, {}).setdefault(each.placeholder, []).append(each)
        return found
