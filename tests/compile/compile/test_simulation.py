"""``Simulation``: a model run in PyTorch as it would be quantized, with any settings for each layer."""

from __future__ import annotations

import dataclasses
import math
import statistics
import threading
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.compile.simulation import Simulation
from prepbench.errors import CalibrationError, InputError, SettingsError
from prepbench.quantize import mixed_graph
from prepbench.quantize.calibration import learn
from prepbench.search.noise import noise_of

INT8 = pb.QuantizationSettings()
WEIGHTS = pb.QuantizationSettings(prefer_weights_only_quantization=True)
FOUR = pb.QuantizationSettings(weights_num_bits=4, prefer_weights_only_quantization=True)
IN_BLOCKS = pb.QuantizationSettings(
    weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=16
)
AS_THEY_ARE = pb.CompileOptions(keep_ruined_layers_in_float=False)


class Residual(nn.Module):
    """Two convolutions whose results are added, a depthwise one with a point-wise one, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.two = nn.Conv2d(16, 16, 3, padding=1)
        self.wide = nn.Conv2d(16, 16, 3, groups=16)
        self.point = nn.Conv2d(16, 16, 1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = torch.relu(self.norm(self.one(x)))
        x = torch.relu(x + self.two(x))
        return {"logits": self.head(self.point(torch.relu(self.wide(x))).mean((2, 3)))}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = Residual().train()
        made(torch.randn(32, 3, 8, 8))
        return made.eval()


@pytest.fixture(scope="module")
def samples() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(batch, 3, 8, 8, generator=generator) for batch in (4, 3, 5)]


@pytest.fixture(scope="module")
def simulation(model: nn.Module, samples: list[torch.Tensor]) -> Simulation:
    return Simulation.of(model, samples)


def rules_of(mixture: dict[str, Any]) -> dict[str, Any]:
    return {
        fqn: pb.LayerQuantizationSettings(skip_quantization=True)
        if settings is None
        else pb.LayerQuantizationSettings(
            weights_num_bits=settings.weights_num_bits,
            prefer_weights_only_quantization=settings.prefer_weights_only_quantization,
            weights_only_quantization_block_size=settings.weights_only_quantization_block_size,
        )
        for fqn, settings in mixture.items()
    }


@pytest.mark.parametrize(
    ("deployment", "mixture"),
    [
        (pb.OpenVinoDeployment(), {"one": INT8, "two": INT8, "wide": INT8, "point": INT8, "head": INT8}),
        (pb.EagerDeployment(), {"one": FOUR, "two": INT8, "wide": None, "point": WEIGHTS, "head": IN_BLOCKS}),
        (pb.OnnxRuntimeDeployment(), {"one": INT8, "two": WEIGHTS, "wide": INT8, "point": FOUR, "head": None}),
    ],
)
def test_score_is_that_of_a_compile(
    model: nn.Module, samples: list[torch.Tensor], deployment: Any, mixture: dict[str, Any]
) -> None:
    kept = pb.KeptStages()
    found = Simulation.of(model, samples, deployment_settings=deployment, reuse=kept).score(mixture)
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=deployment,
        quantization_settings=INT8,
        layer_quantization_settings=rules_of(mixture),
        compile_options=AS_THEY_ARE,
        reuse=kept,
    )
    assert "capture" in compiled.report.reused
    assert found.sqnr == pytest.approx(compiled.report.simulated_sqnr, abs=1e-3)


def test_outputs_are_those_of_the_compiled_model(model: nn.Module, samples: list[torch.Tensor]) -> None:
    mixture = {"one": INT8, "two": FOUR, "wide": INT8, "point": INT8, "head": INT8}
    eager = pb.EagerDeployment()
    [found] = Simulation.of(model, samples, deployment_settings=eager).outputs(mixture, [samples[1]])
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=eager,
        quantization_settings=INT8,
        layer_quantization_settings=rules_of(mixture),
        compile_options=AS_THEY_ARE,
    )
    assert found.keys() == {"logits"}
    assert pb.metrics.sqnr(found, compiled(samples[1])) > 40


def test_layers_in_execution_order_with_what_they_need(simulation: Simulation) -> None:
    assert simulation.layers == ("one", "two", "wide", "point", "head")
    assert simulation.types["head"] == "Linear"
    assert simulation.parameters["head"] == 16 * 5 + 5
    assert simulation.multiplications == {
        "one": 4 * 8 * 8 * 27 * 16,
        "two": 4 * 8 * 8 * 144 * 16,
        "wide": 4 * 6 * 6 * 9 * 16,
        "point": 4 * 6 * 6 * 16 * 16,
        "head": 4 * 16 * 5,
    }
    each = 4 * 4 * 16
    assert simulation.neighbours == (
        ("one", "two", each * 8 * 8),
        ("one", "wide", each * 8 * 8),
        ("two", "wide", each * 8 * 8),
        ("wide", "point", each * 6 * 6),
        ("point", "head", each),
    )


def test_bytes_of_weights(simulation: Simulation) -> None:
    assert simulation.weight_bytes("head", None) == 4 * 80
    assert simulation.weight_bytes("head", INT8) == 80 + 4 * 5
    assert simulation.weight_bytes("head", IN_BLOCKS) == 40 + 4 * 5
    assert simulation.weight_bytes("one", FOUR) == 3 * 9 * 16 // 2 + 4 * 16


def test_tied_weights_move_together() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.relu(self.a(x)))

    simulation = Simulation.of(Tied().eval(), [torch.randn(3, 8), torch.randn(4, 8)])
    assert simulation.groups({"a": INT8, "b": INT8}) == (frozenset({"a", "b"}),)


def test_layers_whose_results_are_added_take_what_each_wants(simulation: Simulation) -> None:
    assert simulation.groups({"one": INT8, "two": INT8, "head": INT8}) == ()
    assert simulation.score({"one": INT8}).sqnr != simulation.score({"one": INT8, "two": INT8}).sqnr


def test_a_layer_alone_that_the_target_takes_beside_others_only(simulation: Simulation) -> None:
    assert simulation.score({"wide": INT8}).sqnr == 300  # float, as in a compile
    assert simulation.score({"wide": INT8}, even_alone=True).sqnr < 100
    assert simulation.refusal("wide", INT8) == ""  # the layer behind it reads its integers


def test_refusals() -> None:
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 4)).eval()
    samples = [torch.randint(10, (2, 3)), torch.randint(10, (4, 3))]
    simulation = Simulation.of(model, samples)
    assert simulation.layers == ("0", "1")
    assert "weights alone" in simulation.refusal("0", INT8)
    assert simulation.refusal("0", WEIGHTS) == simulation.refusal("1", INT8) == ""
    assert "4-bit weights with quantized activations" in Simulation.of(
        model, samples, deployment_settings=pb.ExecuTorchDeployment()
    ).refusal("1", pb.QuantizationSettings(weights_num_bits=4))
    with pytest.raises(SettingsError, match=r"'0' cannot be quantized so: an embedding .* Give None"):
        simulation.score({"0": INT8})


def test_noise_of_each_layer_and_candidate(simulation: Simulation) -> None:
    found = simulation.noise({"int8": INT8, "four": dataclasses.replace(FOUR, weights_algorithm="nearest")})
    assert found.keys() == {(fqn, name) for fqn in simulation.layers for name in ("int8", "four")}
    for fqn in simulation.layers:
        assert found[fqn, "four"].decibels < found[fqn, "int8"].decibels


def test_the_estimate_is_close_to_what_one_layer_does(simulation: Simulation) -> None:
    candidates = {"int8": INT8, "weights": WEIGHTS}
    distances = [
        abs(-10 * math.log10(value) - simulation.score({fqn: candidates[name]}, even_alone=True).sqnr)
        for (fqn, name), value in simulation.estimate(candidates).items()
    ]
    assert len(distances) == 10
    assert statistics.median(distances) < 3
    assert max(distances) < 8


def test_a_value_that_is_rounded_for_several_layers_is_one_part(simulation: Simulation) -> None:
    effects = simulation.effects({"int8": INT8})["int8"]
    both = {"wide", "point"}
    between = [value for value in effects.values if value.needed_by == both]
    assert len(between) == 1
    together = effects.alone("wide") + effects.alone("point") - between[0].noise
    simulated = noise_of(simulation.score(dict.fromkeys(both, INT8)))
    assert abs(together - simulated) < abs(effects.alone("wide") + effects.alone("point") - simulated)
    added = [value for value in effects.values if {"one", "two"} <= value.needed_by]
    assert added, "the sum of two layers' results is rounded for both"


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"heat": INT8}, InputError, "no layer 'heat' that this target can quantize. Did you mean 'head'"),
        ({"head": 8}, SettingsError, r"settings\['head'\] must be of type QuantizationSettings, got 8"),
        ({"head": pb.QuantizationSettings(weights_num_bits=[4, 8])}, SettingsError, "names several values"),
        (None, SettingsError, "settings must be of type Mapping"),
    ],
)
def test_bad_settings(simulation: Simulation, settings: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        simulation.score(settings)


def test_samples_of_another_form_are_refused(simulation: Simulation) -> None:
    with pytest.raises(InputError, match=r"x must be a torch\.float32 tensor"):
        list(simulation.outputs({}, [torch.zeros(2, 4, 8, 8)]))


def test_samples_with_nan_are_refused(model: nn.Module) -> None:
    bad = torch.zeros(3, 3, 8, 8)
    bad[0, 0, 0, 0] = torch.nan
    with pytest.raises(CalibrationError, match=r"calibration_inputs\[1\]: x holds 1 NaN"):
        Simulation.of(model, [torch.zeros(2, 3, 8, 8), bad])


def test_the_model_and_random_numbers_stay(model: nn.Module, samples: list[torch.Tensor]) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    torch.manual_seed(5)
    simulation = Simulation.of(model, samples)
    simulation.score({"head": IN_BLOCKS, "one": INT8})
    assert torch.equal(torch.rand(1), torch.manual_seed(5) and torch.rand(1))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval()


def test_a_batch_of_one_and_none(simulation: Simulation) -> None:
    one, none = simulation.outputs({"one": INT8}, [torch.ones(1, 3, 8, 8), torch.ones(0, 3, 8, 8)])
    assert (one["logits"].shape, none["logits"].shape) == ((1, 5), (0, 5))


def test_half_precision_keeps_its_type() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval().bfloat16()
    samples = [torch.randn(batch, 32).bfloat16() for batch in (2, 3)]
    simulation = Simulation.of(model, samples)
    [found] = simulation.outputs({"0": IN_BLOCKS, "2": INT8}, samples[:1])
    assert found.dtype == torch.bfloat16
    assert 10 < simulation.score({"0": IN_BLOCKS, "2": INT8}).sqnr < 60


def test_a_buffer_that_the_model_writes_counts_no_runs() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(1)
            return self.layer(x) * self.seen

    model = Counts().eval()
    simulation = Simulation.of(model, [torch.ones(2, 4), torch.ones(3, 4)])
    first, second = simulation.outputs({}, [torch.ones(2, 4)] * 2)
    assert torch.equal(first, second)
    assert float(model.seen) == 0


def test_several_threads_share_a_simulation(model: nn.Module, samples: list[torch.Tensor]) -> None:
    simulation = Simulation.of(model, samples)
    mixtures = [{"one": INT8}, {"two": FOUR, "head": INT8}, {"wide": WEIGHTS}, {"head": IN_BLOCKS}]
    found: dict[int, float] = {}

    def score(place: int) -> None:
        found[place] = simulation.score(mixtures[place]).sqnr

    threads = [threading.Thread(target=score, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {place: simulation.score(mixture).sqnr for place, mixture in enumerate(mixtures)}


@dataclasses.dataclass
class Steps:
    left: int

    def __call__(self, progress: pb.Progress) -> None:
        self.left -= 1
        if not self.left:
            raise pb.Cancelled("enough")


def test_a_cancelled_score_can_be_repeated(model: nn.Module, samples: list[torch.Tensor]) -> None:
    simulation = Simulation.of(model, samples)
    with pytest.raises(pb.Cancelled):
        simulation.score({"head": INT8, "one": FOUR}, Steps(2))
    fresh = Simulation.of(model, samples)
    assert simulation.score({"head": INT8, "one": FOUR}) == fresh.score({"head": INT8, "one": FOUR})


def test_weights_that_algorithms_change(model: nn.Module, samples: list[torch.Tensor]) -> None:
    options = pb.CompileOptions(cross_layer_equalization=True, keep_ruined_layers_in_float=False)
    mixture = dict.fromkeys(("one", "two", "wide", "point", "head"), INT8)
    eager = pb.EagerDeployment()
    found = Simulation.of(model, samples, deployment_settings=eager, compile_options=options).score(mixture)
    compiled = pb.compile_model(
        model,
        calibration_inputs=samples,
        deployment_settings=eager,
        quantization_settings=INT8,
        compile_options=options,
    )
    assert found.sqnr == pytest.approx(compiled.report.simulated_sqnr, abs=1e-3)


def test_layers_whose_channels_are_equalised_are_those_of_a_compile(
    model: nn.Module, samples: list[torch.Tensor]
) -> None:
    eager, scaled = pb.EagerDeployment(), pb.QuantizationSettings(cross_layer_equalization=True)
    simulation = Simulation.of(model, samples, deployment_settings=eager)
    for mixture in ({"two": scaled}, {"one": INT8, "two": scaled, "wide": scaled}):
        compiled = pb.compile_model(
            model,
            calibration_inputs=samples,
            deployment_settings=eager,
            quantization_settings=INT8,
            layer_quantization_settings={
                fqn: pb.LayerQuantizationSettings(cross_layer_equalization=mixture[fqn].cross_layer_equalization)
                if fqn in mixture
                else pb.LayerQuantizationSettings(skip_quantization=True)
                for fqn in simulation.layers
            },
            compile_options=pb.CompileOptions(keep_ruined_layers_in_float=False),
        )
        assert simulation.score(mixture).sqnr == pytest.approx(compiled.report.simulated_sqnr, abs=1e-3)
        assert simulation.score(mixture) != simulation.score(dict.fromkeys(mixture, INT8))


def test_ranges_of_all_layers_are_learned_in_one_run(
    model: nn.Module, samples: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    monkeypatch.setattr(mixed_graph, "learn", lambda *args: learned.append(len(args[2])) or learn(*args))
    layers = Simulation.of(model, samples).layers
    one_by_one, together = Simulation.of(model, samples), Simulation.of(model, samples)
    scores = [one_by_one.score({fqn: INT8}, even_alone=True) for fqn in layers]
    assert len(learned) == len(layers)
    learned.clear()
    together.learn({"int8": INT8, "weights": WEIGHTS})
    assert [together.score({fqn: INT8}, even_alone=True) for fqn in layers] == scores
    assert len(learned) == 1
