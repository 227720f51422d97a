"""One target of a search: the choices of its layers, and its tables before anything is measured."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from prepbench.adapt.cuts import Cut, Cuts
from prepbench.compile.simulation import PrunedLayers, Simulation
from prepbench.jobs import Progress, ProgressCallback
from prepbench.package.report import CompileReport
from prepbench.quantize import Score
from prepbench.search.candidates import Choices, LayerChoice
from prepbench.search.mixtures import FLOAT, Mixture, uniform_mixture
from prepbench.search.tables import Corrected, DropCurve, Neighbours, Reading, Shrinking, Tables
from prepbench.settings import DeploymentSettings, QuantizationSettings, activation_format
from prepbench.settings.numbers import FLOAT32
from prepbench.settings.pruning import CHANNELS

_ANY = QuantizationSettings(prefer_weights_only_quantization=True)  # for which layers share weights


@dataclass(frozen=True)
class TargetJob:
    """One target of a search."""

    deployment: DeploymentSettings
    label: str
    simulation: Simulation
    choices: Choices
    lacking: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def pruned(self) -> PrunedParts:
        """The parts of the model that choices prune."""
        return PrunedParts(self.simulation, self.choices)

    @cached_property
    def refused(self) -> dict[tuple[str, str], str]:
        """The refused pairs of layer and choice, with the reason."""
        found = {
            (fqn, name): why
            for fqn in self.simulation.layers
            for name, choice in self.choices.items()
            if (why := self.refusal(fqn, name, choice))
        }
        return self.pruned.with_partners(found)

    def refusal(self, fqn: str, name: str, choice: LayerChoice) -> str:
        """Return why a layer alone cannot take a choice; empty if it can."""
        bits = "" if choice.quantization is None else self.simulation.refusal(fqn, choice.quantization)
        return bits or self.pruned.refusal(fqn, name)

    def weight_bytes(self, fqn: str, name: str) -> int:
        """Return the bytes of a layer's weights at the bits of a choice, without pruning."""
        return self.simulation.weight_bytes(fqn, None if name == FLOAT else self.choices[name].quantization)

    def choices_taken(self, mixture: Mixture, report: CompileReport) -> Mixture:
        """Return the choices that layers of a compiled model took: some may be left in float or unpruned."""
        quantized = {row.fqn for row in report.layers if row.quantized}
        pruned = {row.fqn for row in report.pruned if row.mask_type}
        for _, cut in self.pruned.possible:  # goes as a whole; of layers that share a weight, reports name one
            pruned |= set(cut.layers) if pruned & set(cut.layers) else set()
        return tuple(
            self._without_lost(name, fqn in quantized, fqn in pruned)
            for fqn, name in zip(self.simulation.layers, mixture, strict=True)
        )

    def _without_lost(self, name: str, quantized: bool, pruned: bool) -> str:
        """Return the choice that describes what remained of another choice of a layer."""
        if name == FLOAT:
            return FLOAT
        wanted = self.choices[name]
        real = LayerChoice(wanted.quantization if quantized else None, wanted.pruning if pruned else None)
        if real == wanted:
            return name
        return next((other for other, one in self.choices.items() if one == real), FLOAT)

    def without(self, failed: Mapping[str, Exception]) -> TargetJob:
        """Return a copy without choices that failed to compile for the whole model."""
        return replace(
            self,
            choices={name: settings for name, settings in self.choices.items() if name not in failed},
            lacking={
                **self.lacking,
                **{name: f"with it everywhere, the model was not compiled: {error}" for name, error in failed.items()},
            },
        )


def empty_tables(job: TargetJob) -> Tables:
    """Return the tables of a target before anything is measured."""
    simulation, choices, refused = job.simulation, job.choices, job.refused
    possible = [f for f in simulation.layers if any((f, name) not in refused for name in choices)]
    known = set(simulation.layers)
    return Tables(
        layers=simulation.layers,
        choices=(FLOAT, *choices),
        types={FLOAT: FLOAT, **{name: _type_of(choice) for name, choice in choices.items()}},
        refused=refused,
        groups=tuple(sorted(_groups(job, possible), key=sorted)),
        neighbours=tuple(
            Neighbours(one, other, size) for one, other, size in simulation.neighbours if {one, other} <= known
        ),
        times=Corrected({}),
        sizes=Corrected({}),
        noise=Corrected({}),
        curve=DropCurve.through([(0.0, 0.0)]),
        bits=alike_in_bits(choices),
        kernels=_alike_in_kernels(choices),
        shrinking=shrinking_of(job.pruned, simulation.layers, choices, refused),
    )


