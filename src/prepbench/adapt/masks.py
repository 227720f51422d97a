"""Masks: which single weights become zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils import prune

from prepbench.adapt.layer_uses import Use, input_powers, noises, uses_of
from prepbench.inputs import Sample
from prepbench.settings.explain import PrunableLayer
from prepbench.settings.pruning import CHANNELS, PruningSettings

STEPS = 8


@dataclass(frozen=True)
class MaskedLayer:
    """The mask of one layer's weights.

    Attributes:
        fqn: the layer.
        masks: ones for weights that stay, by name in the program; empty where nothing is pruned.
        why: the reason if less than the settings ask for is removed.
    """

    fqn: str
    masks: dict[str, torch.Tensor]
    why: str = ""


def masked_layers(
    program: torch.export.ExportedProgram, layers: Sequence[PrunableLayer], samples: Sequence[Sample]
) -> list[MaskedLayer]:
    """Return the layers whose settings prune single weights, in any pattern but whole channels.

    Args:
        program: a flat program.
        layers: the decision for each layer.
        samples: calls of it, for scores and thresholds that need them.
    """
    rows = [row for row in layers if row.settings is not None and row.settings.mask_type != CHANNELS]
    by_weight: dict[str, list[Use]] = {}
    for use in uses_of(program):
        by_weight.setdefault(program.graph_signature.inputs_to_parameters[use.weight.name], []).append(use)
    watched = [
        use
        for row in rows
        if row.settings is not None and row.settings.score == "activations"
        for name in _weights(program, row.fqn)
        for use in by_weight.get(name, [])
    ]
    powers = input_powers(program, samples, watched) if watched else {}
    found = []
    for row in rows:
        for name in _weights(program, row.fqn):
            uses = by_weight.get(name, [])
            power = sum((powers[use.node] for use in uses if use.node in powers), torch.zeros(()))
            found.append(_masked(program, row, name, uses, power if power.ndim else None, samples))
    return found


def _weights(program: torch.export.ExportedProgram, fqn: str) -> list[str]:
    """Return the weights of a layer, by name in the program; a shared weight has several names."""
    prefix = f"{fqn}." if fqn else ""
    names = (name for name in program.graph_signature.parameters if name.startswith(prefix))
    return [
        name
        for name in names
        if "." not in (last := name[len(prefix) :])
        and (last.startswith("weight") or last.endswith("_weight"))
        and program.state_dict[name].ndim > 1
    ]


def _masked(
    program: torch.export.ExportedProgram,
    row: PrunableLayer,
    name: str,
    uses: Sequence[Use],
    power: torch.Tensor | None,
    samples: Sequence[Sample],
) -> MaskedLayer:
    settings, weight = row.settings, program.state_dict[name].detach()
    assert settings is not None
    if not weight.isfinite().all():
        return MaskedLayer(row.fqn, {}, "its weights hold NaN or infinite numbers, which no score orders")
    inputs, groups = (uses[0].inputs, uses[0].groups) if uses else (weight.ndim - 1 if weight.ndim == 2 else 1, 1)
    if settings.pattern is not None and weight.shape[inputs] % settings.pattern[1]:
        count, group = weight.shape[inputs], settings.pattern[1]
        why = f"its {count} inputs cannot be divided by {group} (mask_type {settings.mask_type!r})"
        return MaskedLayer(row.fqn, {}, why)
    scores = weight.abs().float()
    why = ""
    if settings.score == "activations":
        if power is None or groups != 1:
            why = "scored by magnitude, because it was not seen with one input for each column"
        else:
            shape = [-1 if dim == inputs else 1 for dim in range(weight.ndim)]
            scores = scores * power.sqrt().float().to(weight.device).reshape(shape)
    parts = (
        range(1, STEPS + 1)
        if settings.pattern is None and settings.pruning_sensitivity_threshold is not None
        else [STEPS]
    )
    masks = [_mask(scores, inputs, settings, part / STEPS) for part in parts]
    if settings.pruning_sensitivity_threshold is None:
        return MaskedLayer(row.fqn, {name: masks[-1]}, why)
    if not uses:
        return MaskedLayer(
            row.fqn, {}, "the noise of pruning it cannot be measured, because no product with it was found"
        )
    ratios = [0.0] * len(masks)
    for use in uses:
        changed = {use.node: [weight * mask for mask in masks]}
        ratios = [max(pair) for pair in zip(ratios, noises(program, samples, [use], changed)[use.node], strict=True)]
    allowed = [
        mask for mask, ratio in zip(masks, ratios, strict=True) if ratio <= settings.pruning_sensitivity_threshold
    ]
    if not allowed:
        return MaskedLayer(row.fqn, {}, f"pruning adds noise of {ratios[0]:.3g}, above the threshold")
    return MaskedLayer(row.fqn, {name: allowed[-1]}, why)


def _mask(scores: torch.Tensor, inputs: int, settings: PruningSettings, part: float) -> torch.Tensor:
    """Return ones for weights that stay, in the shape of the weight."""
    if settings.pattern is not None:
        kept, group = settings.pattern
        moved = scores.movedim(inputs, -1)
        groups = moved.reshape(*moved.shape[:-1], -1, group)
        best = groups.topk(kept, -1).indices
        return torch.zeros_like(groups).scatter_(-1, best, 1.0).reshape(moved.shape).movedim(-1, inputs)
    count = part * settings.share
    if settings.score == "activations":  # output by output, as Sun et al., "A Simple and Effective Pruning
        # Approach for Large Language Models", 2023, found best
        outputs = 1 - inputs if inputs < 2 else 0
        rows = scores.movedim(outputs, 0)
        flat = rows.reshape(len(rows), -1)
        gone = flat.argsort(dim=1, stable=True)[:, : round(count * flat.shape[1])]
        return torch.ones_like(flat).scatter_(1, gone, 0.0).reshape(rows.shape).movedim(0, outputs)
    method = prune.L1Unstructured(round(count * scores.numel()))
    scores = scores.contiguous()
    return method.compute_mask(scores, torch.ones_like(scores))  # type: ignore[no-any-return]
