"""Which rule decides for which layer, and the errors for rules that match nothing."""

from __future__ import annotations

import pytest
from torch import nn

from prepbench.errors import SettingsError
from prepbench.settings import (
    LayerQuantizationSettings,
    LayerRules,
    QuantizationSettings,
    explain_settings,
    quantizable_layers,
)

SKIP = LayerQuantizationSettings(skip_quantization=True)
PER_TENSOR = LayerQuantizationSettings(per_channel=False)
WEIGHTS = LayerQuantizationSettings(prefer_weights_only_quantization=True)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(4)
        self.mlp = nn.Linear(4, 4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.stem = nn.Conv1d(4, 4, 1)
        self.encoder = nn.ModuleList([Block(), Block()])
        self.classifier = nn.Linear(4, 2)


def rules_of(rules: LayerRules) -> dict[str, str]:
    return {row.fqn: row.rule for row in explain_settings(Model(), QuantizationSettings(), rules)}


def test_layers_are_those_with_a_weight_matrix() -> None:
    assert quantizable_layers(Model()) == [
        "stem",
        "encoder.0.attention.query",
        "encoder.0.attention.key",
        "encoder.0.mlp",
        "encoder.1.attention.query",
        "encoder.1.attention.key",
        "encoder.1.mlp",
        "classifier",
    ]


def test_without_rules_the_global_settings_decide() -> None:
    assert set(rules_of({}).values()) == {"global"}


def test_the_name_of_a_module_rules_what_is_inside_and_the_nearest_wins() -> None:
    rules = rules_of({"encoder.0.attention.key": PER_TENSOR, "encoder": SKIP, "encoder.0": WEIGHTS})
    assert rules["encoder.0.attention.key"] == "encoder.0.attention.key"
    assert rules["encoder.0.mlp"] == "encoder.0"
    assert rules["encoder.1.mlp"] == "encoder"
    assert rules["classifier"] == "global"


def test_a_name_is_no_prefix_of_another_name() -> None:
    net = nn.ModuleDict({"conv1": nn.Linear(2, 2), "conv10": nn.Linear(2, 2)})
    rows = explain_settings(net, QuantizationSettings(), {"conv1": SKIP})
    assert [row.rule for row in rows] == ["conv1", "global"]


def test_a_glob_matches_a_module_and_what_is_inside() -> None:
    rules = rules_of({"encoder.*.attention": SKIP})
    assert [fqn for fqn, rule in rules.items() if rule != "global"] == [
        f"encoder.{i}.attention.{name}" for i in (0, 1) for name in ("query", "key")
    ]


def test_a_regular_expression_must_match_the_whole_name() -> None:
    rules = rules_of({r"re:.*\.(query|mlp)": SKIP})
    assert [fqn for fqn, rule in rules.items() if rule != "global"] == [
        "encoder.0.attention.query",
        "encoder.0.mlp",
        "encoder.1.attention.query",
        "encoder.1.mlp",
    ]
    with pytest.raises(SettingsError, match="matches no module"):
        rules_of({"re:query": SKIP})


def test_of_patterns_the_last_wins_whatever_their_kind() -> None:
    assert rules_of({"encoder.*": SKIP, r"re:encoder\.0\..*": WEIGHTS})["encoder.0.mlp"] == r"re:encoder\.0\..*"
    assert rules_of({r"re:encoder\.0\..*": WEIGHTS, "encoder.*": SKIP})["encoder.0.mlp"] == "encoder.*"


def test_names_win_over_patterns_and_patterns_over_types() -> None:
    rules = rules_of({"classifier": WEIGHTS, "c*": PER_TENSOR, "Linear": SKIP, "*.mlp": PER_TENSOR})
    assert rules["classifier"] == "classifier"
    assert rules["encoder.0.mlp"] == "*.mlp"
    assert rules["encoder.0.attention.query"] == "Linear"
    assert rules["stem"] == "global"


def test_the_type_of_a_module_around_rules_what_is_inside() -> None:
    rules = rules_of({"Attention": SKIP})
    assert rules["encoder.1.attention.query"] == "Attention"
    assert rules["encoder.1.mlp"] == "global"


def test_the_type_of_the_layer_itself_wins_over_the_type_of_a_module_around_it() -> None:
    for rules in ({"Linear": PER_TENSOR, "Block": SKIP}, {"Block": SKIP, "Linear": PER_TENSOR}):
        assert rules_of(rules)["encoder.0.mlp"] == "Linear"


def test_rows_carry_what_applies() -> None:
    rows = {
        row.fqn: row for row in explain_settings(Model(), QuantizationSettings(), {"encoder": SKIP, "stem": WEIGHTS})
    }
    assert rows["encoder.0.mlp"].settings is None
    assert rows["stem"].settings == QuantizationSettings(prefer_weights_only_quantization=True)
    assert rows["stem"].type == "Conv1d"
    assert rows["classifier"].settings == QuantizationSettings()


@pytest.mark.parametrize(
    "key, nearest",
    [("classifer", "classifier"), ("encoder.0.atention", "encoder.0.attention"), ("Linaer", "Linear")],
)
def test_a_key_that_matches_nothing_is_an_error_with_the_nearest_names(key: str, nearest: str) -> None:
    with pytest.raises(SettingsError) as caught:
        rules_of({key: SKIP})
    assert f"layer_quantization_settings[{key!r}] matches no module" in str(caught.value)
    assert repr(nearest) in str(caught.value)


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SettingsError, match="matches no module"):
        rules_of({"decoder.*": SKIP})