def alike_in_bits(choices: Choices) -> dict[str, str]:
    """Map each choice to the first one with the same bits; :data:`FLOAT` for those that only prune."""
    first: dict[QuantizationSettings | None, str] = {None: FLOAT}
    return {name: first.setdefault(choice.quantization, name) for name, choice in choices.items()}


def _alike_in_kernels(choices: Choices) -> dict[str, str]:
    """Map each choice to the same one without equalization; to itself where there is none."""
    names = {choice: name for name, choice in choices.items()}
    return {name: names.get(_not_equalised(choice), name) for name, choice in choices.items()}


def _not_equalised(choice: LayerChoice) -> LayerChoice:
    settings = choice.quantization
    if settings is None:
        return choice
    return replace(choice, quantization=replace(settings, cross_layer_equalization=False))


def _groups(job: TargetJob, layers: Sequence[str]) -> set[frozenset[str]]:
    """Return groups of layers that share weights under any of the choices."""
    bits = {choice.quantization or _ANY for choice in job.choices.values()}
    return {
        group
        for settings in bits
        for group in job.simulation.groups({f: settings for f in layers if not job.simulation.refusal(f, settings)})
    }


def _type_of(choice: LayerChoice) -> str:
    """Return the type that a layer computes in; its activations are converted to it."""
    kind = FLOAT32 if choice.quantization is None else activation_format(choice.quantization)
    return FLOAT if kind.is_float else kind.name


# Which layers become smaller with channels that others lose, and by how much.


_SAME = 1e-9


def shrinking_of(
    parts: PrunedParts, layers: Sequence[str], choices: Choices, refused: Collection[tuple[str, str]]
) -> Shrinking:
    """Return the side effects of pruning on other layers, which are in execution order."""
    channels = {
        name: one.pruning
        for name, one in choices.items()
        if one.pruning is not None and one.pruning.mask_type == CHANNELS
    }
    if parts.layers is None or not channels:
        return Shrinking()
    cuts, left = parts.layers.cuts, {}
    for name in channels:
        taken = dict(zip(layers, uniform_mixture(layers, choices, refused, name), strict=True))
        gone = parts.cuts(taken)
        left.update({(fqn, name): cuts.left(fqn, gone) for fqn in layers if taken[fqn] == name})
    lost = [(names, cut) for names, cut in parts.possible if cut.units]
    together = sorted({frozenset(cut.layers) for _, cut in lost}, key=sorted)
    readings = [
        Reading(min(makers, key=layers.index), fqn, _more(fqn, makers, cuts, lost, (FLOAT, *choices), left))
        for makers in together
        for fqn in layers
        if fqn not in makers and any(cuts.reads(fqn, cut) for _, cut in lost if set(cut.layers) == makers)
    ]
    return Shrinking(channels, tuple(group for group in together if len(group) > 1), tuple(readings), left)


def _more(
    reader: str,
    makers: frozenset[str],
    cuts: Cuts,
    lost: Sequence[tuple[Sequence[str], Cut]],
    names: Sequence[str],
    left: Mapping[tuple[str, str], float],
) -> dict[tuple[str, str], float]:
    """Return by which share a pruned reader is larger where the layers it reads from are pruned less than the others.

    Args:
        reader: a layer.
        makers: the layers whose channels it reads.
        cuts: what remains of each layer.
        lost: the cuts of each choice, by the names of the choices that make them.
        names: of all choices.
        left: the share of each layer that remains where one choice holds for all layers.

    Returns:
        The shares by (choice of the makers, choice of the reader), where they differ from 0.
    """
    more = {}
    of = {name: [cut for known, cut in lost if name in known and set(cut.layers) == makers] for name in names}
    for own in names:
        is_pruned, whole = (reader, own) in left, left.get((reader, own), 1.0)
        others = [cut for known, cut in lost if is_pruned and own in known and set(cut.layers) != makers]
        for name in names:
            now = cuts.left(reader, [*others, *of[name]])
            if abs(now - whole) > _SAME * whole:
                more[name, own] = now / whole - 1
    return more


# The prunable layers of a model, before anything is measured.


class PrunedParts:
    """The channels of a model that choices prune; ``layers`` are the possible cuts, None where no choice prunes."""

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
        """Return the refused (layer, choice) pairs, and those that are refused because a partner's pair is."""
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
