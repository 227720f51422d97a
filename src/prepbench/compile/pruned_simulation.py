"""Simulations of a model in which one layer is pruned, beside the whole model in float."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from prepbench.adapt.zeroed import Zeroing
from prepbench.compile.simulation import Assignment, Simulation
from prepbench.errors import SettingsError
from prepbench.jobs import ProgressCallback, report_nothing
from prepbench.quantize import Score
from prepbench.quantize.output_scores import ScoreSum
from prepbench.running.random_numbers import numbers_kept
from prepbench.running.tracing import tracing
from prepbench.settings import PruningSettings, QuantizationSettings


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
            for right, got in zip(exact.expected(), graph.outputs(changes, exact.chosen), strict=True):
                total.add(right, got)
            return total.score


class PrunedLayers:
    """What pruning each layer alone does, by itself or together with bits.

    Args:
        simulation: of the whole model.
    """

    def __init__(self, simulation: Simulation) -> None:
        source = simulation.source
        layers = [(fqn, facts.type) for fqn, facts in source.layers.items() if not facts.is_table]
        self._simulation = simulation
        self._names = {fqn for fqn, _ in layers}
        self._zeroing = Zeroing(source.program, layers, source.samples)

    def simulation(self, fqn: str, settings: PruningSettings) -> PrunedSimulation:
        """The model with one layer pruned.

        Raises:
            SettingsError: nothing would be pruned; says why.
        """
        if fqn not in self._names:
            raise SettingsError("an embedding is not pruned")
        with tracing():
            found = self._zeroing.alone(fqn, settings)
        if found.why:
            raise SettingsError(found.why)
        return PrunedSimulation(self._simulation, found.program)

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
