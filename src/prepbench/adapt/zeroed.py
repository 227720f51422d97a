"""A program in which one layer is pruned, with zeros in the place of what goes: to ask what that costs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from prepbench.adapt.channel_sets import chosen_sets
from prepbench.adapt.channels.removal import Removal
from prepbench.adapt.channels.walk import ChannelMap, channels_of
from prepbench.adapt.masks import masked_layers
from prepbench.adapt.prune import with_weights
from prepbench.inputs import Sample
from prepbench.settings.pruned_layers import PrunableLayer
from prepbench.settings.pruning import CHANNELS, PruningSettings

Program = torch.export.ExportedProgram


@dataclass(frozen=True)
class Zeroed:
    """A program with zeros.

    Attributes:
        program: as large as before; the whole program where nothing would be pruned.
        why: why nothing would be; empty where something is.
    """

    program: Program
    why: str = ""


class Zeroing:
    """Prunes one layer of a program after the other; channels go with all layers that must have the same ones.

    Args:
        program: a flat program.
        layers: FQN and class name of each layer with a weight matrix.
        samples: calls of the program, for scores and thresholds that need them.
    """

    def __init__(self, program: Program, layers: Sequence[tuple[str, str]], samples: Sequence[Sample]) -> None:
        self._program = program
        self._layers = layers
        self._samples = samples

    def alone(self, fqn: str, settings: PruningSettings) -> Zeroed:
        """The program in which one layer is pruned."""
        if settings.mask_type == CHANNELS:
            return self._without_channels(fqn, settings)
        found = masked_layers(self._program, self._rows({fqn}, settings, only=True), self._samples)
        masks = {name: mask for each in found for name, mask in each.masks.items()}
        if not masks:
            reasons = [each.why for each in found if each.why]
            return Zeroed(self._program, reasons[0] if reasons else "it has no weight matrix")
        weights = {name: self._program.state_dict[name].detach() * mask for name, mask in masks.items()}
        return Zeroed(with_weights(self._program, weights))

    def _without_channels(self, fqn: str, settings: PruningSettings) -> Zeroed:
        everywhere = self._rows({name for name, _ in self._layers}, settings)
        sets, _ = chosen_sets(self._channels, everywhere, self._samples)
        mine = [each for each in sets if fqn in each.layers]
        together = {name for each in mine for name in each.layers}
        _, removed = chosen_sets(self._channels, self._rows(together, settings), self._samples)
        if not removed.any():
            reasons = [each.why for each in mine if each.why]
            return Zeroed(self._program, reasons[0] if reasons else "too few channels for this amount")
        return Zeroed(Removal(self._channels, removed).zeroed())

    @functools.cached_property
    def _channels(self) -> ChannelMap:
        return channels_of(self._program)

    def _rows(self, pruned: set[str], settings: PruningSettings, *, only: bool = False) -> list[PrunableLayer]:
        return [
            PrunableLayer(fqn, kind, "global", settings if fqn in pruned else None)
            for fqn, kind in self._layers
            if fqn in pruned or not only
        ]
