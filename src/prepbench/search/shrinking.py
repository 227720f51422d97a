"""Side effects of pruning a layer: others lose the same channels, and layers that read them become smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from prepbench.settings import PruningSettings

_LEAST = 0.01  # of a layer that is left, whatever the sums say


@dataclass(frozen=True)
class Reading:
    """A layer that reads channels which another layer makes.

    Attributes:
        maker: FQN of a layer that makes them.
        reader: FQN of the layer that reads them.
        more: how much more of the reader's weights are left, or less, relative to a model of the reader's choice in all
            layers, by the choices of the maker and of the reader. Pairs that change nothing are missing.
    """

    maker: str
    reader: str
    more: Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Shrinking:
    """The side effects of pruning choices; empty where no choice prunes.

    Attributes:
        channels: the settings of choices that remove channels, by name.
        together: layers that make the same channels, and lose them together.
        readings: the layers that read channels which others make.
        left: the share of a layer's weights that is left in a model of one choice in all layers, by layer and choice;
            1 where it is missing.
    """

    channels: Mapping[str, PruningSettings] = field(default_factory=dict)
    together: tuple[frozenset[str], ...] = ()
    readings: tuple[Reading, ...] = ()
    left: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def counts(self, taken: Mapping[str, str]) -> dict[str, float]:
        """Return a factor for each layer's cost relative to a uniform model of its choice; factors of 1 are omitted.

        Args:
            taken: the choice of each layer.
        """
        found: dict[str, float] = {}
        for each in self.readings:
            more = each.more.get((taken[each.maker], taken[each.reader]), 0.0)
            if more:
                found[each.reader] = found.get(each.reader, 1.0) + more
        return {fqn: max(count, _LEAST) for fqn, count in found.items()}

    def fits(self, one: str, other: str) -> bool:
        """Return whether layers that make the same channels may take these two choices."""
        return self.channels.get(one) == self.channels.get(other)

    def is_possible(self, taken: Mapping[str, str]) -> bool:
        """Return whether all layers that make the same channels lose the same ones."""
        return all(len({self.channels.get(taken[fqn]) for fqn in group}) == 1 for group in self.together)
