"""Writing what pruning did to each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from prepbench.adapt.channel_sets import ChannelSet
from prepbench.adapt.layer_uses import uses_of
from prepbench.adapt.masks import MaskedLayer
from prepbench.adapt.report import PrunedLayer
from prepbench.settings.pruned_layers import PrunableLayer
from prepbench.settings.pruning import CHANNELS

Program = torch.export.ExportedProgram


def report_of(
    row: PrunableLayer,
    before: Program,
    after: Program,
    weights: Mapping[str, torch.Tensor],
    sets: Sequence[ChannelSet],
    masked: Sequence[MaskedLayer],
) -> PrunedLayer:
    """The report of one layer of a program that was pruned."""
    own, left = (_own(program, row.fqn) for program in (before, after))
    zeros = sum(_zeros(weights[name], row) for name in left if name in weights)
    whole, stay = (_outputs(program, row.fqn) for program in (before, after))
    kinds = [row.settings.mask_type] if row.settings is not None else []
    is_pruned = zeros > 0 or whole != stay
    return PrunedLayer(
        row.fqn,
        row.type,
        kinds[0] if kinds and is_pruned else "",
        row.rule,
        sum(tensor.numel() for tensor in own.values()),
        sum(tensor.numel() for tensor in left.values()),
        zeros,
        whole,
        whole - stay,
        _reason(row, whole != stay, sets, masked),
    )


def _zeros(weight: torch.Tensor, row: PrunableLayer) -> int:
    if weight.is_meta:  # only planned
        return round(weight.numel() * row.settings.share) if row.settings is not None else 0
    return int((weight == 0).sum())


def _reason(row: PrunableLayer, lost: bool, sets: Sequence[ChannelSet], masked: Sequence[MaskedLayer]) -> str:
    if row.settings is None:
        return f"skipped by rule {row.rule!r}"
    if row.settings.mask_type != CHANNELS:
        return next((each.why for each in masked if each.fqn == row.fqn and each.why), "")
    mine = [each for each in sets if row.fqn in each.layers]
    reasons = [each.why for each in mine if each.why]
    if not mine and not lost:
        return "not called on the tracing inputs, or its channels are not followed"
    return reasons[0] if reasons else "" if lost else "too few channels for this amount"


def _own(program: Program, fqn: str) -> dict[str, torch.Tensor]:
    """The parameters of one layer."""
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in program.graph_signature.parameters if name.startswith(prefix))
    return {name: program.state_dict[name] for name in names if "." not in name[len(prefix) :]}


def _outputs(program: Program, fqn: str) -> int:
    """How many channels the output of a layer has."""
    names = program.graph_signature.inputs_to_parameters
    for use in uses_of(program):
        if names[use.weight.name] in _own(program, fqn):
            weight = program.state_dict[names[use.weight.name]]
            return int(weight.shape[1 - use.inputs]) * (use.groups if use.inputs == 0 else 1)
    return max((len(tensor) for tensor in _own(program, fqn).values() if tensor.ndim > 1), default=0)
