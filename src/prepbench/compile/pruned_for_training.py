"""Pruning what is to be trained: a model of the user's own class, and where its weights stay zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from prepbench.compile.pruned_model import PrunedModel, pruned_model
from prepbench.errors import SettingsError
from prepbench.inputs import Sample
from prepbench.jobs import ProgressCallback
from prepbench.settings import LayerPruningSettings, PruningSettings, prunable_layers


def pruned_in_its_class(
    model: nn.Module,
    settings: PruningSettings,
    rules: Mapping[str, LayerPruningSettings] | None,
    samples: list[Sample],
    calibration: Sequence[Sample],
    progress: ProgressCallback,
) -> PrunedModel:
    """The model, pruned, in its own class.

    Raises:
        SettingsError: its code does not take fewer channels, or nothing would be pruned.
        PreparationError: the smaller model does not compute what it should.
    """
    found = pruned_model(model, prunable_layers(model, settings, rules), samples, calibration, progress)
    if not found.why_graph:
        return found
    names = ", ".join(row.fqn for row in found.layers if row.removed_channels or row.zeros)
    raise SettingsError(
        "pruning_settings remove what the model's own code counts, so a model of its class cannot be trained without "
        f"it: {found.why_graph} Pruned were {names}. Leave the layers whose channels it counts (heads of attention) as "
        'they are: layer_pruning_settings={"...": pb.LayerPruningSettings(skip_pruning=True)}.'
    )


def zeros_of(own: nn.Module, pruned: PrunedModel) -> dict[int, torch.Tensor]:
    """Where weights are zero, by the parameter (layers may share it, and adapters give it another name)."""
    parameters = dict(own.named_parameters(remove_duplicate=False))
    return {id(parameters[name]): mask == 0 for name, mask in pruned.masks.items()}
