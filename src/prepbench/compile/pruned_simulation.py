"""Simulations of a model with pruned layers, compared with the whole float model."""

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

_KEPT = 4  # the number of pruned models whose ranges are cached


class PrunedSimulation(Simulation):
    """The model with zeros for pruned weights; scores measure its distance from the whole float model.

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
        """Return the distance of the pruned model with these settings from the whole float model."""
        exact, mixture = self._whole._float, self._mixture(settings)
        with numbers_kept():
            graph = self._graph(mixture)
            changes = graph.changes(mixture, progress, even_alone=even_alone)
            total = ScoreSum(exact.logits)
            for right, got in zip(exact.expected(), graph.outputs(changes, exact.scored), strict=True):
                total.add(right, got)
            return total.score


class PrunedLayers:
    """The effects of pruning layers, alone or together with quantization.

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
        """Return why pruning would remove nothing of a layer; empty if it removes something."""
        if fqn not in self._names:
            return "an embedding is not pruned"
        with self._lock, tracing():
            return self.cuts.refusal(fqn, settings)

    def alone(self, fqn: str, settings: PruningSettings) -> PrunedSimulation:
        """Return the model with one layer pruned, and those that must lose the same channels.

        Raises:
            SettingsError: nothing would be pruned; says why.
        """
        if why := self.refusal(fqn, settings):
            raise SettingsError(why)
        return self.simulation(self.cuts.around(fqn, settings))

    def simulation(self, cuts: Sequence[Cut]) -> PrunedSimulation:
        """Return the model without some of its prunable parts."""
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
        """Return the bytes of a layer's remaining weights; unstructured sparsity adds one mask bit per weight."""
        whole, left = _counted(self._simulation, fqn), _counted(pruned, fqn)
        stored = self._simulation.weight_bytes(fqn, bits) * left // max(whole, 1)
        return stored if settings.mask_type == "channels" else stored + whole // 8


def _counted(simulation: Simulation, fqn: str) -> int:
    """Return the number of non-zero weights of a layer."""
    state: Mapping[str, Any] = simulation.source.program.state_dict
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in state if name.startswith(prefix) and "." not in name[len(prefix) :])
    return sum(int(state[name].count_nonzero()) for name in names if state[name].ndim > 1)
