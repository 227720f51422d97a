"""Which layers become smaller with channels that others lose, and by how much."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from prepbench.adapt.cuts import Cut, Cuts
from prepbench.search.layer_choice import Choices
from prepbench.search.mixtures import FLOAT, usual
from prepbench.search.pruned_parts import PrunedParts
from prepbench.search.shrinking import Reading, Shrinking
from prepbench.settings.pruning import CHANNELS

_SAME = 1e-9


def shrinking_of(
    parts: PrunedParts, layers: Sequence[str], choices: Choices, refused: Collection[tuple[str, str]]
) -> Shrinking:
    """What removing channels does beyond a layer.

    Args:
        parts: what choices prune.
        layers: FQNs, in the order in which they run.
        choices: what layers may take, by name.
        refused: layers and choices that do not go together.
    """
    channels = {
        name: one.pruning
        for name, one in choices.items()
        if one.pruning is not None and one.pruning.mask_type == CHANNELS
    }
    if parts.layers is None or not channels:
        return Shrinking()
    cuts, left = parts.layers.cuts, {}
    for name in channels:
        taken = dict(zip(layers, usual(layers, choices, refused, name), strict=True))
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
    """How much more of a layer is left than with its own choice in all layers, by the choices of makers and reader."""
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
