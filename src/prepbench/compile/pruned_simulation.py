"""Simulations of a model in which layers are pruned, beside the whole model in float."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from prepbench.adapt.cuts import Cut, Cuts
from prepbench.compile.simulation import Assignment, Simulation
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize import Score
from prepbench.quantize.output_scores import ScoreSum
from prepbench.running.random_numbers import numbers_kept
from prepbench.running.tracing import tracing
from prepbench.settings import PruningSettings, QuantizationSettings

_KEPT = 4  # pruned models whose ranges are remembered


class PrunedSimulation(Simulation):
    """The model with zeros where it would be pruned; scores say how far that is from the whole model in float.

    Args:
        whole: of the whole model.
        program: of the same calls, with other weights.
    """

    def __init__(self, whole: Simulation, program: torch.export.ExportedProgram) -> None:
        super().__init__(replace(whole.source, program=program))
        self._whole = whole

    def score(
        self, settings: Assignment, progress: ProgressCallback = report_nothing, *, even_alone: bool = False
    ) -> Score:
        """How far the pruned model with these settings is from the whole one in float."""
        exact, mixture = self._whole._float, self._mixture(settings)
        with numbers_kept():
            graph = self._graph(mixture)
            changes = graph.changes(mixture, progress, even_alone=even_alone)
            total = ScoreSum(exact.logits)
            for right, got in zip(exact.expected(), graph.outputs(changes, exact.scored), strict=True):
                total.add(right, got)
            return total.score


class PrunedLayers:
    """What pruning layers does, by itself or together with bits.

    Args:
        simulation: of the whole model.
    """

    def __init__(self, simulation: Simulation) -> None:
        source = simulation.source
        layers = [(fqn, facts.type) for fqn, facts in source.layers.items() if not facts.is_table]
        self._simulation = simulation
        self._names = {fqn for fqn, _ in layers}
        self._simulations: OrderedDict[frozenset[Cut], PrunedSimulation] = OrderedDict()
        self._lock = threading.RLock()
        self.cuts = Cuts(source.program, layers, source.samples)

    def refusal(self, fqn: str, settings: PruningSettings) -> str:
        """Why nothing of a layer would go; empty where something does."""
        if fqn not in self._names:
            return "an embedding is not pruned"
        with self._lock, tracing():
            return self.cuts.refusal(fqn, settings)

    def alone(self, fqn: str, settings: PruningSettings) -> PrunedSimulation:
        """The model with one layer pruned, and those that must lose the same channels.

        Raises:
            SettingsError: nothing would be pruned; says why.
        """
        if why := self.refusal(fqn, settings):
            raise SettingsError(why)
        return self.simulation(self.cuts.around(fqn, settings))

    def simulation(self, cuts: Sequence[Cut]) -> PrunedSimulation:
        """The model without some of what it can lose."""
        key = frozenset(cuts)
        with self._lock, tracing():
            if key not in self._simulations:
                self._simulations[key] = PrunedSimulation(self._simulation, self.cuts.program(cuts))
            self._simulations.move_to_end(key)
            while len(self._simulations) > _KEPT:
                self._simulations.popitem(last=False)
            return self._simulations[key]

    def weight_bytes(
        self, pruned: PrunedSimulation, fqn: str, settings: PruningSettings, bits: QuantizationSettings | None
    ) -> int:
        """Bytes of what is left of a layer's weights; single weights take one bit more, which says where they are."""
        whole, left = _counted(self._simulation, fqn), _counted(pruned, fqn)
        stored = self._simulation.weight_bytes(fqn, bits) * left // max(whole, 1)
        return stored if settings.mask_type == "channels" else stored + whole // 8


def _counted(simulation: Simulation, fqn: str) -> int:
    """How many of a layer's weights are not zero."""
    state: Mapping[str, Any] = simulation.source.program.state_dict
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in state if name.startswith(prefix) and "." not in name[len(prefix) :])
    return sum(int(state[name].count_nonzero()) for name in names if state[name].ndim > 1)
