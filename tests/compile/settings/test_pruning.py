"""Settings of pruning: what they refuse, how they go to JSON, and which rule decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import SettingsError
from prepbench.settings import prunable_layers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask_type": "4:2"}, 'mask_type must be "1:1"'),
        ({"mask_type": "2:4:8"}, 'mask_type must be "1:1"'),
        ({"mask_type": 24}, 'mask_type must be "1:1"'),
        ({"amount": 1.0}, "amount must be a share between 0 and 1"),
        ({"amount": 0}, "amount must be a share between 0 and 1"),
        ({"amount": True}, "amount must be a share between 0 and 1"),
        ({"mask_type": "2:4", "amount": 0.3}, "amount=0.3 contradicts mask_type='2:4'"),
        ({"pruning_sensitivity_threshold": -1}, "pruning_sensitivity_threshold must be None or a ratio"),
        ({"pruning_sensitivity_threshold": float("nan")}, "pruning_sensitivity_threshold must be None or a ratio"),
        ({"score": "wanda"}, "score must be 'magnitude' or 'activations'"),
    ],
)
@pytest.mark.parametrize("kind", [pb.PruningSettings, pb.LayerPruningSettings])
def test_what_is_refused(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        kind(**fields)


def test_json_and_back() -> None:
    for settings in (pb.PruningSettings(mask_type="2:4"), pb.LayerPruningSettings(amount=0.2)):
        assert type(settings).from_dict(settings.to_dict()) == settings
    with pytest.raises(SettingsError, match="amount would change nothing"):
        pb.LayerPruningSettings(skip_pruning=True, amount=0.2)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Conv1d(8, 8, 1)), nn.Embedding(3, 8))


def test_rules() -> None:
    rules = {
        "1.*": pb.LayerPruningSettings(mask_type="2:4"),
        "Conv1d": pb.LayerPruningSettings(skip_pruning=True),
        "re:.*[.]1": pb.LayerPruningSettings(amount=0.25),
    }
    rows = {row.fqn: row for row in prunable_layers(network(), pb.PruningSettings(), rules)}
    assert [row.rule for row in rows.values()] == ["global", "1.*", "re:.*[.]1"]
    assert rows["1.1"].settings == pb.PruningSettings(amount=0.25)
    explained = pb.explain_settings(
        network(), pb.QuantizationSettings(), pruning_settings=pb.PruningSettings(), layer_pruning_settings=rules
    )
    assert "50% pruned (2:4) by rule '1.*'" in repr(explained)
    assert "50% of the weights pruned" in repr(explained)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"x": pb.LayerPruningSettings()}, r"layer_pruning_settings\['x'\] matches no module"),
        ({"2": pb.LayerPruningSettings()}, r"layer_pruning_settings\['2'\] changes nothing"),
        ({"re:(": pb.LayerPruningSettings()}, "not a valid regular expression"),
        ({"0": pb.PruningSettings()}, "must be a LayerPruningSettings, got PruningSettings"),
        ({"0": pb.LayerPruningSettings(amount=0.1)}, "together with pruning_settings: .*contradicts mask_type='2:4'"),
    ],
)
def test_bad_rules(rules: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        prunable_layers(network(), pb.PruningSettings(mask_type="2:4"), rules)


def test_a_shared_weight_has_one_way() -> None:
    model = network()
    model[1][0].weight = model[0].weight
    with pytest.raises(SettingsError, match="share the weight 'weight', which cannot be pruned in two ways"):
        prunable_layers(model, pb.PruningSettings(), {"0": pb.LayerPruningSettings(amount=0.1)})


def test_what_compile_refuses() -> None:
    model, samples = nn.Linear(4, 2), [torch.ones(1, 4), torch.ones(2, 4)]
    with pytest.raises(SettingsError, match="without pruning_settings, so nothing is pruned"):
        pb.compile_model(model, tracing_inputs=samples, layer_pruning_settings={"": pb.LayerPruningSettings()})
    with pytest.raises(SettingsError, match="need calibration_inputs"):
        pb.compile_model(model, tracing_inputs=samples, pruning_settings=pb.PruningSettings(score="activations"))
    with pytest.raises(SettingsError, match=r"would prune nothing. the model: the model's output has them"):
        pb.compile_model(model, tracing_inputs=samples, pruning_settings=pb.PruningSettings(mask_type="channels"))