def test_a_broken_regular_expression_is_an_error_that_says_where() -> None:
    with pytest.raises(SettingsError, match="not a valid regular expression"):
        rules_of({"re:encoder.(": SKIP})


def test_a_value_of_another_type_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"\['classifier'\] must be a LayerQuantizationSettings, got dict"):
        rules_of({"classifier": {"skip_quantization": True}})  # type: ignore[dict-item]


def test_a_shared_layer_is_listed_once() -> None:
    layer = nn.Linear(2, 2)
    assert quantizable_layers(nn.Sequential(layer, nn.ReLU(), layer)) == ["0"]


def test_a_shared_layer_can_be_named_by_either_name() -> None:
    layer = nn.Linear(2, 2)
    (row,) = explain_settings(nn.Sequential(layer, nn.ReLU(), layer), QuantizationSettings(), {"2": SKIP})
    assert row.rule == "2"
    assert row.settings is None


def test_a_root_that_is_itself_a_layer() -> None:
    (row,) = explain_settings(nn.Linear(2, 2), QuantizationSettings(), {"Linear": PER_TENSOR})
    assert row.fqn == ""
    assert row.rule == "Linear"


def test_an_embedding_can_stay_in_float_where_a_rule_for_all_would_take_it() -> None:
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4))
    rules = {"*": LayerQuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True), "0": SKIP}
    rows = {row.fqn: row for row in explain_settings(model, QuantizationSettings(), rules)}
    assert rows["0"].settings is None
    assert rows["1"].settings is not None
    with pytest.raises(SettingsError, match=r"\['0'\] changes nothing"):
        explain_settings(model, QuantizationSettings(), {"0": SKIP})


def test_a_block_size_of_a_rule_needs_a_layer_whose_weights_alone_are_quantized() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
    blocks = LayerQuantizationSettings(weights_only_quantization_block_size=32)
    with pytest.raises(SettingsError, match=r"\['0'\]\.weights_only_quantization_block_size=32 changes nothing"):
        explain_settings(model, QuantizationSettings(), {"0": blocks})
    only = LayerQuantizationSettings(prefer_weights_only_quantization=True)
    with pytest.raises(SettingsError, match="no layer of this rule"):  # another layer does not heed it
        explain_settings(model, QuantizationSettings(), {"0": blocks, "1": only})
    rows = explain_settings(model, QuantizationSettings(prefer_weights_only_quantization=True), {"0": blocks})
    assert [row.settings.weights_only_quantization_block_size for row in rows] == [32, 0]
