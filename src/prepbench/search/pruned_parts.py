"""The prunable layers of a model, before anything is measured."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from prepbench.adapt.cuts import Cut
from prepbench.compile.pruned_simulation import PrunedLayers
from prepbench.compile.simulation import Simulation
from prepbench.jobs import Progress, ProgressCallback
from prepbench.quantize import Score
from prepbench.search.layer_choice import Choices
from prepbench.search.mixtures import FLOAT, Mixture


class PrunedParts:
    """The channels of a model that choices prune.

    Args:
        simulation: of the whole model.
        choices: of layers, by name.

    Attributes:
        layers: the possible cuts; None where no choice prunes.
    """

    def __init__(self, simulation: Simulation, choices: Choices) -> None:
        self._simulation = simulation
        self._choices = choices
        self._pruning = {name: one.pruning for name, one in choices.items() if one.pruning is not None}
        self.layers = PrunedLayers(simulation) if self._pruning else None

    def refusal(self, fqn: str, name: str) -> str:
        """Return why a layer cannot be pruned by a choice; empty if it can, or if the choice prunes nothing."""
        settings = self._pruning.get(name)
        if self.layers is None or settings is None:
            return ""
        if why := self.layers.refusal(fqn, settings):
            return why
        known = set(self._simulation.layers)
        for cut in self.layers.cuts.all(settings):
            others = [other for other in cut.layers if other not in known]
            if fqn in cut.layers and others:
                return f"{others[0]}, which makes the same channels, is not a layer that can be quantized"
        return ""

    def with_partners(self, refused: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
        """Return the refused (layer, choice) pairs, and those that are refused because a partner's pair is.

        Args:
            refused: those that do not go together by themselves, with the reason.
        """
        found, cuts = dict(refused), self.possible
        changed = True
        while changed:
            changed = False
            for names, cut in cuts:
                stays = [fqn for fqn in cut.layers if all((fqn, name) in found for name in names)]
                for pair in ((fqn, name) for fqn in cut.layers for name in names if stays):
                    if pair not in found:
                        found[pair] = f"{stays[0]}, which makes the same channels, cannot: {found[stays[0], names[0]]}"
                        changed = True
        return found

    @functools.cached_property
    def possible(self) -> list[tuple[list[str], Cut]]:
        """Return the possible cuts with the names of their choices."""
        if self.layers is None:
            return []
        known = set(self._simulation.layers)
        return [
            ([name for name, one in self._pruning.items() if one == settings], cut)
            for settings in dict.fromkeys(self._pruning.values())
            for cut in self.layers.cuts.all(settings)
            if not cut.is_empty and set(cut.layers) <= known
        ]

    def score(self, mixture: Mixture, progress: ProgressCallback, *, even_alone: bool = False) -> Score:
        """Simulate a mixture and return its distance from the unpruned float model."""
        taken = dict(zip(self._simulation.layers, mixture, strict=True))
        settings = {fqn: None if name == FLOAT else self._choices[name].quantization for fqn, name in taken.items()}
        return self._simulated(self.cuts(taken)).score(settings, progress, even_alone=even_alone)

    def noises(self, progress: ProgressCallback) -> list[tuple[Score, frozenset[tuple[str, str]]]]:
        """Return the score of each cut alone, with the (layer, choice) pairs that make it."""
        found, cuts = [], self.possible
        for done, (names, cut) in enumerate(cuts):
            progress(Progress("prune layers", done, len(cuts), ", ".join(cut.layers[:2])))
            score = self._simulated([cut]).score({})
            found.append((score, frozenset((fqn, name) for fqn in cut.layers for name in names)))
        return found

    def cuts(self, taken: Mapping[str, str]) -> tuple[Cut, ...]:
        """Return the cuts that a choice for each layer makes."""
        if self.layers is None:
            return ()
        return self.layers.cuts.of({fqn: self._pruning[name] for fqn, name in taken.items() if name in self._pruning})

    def _simulated(self, cuts: Sequence[Cut]) -> Simulation:
        return self._simulation if self.layers is None or not cuts else self.layers.simulation(cuts)
