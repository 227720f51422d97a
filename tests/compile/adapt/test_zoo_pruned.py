"""Half of the channels of hard models: equal to zeros in their place, or told at which operator they are tied."""

from __future__ import annotations

import re

import pytest
import torch

import prepbench as pb
from prepbench.errors import SettingsError
from tests.zoo import ZOO

HALF = pb.PruningSettings(mask_type="channels")
# groups with networks in them; others have one layer, or none
NETWORKS = [
    name
    for name, case in ZOO.items()
    if case.make.__module__.rpartition(".")[2] in ("networks", "modules") and not case.leaves and not case.refused
]
REASON = re.compile(r"^the model's output has them|^\w+ in \S.* |^not called on the tracing inputs|^too few channels")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_is_pruned_or_says_where_its_channels_are_tied(name: str) -> None:
    torch.manual_seed(0)
    model, samples = ZOO[name].make(), ZOO[name].samples
    try:
        found = pb.prune(model, samples, HALF)  # raises where it differs from zeros in the place of what goes
    except SettingsError as error:
        told = str(error)
        assert "would prune nothing" in told
        parts = told.partition("would prune nothing. ")[2].partition(". Give another")[0].split("; ")
        reasons = [part.partition(": ")[2] for part in parts]
        assert parts == ["No layer has a weight matrix"] or all(map(REASON.match, reasons)), told
        return
    removed = [row for row in found.layers if row.removed_channels]
    assert removed
    assert all(row.left < row.parameters for row in removed)
    stay = [row for row in found.layers if row.left == row.parameters and row.channels]
    assert all(REASON.match(row.reason) for row in stay), [row.reason for row in stay]
