"""Clicks on layers become rules: the last one decides, and there are as few as say it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.bench import layer_rules
from prepbench.bench.layer_rules import LayerRulesOf
from prepbench.bench.state import PRECISIONS
from prepbench.errors import SettingsError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.v_proj = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.v_proj(torch.relu(self.q_proj(x)))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@pytest.fixture
def bench() -> pb.Bench:
    torch.manual_seed(0)
    samples = [torch.randn(2, 4), torch.randn(3, 4)]
    return pb.Bench(Tower().eval(), calibration_inputs=samples)


def _settings(bench: pb.Bench) -> dict[str, pb.QuantizationSettings | None]:
    return {layer.fqn: layer.settings for layer in bench.explained}


def test_a_glob_is_one_rule(bench: pb.Bench) -> None:
    bench.set_precision("layers.*.q_proj", "int4 weights")
    assert list(bench.state.rules) == ["layers.*.q_proj"]
    decided = {layer.fqn: layer.rule for layer in bench.explained}
    assert decided["layers.1.q_proj"] == "layers.*.q_proj"
    assert decided["layers.1.v_proj"] == "global"


@pytest.mark.parametrize(
    ("key", "layers"),
    [
        (r"re:layers\.(0|2)\.q_proj", ["layers.0.q_proj", "layers.2.q_proj"]),
        (r"re:layers\.\d+\.q_proj", ["layers.0.q_proj", "layers.1.q_proj", "layers.2.q_proj"]),
        (r"re:.*(1.q).*", ["layers.1.q_proj"]),
        ("layers.[1-2].v_proj", ["layers.1.v_proj", "layers.2.v_proj"]),
        ("layers.[01]", ["layers.0.q_proj", "layers.0.v_proj", "layers.1.q_proj", "layers.1.v_proj"]),
        ("*.q_proj", ["layers.0.q_proj", "layers.1.q_proj", "layers.2.q_proj"]),
    ],
)
def test_keys_as_the_page_writes_them_are_one_rule_for_their_layers(
    bench: pb.Bench, key: str, layers: list[str]
) -> None:
    bench.set_precision(key, "int4 weights")
    assert list(bench.state.rules) == [key]
    assert [layer.fqn for layer in bench.explained if layer.rule == key] == layers


def test_a_rule_for_all_drops_those_that_it_outdates(bench: pb.Bench) -> None:
    bench.set_precision("layers.0.q_proj", "float32")
    bench.set_precision("layers.*", "int4 weights")
    bench.set_precision("*", "int8 weights")
    assert set(bench.precisions.values()) == {"int8 weights"}
    assert list(bench.state.rules) == ["*"]


def test_what_the_global_settings_say_anyway_needs_no_rule(bench: pb.Bench) -> None:
    bench.set_precision("layers.0.q_proj", "float32")
    bench.set_precision("layers.0.q_proj", "int8")
    assert not bench.state.rules


@pytest.mark.parametrize("seed", range(8))
def test_the_last_click_decides(bench: pb.Bench, seed: int) -> None:
    chance = random.Random(seed)
    layers = list(bench.precisions)
    wanted = dict(bench.precisions)
    patterns = [*layers, "layers.0", "layers.*.q_proj", "re:.*v_proj", "Linear", "*", "layers.1", "Block"]
    for _ in range(12):
        pattern, precision = chance.choice(patterns), chance.choice(PRECISIONS)
        wanted.update(dict.fromkeys(bench.choices.layer_rules.matched(pattern), precision))
        bench.set_precision(pattern, precision)
        assert dict(bench.precisions) == wanted, (pattern, precision, bench.state.rules)


def test_one_setting_changes_and_the_others_stay(bench: pb.Bench) -> None:
    bench.set_precision("layers.*.q_proj", "int4 weights")
    bench.set_layers(["layers.*.q_proj"], "weights_only_quantization_block_size", 32)
    settings = _settings(bench)["layers.2.q_proj"]
    assert settings is not None
    assert (settings.weights_num_bits, settings.weights_only_quantization_block_size) == (4, 32)
    bench.set_layers(["layers.2.q_proj"], "skip_quantization", True)
    assert _settings(bench)["layers.2.q_proj"] is None
    bench.set_layers(["layers.2.q_proj"], "skip_quantization", False)
    assert bench.precisions["layers.2.q_proj"] == "int8"


def test_layers_with_other_settings_keep_them(bench: pb.Bench) -> None:
    bench.set_precision("head", "int4 weights")
    bench.set_layers(["*"], "observer", "mse")
    observers = {settings.observer for settings in _settings(bench).values() if settings is not None}
    assert observers == {"mse"}
    assert bench.precisions["head"] == "int4 weights"
    assert bench.precisions["layers.0.q_proj"] == "int8"
    assert list(bench.state.rules) == ["*", "head"]


def test_a_range_is_not_learned_for_what_stays_in_float(bench: pb.Bench) -> None:
    bench.set_precision("head", "float32")
    bench.set_layers(["*"], "observer", "mse")
    assert bench.precisions["head"] == "float32"
    bench.set_layers(["head"], "weights_num_bits", 8)
    assert bench.precisions["head"] == "int8"


def test_weights_with_a_zero_point_need_activations_in_float(bench: pb.Bench) -> None:
    bench.set_layers(["head"], "weights_symmetric", False)
    assert bench.precisions["head"] == "int8 weights"


def test_rules_can_be_removed(bench: pb.Bench) -> None:
    bench.set_precision("layers.*", "float32")
    bench.clear_rules(["layers.*"])
    assert set(bench.precisions.values()) == {"int8"}
    with pytest.raises(SettingsError, match="no rule 'layers"):
        bench.clear_rules(["layers.*"])


def test_everything_can_stay_in_float(bench: pb.Bench) -> None:
    bench.set_precision("head", "int4 weights")
    bench.set_quantization(None)
    assert set(bench.precisions.values()) == {"float32"}
    assert "quantization" not in bench.code({})
    bench.set_quantization(pb.QuantizationSettings(observer="mse"))
    assert set(bench.precisions.values()) == {"int8"}


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda bench: bench.set_layers(["haed"], "observer", "mse"), "Nearest: head"),
        (lambda bench: bench.set_layers(["head"], "observers", "mse"), "field of QuantizationSettings"),
        (lambda bench: bench.set_layers(["head"], "weights_num_bits", 5), "must be 4 or 8"),
        (lambda bench: bench.set_rule("head", {"weights_num_bits": 4}), "LayerQuantizationSettings"),
        (lambda bench: bench.set_rules([("head", 1)]), "must be a dict"),
        (lambda bench: bench.set_rule("re:(", pb.LayerQuantizationSettings()), "regular expression"),
        (lambda bench: bench.set_quantization("int8"), "QuantizationSettings"),
        (lambda bench: bench.set_targets([]), "is empty"),
        (lambda bench: bench.set_targets(pb.OnnxRuntimeDeployment()), "must be a list"),
        (lambda bench: bench.set_targets([pb.OnnxRuntimeDeployment()] * 2), "twice"),
        (lambda bench: bench.set_leaf("layer", True), "named_modules"),
        (lambda bench: bench.set_leaf("head", 1), "leaf"),
        (lambda bench: bench.select("layer"), "named_modules"),
    ],
)
def test_wrong_choices_say_what_is_right_and_change_nothing(bench: pb.Bench, act: object, words: str) -> None:
    before = bench.state
    with pytest.raises(pb.PrepbenchError, match=words.replace("(", r"\(")):
        act(bench)  # type: ignore[operator]
    assert bench.state is before


def test_a_model_without_layers_to_quantize_says_so() -> None:
    bench = pb.Bench(nn.Sequential(nn.ReLU()).eval(), calibration_inputs=[torch.ones(2, 4), torch.ones(3, 4)])
    with pytest.raises(SettingsError, match="the model has none to quantize") as raised:
        bench.set_precision("*", "int8")
    assert "There are: none" not in str(raised.value)


def test_decisions_are_those_of_the_rules_in_their_order() -> None:
    rules_of, base = LayerRulesOf(Tower()), pb.QuantizationSettings()
    four, eight = (pb.LayerQuantizationSettings(weights_num_bits=bits) for bits in (4, 8))
    last = {"layers.*": eight, "*.q_proj": four}
    for rules, bits in ((last, 4), (dict(reversed(last.items())), 8), (last, 4)):
        by_name = {layer.fqn: layer.settings for layer in rules_of.explained(base, rules)}
        assert by_name["layers.0.q_proj"].weights_num_bits == bits


def test_decisions_do_not_depend_on_what_was_asked_before() -> None:
    shared, bases = LayerRulesOf(Tower()), [pb.QuantizationSettings(weights_num_bits=bits) for bits in (8, 4)]
    four = pb.LayerQuantizationSettings(weights_num_bits=4)
    rules = [{}, {"layers.*": four}, {"head": four}, {"*.q_proj": pb.LayerQuantizationSettings(skip_quantization=True)}]
    asked = [(base, some) for base in bases for some in rules] * 2
    random.Random(0).shuffle(asked)
    for base, some in asked:
        assert shared.explained(base, some) == LayerRulesOf(Tower()).explained(base, some)


def test_a_choice_decides_for_all_layers_no_more_than_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    explain = layer_rules.explain_layers
    monkeypatch.setattr(
        layer_rules, "explain_layers", lambda *call: seen.append(list(call[3].items())) or explain(*call)
    )
    rules_of, base = LayerRulesOf(Tower()), pb.QuantizationSettings()
    rules = rules_of.with_change(base, {}, "layers.1.q_proj", "weights_num_bits", 4)
    rules_of.explained(base, rules)
    assert rules == {"layers.1.q_proj": pb.LayerQuantizationSettings(weights_num_bits=4)}
    assert len(seen) == 2  # before the choice and after it
