"""Removing channels of many kinds of networks: equal to the one in which they are zero, or told why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench._torch_compat.programs import flat_program
from prepbench.adapt.channels.removal import Removal
from prepbench.adapt.channels.walk import channels_of
from prepbench.adapt.prune import Pruned, check_removed, prune
from prepbench.errors import PreparationError
from prepbench.inputs import Sample
from prepbench.settings import LayerPruningSettings, PruningSettings, prunable_layers
from tests.compile.adapt.zoo import BATCH, ZOO, Residual

HALF = PruningSettings(mask_type="channels", amount=0.5)


def pruned(
    name: str, settings: PruningSettings = HALF, rules: dict[str, LayerPruningSettings] | None = None
) -> tuple[nn.Module, Pruned]:
    torch.manual_seed(0)
    model, given, sizes, others = ZOO[name]()
    model = with_statistics(model.double() if given.is_floating_point() else model)
    given, others = (given.double(), [x.double() for x in others]) if given.is_floating_point() else (given, others)
    program = flat_program(torch.export.export(model, (given,), dynamic_shapes=(sizes,), strict=False), ["x"])
    samples = [Sample((x,), {}, place) for place, x in enumerate([given, *others])]
    return model, prune(program, prunable_layers(model, settings, rules), samples, samples)


def with_statistics(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with running statistics as training leaves them."""
    for module in model.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model


# channels that go, of those that the outputs of layers have; the model's own outputs stay
REMOVED = {
    "residual": {"stem": 8, "one.conv1": 8, "one.conv2": 8, "two.conv1": 12, "two.conv2": 12, "two.short": 12},
    "depthwise": {"up": 16, "deep": 16, "squeeze": 4, "excite": 16, "stem": 4, "down": 4, "multiplied": 8},
    "dense": {"first": 2, "layers.0": 4, "layers.1": 4, "layers.2": 4},
    "grouped": {"a": 8, "few": 8, "b": 16, "many": 16},
    "unet": {"down1": 4, "down2": 8, "up": 6, "join": 4},
    "transformer": {"attention.qkv": 48, "torchs": 48, "up": 32, "gate": 24, "value": 24},
    "rotary": {"q": 16, "k": 8, "v": 8, "first": 16, "o": 16},
    "lstm": {"middle": 8},
    "flattened": {"conv": 4, "one": 10},
    "shuffled": {"a": 8, "b": 4},
    "shared": {"first": 8, "twice": 8},
}


@pytest.mark.parametrize("name", ZOO)
def test_half_of_the_channels(name: str) -> None:
    _, made = pruned(name)  # which compares the outputs
    assert {row.fqn: row.removed_channels for row in made.layers if row.removed_channels} == REMOVED[name]


@pytest.mark.parametrize(
    ("name", "layer", "why"),
    [
        ("transformer", "down", "layer_norm in n"),
        ("lstm", "before", "lstm in lstm is an operator without a rule for channels"),
        ("shuffled", "c", "sort in the model mixes all of them"),
        ("residual", "head", "the model's output has them"),
    ],
)
def test_why_channels_stay(name: str, layer: str, why: str) -> None:
    _, made = pruned(name)
    (row,) = (row for row in made.layers if row.fqn == layer)
    assert row.removed_channels == 0
    assert why in row.reason


def test_scores_by_activations_and_thresholds_change_what_goes() -> None:
    _, plain = pruned("residual")
    _, seen = pruned("residual", PruningSettings(mask_type="channels", score="activations"))
    assert [row.removed_channels for row in plain.layers] == [row.removed_channels for row in seen.layers]
    assert not torch.equal(plain.program.state_dict["two.conv1.weight"], seen.program.state_dict["two.conv1.weight"])
    _, gentle = pruned("residual", PruningSettings(mask_type="channels", pruning_sensitivity_threshold=0.1))
    removed = sum(row.removed_channels for row in gentle.layers)
    assert 0 < removed < sum(row.removed_channels for row in plain.layers)


def test_rules_decide_for_channels_that_layers_share() -> None:
    rules = {"two.short": LayerPruningSettings(skip_pruning=True), "one.conv1": LayerPruningSettings(amount=0.25)}
    _, made = pruned("residual", rules=rules)
    rows = {row.fqn: row for row in made.layers}
    assert rows["one.conv1"].removed_channels == 4
    assert rows["two.conv1"].removed_channels == 12
    assert rows["two.conv2"].removed_channels == 0
    assert "two.short" in rows["two.conv2"].reason


def test_a_wrong_removal_is_noticed() -> None:
    torch.manual_seed(0)
    model = with_statistics(Residual())
    x = torch.randn(2, 3, 8, 8)
    program = flat_program(torch.export.export(model, (x,), dynamic_shapes=(BATCH,)), ["x"])
    channels = channels_of(program)
    numbers = channels.classes.of(torch.arange(len(channels.classes))).numpy()
    free = [number for number in sorted(set(numbers.tolist())) if not channels.classes.why_kept(number)]
    one, other = (Removal(channels, numbers == number) for number in (free[0], free[1]))
    check_removed(one.zeroed(), one.program(), [Sample((x,), {}, 0)])
    with pytest.raises(PreparationError, match="does not compute"):
        check_removed(one.zeroed(), other.program(), [Sample((x,), {}, 0)])


def test_the_model_keeps_its_weights() -> None:
    model, made = pruned("residual")
    assert model.get_parameter("stem.weight").shape == (16, 3, 3, 3)
    assert made.program.state_dict["stem.weight"].shape == (8, 3, 3, 3)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        result: torch.Tensor = self.down(self.up(x).relu())
        return result


def test_what_was_pruned_as_a_graph_compiles_again() -> None:
    samples = [torch.randn(n, n + 3, 16) for n in (2, 3)]
    smaller = pb.prune(Attends().eval(), samples, pb.PruningSettings(mask_type="channels", amount=0.5)).model
    compiled = pb.compile_model(smaller, tracing_inputs=samples, discard_input_model=False)
    torch.testing.assert_close(compiled(samples[1]), smaller(samples[1]), atol=1e-4, rtol=1e-4)
