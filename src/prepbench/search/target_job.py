"""One target of a search: what its layers may take, and the tables before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from prepbench.compile.simulation import Simulation
from prepbench.search.corrected import Corrected
from prepbench.search.curve import DropCurve
from prepbench.search.mixtures import FLOAT, Choices
from prepbench.search.tables import Neighbours, Tables
from prepbench.settings import DeploymentSettings, QuantizationSettings


@dataclass(frozen=True)
class TargetJob:
    """One target of a search.

    Attributes:
        deployment: its settings.
        label: the target for people.
        simulation: the model, as this target would quantize it.
        choices: what layers may take, by name.
        lacking: why no layer takes one of the other candidates here.
    """

    deployment: DeploymentSettings
    label: str
    simulation: Simulation
    choices: Choices
    lacking: Mapping[str, str] = field(default_factory=dict)

    def without(self, failed: Mapping[str, Exception]) -> TargetJob:
        """The same without choices with which the whole model could not be compiled."""
        return replace(
            self,
            choices={name: settings for name, settings in self.choices.items() if name not in failed},
            lacking={
                **self.lacking,
                **{name: f"with it everywhere, the model was not compiled: {error}" for name, error in failed.items()},
            },
        )


def empty_tables(job: TargetJob) -> Tables:
    """What is known of a target before anything is measured."""
    simulation, choices = job.simulation, job.choices
    refused = {
        (fqn, name): why
        for fqn in simulation.layers
        for name, settings in choices.items()
        if (why := simulation.refusal(fqn, settings))
    }
    groups = {
        group
        for name, settings in choices.items()
        for group in simulation.groups({f: settings for f in simulation.layers if (f, name) not in refused})
    }
    known = set(simulation.layers)
    types = {name: _type_of(settings) for name, settings in choices.items()}
    return Tables(
        layers=simulation.layers,
        choices=(FLOAT, *choices),
        types={FLOAT: FLOAT, **types},
        refused=refused,
        groups=tuple(sorted(groups, key=sorted)),
        neighbours=tuple(
            Neighbours(one, other, size) for one, other, size in simulation.neighbours if {one, other} <= known
        ),
        times=Corrected({}),
        sizes=Corrected({}),
        noise=Corrected({}),
        curve=DropCurve.through([(0.0, 0.0)]),
    )


def _type_of(settings: QuantizationSettings) -> str:
    """What a layer computes in: its activations are converted to that."""
    return FLOAT if settings.prefer_weights_only_quantization else f"int{settings.activations_num_bits}"
