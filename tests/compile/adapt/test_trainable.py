"""Models that are trained as they will be quantized: names, calls, modes, gradients, and what is compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.adapt.trainable_model import WeightQuantizer
from prepbench.objects.compare import sqnr
from prepbench.quantize.weights import WeightScheme
from tests.compile.adapt.models import MODELS, ConvNet, batches, loss, samples, shaped, trained

TARGETS = {"onnxruntime": pb.OnnxRuntimeDeployment(), "openvino": pb.OpenVinoDeployment()}
INT8 = pb.QuantizationSettings()
INT4 = pb.QuantizationSettings(
    weights_num_bits=4, prefer_weights_only_quantization=True, weights_only_quantization_block_size=16
)


_MADE: dict[str, tuple[nn.Module, pb.TrainableModel]] = {}


def prepared_of(model: nn.Module, target: str = "onnxruntime", settings: Any = INT8, **keywords: Any) -> Any:
    """A copy of a prepared model that nothing has trained: the same one is made only once, which takes seconds."""
    key = f"{id(model)} {target} {settings} {keywords}"  # the model is kept beside, so no other one gets its id
    if key not in _MADE:
        made = pb.trainable(
            model,
            calibration_inputs=samples(model),
            deployment_settings=TARGETS[target],
            quantization_settings=settings,
            **keywords,
        )
        _MADE[key] = model, made
    return copy.deepcopy(_MADE[key][1])


def some_steps(prepared: nn.Module, model: nn.Module, count: int = 5) -> None:
    optimizer = torch.optim.Adam(prepared.parameters(), 1e-3)
    prepared.train()
    for x, y in batches(model)[:count]:
        optimizer.zero_grad()
        loss(prepared(x), y).backward()
        optimizer.step()
    prepared.eval()


class Halved(nn.Module):
    """Ends in the sum of two convolutions, as a block that halves its image does."""

    def __init__(self, *, is_activated: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.branch = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(16, 32, 1, stride=2)
        self.is_activated = is_activated

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = self.branch(x) + self.shortcut(x)
        return x.relu() if self.is_activated else x


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_activated", [True, False])
def test_sums_of_two_convolutions_are_rounded_where_the_kernel_rounds(target: str, is_activated: bool) -> None:
    torch.manual_seed(0)
    model = Halved(is_activated=is_activated).eval()
    given = [torch.randn(4, 3, 16, 16), torch.randn(2, 3, 16, 16)]
    prepared = pb.trainable(
        model, calibration_inputs=given, deployment_settings=TARGETS[target], quantization_settings=INT8
    )
    prepared.eval()
    compiled = pb.compile_model(prepared)
    with torch.no_grad():
        assert min(sqnr(prepared(x), compiled(x)) for x in given) > 45
        assert sqnr(model(given[0]), prepared(given[0])) < 60, "something is rounded"


@pytest.mark.parametrize(  # every pair of a kind, a target and bits
    ("kind", "target", "bits"),
    [
        ("conv", "onnxruntime", "int8"),
        ("conv", "openvino", "int4"),
        ("transformer", "onnxruntime", "int4"),
        ("transformer", "openvino", "int8"),
        ("lstm", "onnxruntime", "int8"),
        ("lstm", "openvino", "int4"),
    ],
)
def test_a_compile_makes_the_integers_of_the_trained_model(kind: str, target: str, bits: str) -> None:
    model = trained(kind)
    before = copy.deepcopy(model.state_dict())
    prepared = prepared_of(model, target, INT8 if bits == "int8" else INT4)
    some_steps(prepared, model)
    compiled = pb.compile_model(prepared)
    x = samples(model)[0][:7]
    with torch.no_grad():
        assert sqnr(prepared(x), compiled(x)) >= 40
        assert sqnr(model(x), prepared(x)) < 60, "something is rounded"
    assert any(row.quantized and row.weights_bits == (8 if bits == "int8" else 4) for row in compiled.report.layers)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} of the user's model was trained"


@pytest.mark.parametrize("kind", MODELS)
def test_names_calls_and_gradients_are_those_of_the_original(kind: str) -> None:
    model = trained(kind)
    prepared = prepared_of(model)
    assert prepared.notes == ()
    assert list(prepared.state_dict()) == list(model.state_dict())
    assert all(isinstance(getattr(prepared, name), type(child)) for name, child in model.named_children())
    assert [name for name, _ in prepared.named_parameters()] == [name for name, _ in model.named_parameters()]
    prepared.train()
    x, y = batches(model)[0]
    loss(prepared(x), y).backward()
    without = [name for name, p in prepared.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert without == []
    other = MODELS[kind]()
    other.load_state_dict(prepared.state_dict())
    with torch.no_grad():
        assert type(prepared.eval()(x)) is type(model(x))
        assert sqnr(other.eval()(x), prepared(x)) > 15


def test_training_mode_is_that_of_the_original() -> None:
    model = copy.deepcopy(trained("conv")).train()
    prepared = prepared_of(model).train()
    x = batches(model)[0][0]
    with torch.no_grad():
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        got = prepared(x)
        assert sqnr(expected, got) > 20, "dropout and statistics of the batch"
        assert not torch.equal(prepared(x), got)
    now, then = prepared.state_dict(), model.state_dict()
    assert int(now["stem_norm.num_batches_tracked"]) == int(then["stem_norm.num_batches_tracked"]) + 1
    assert sqnr(then["stem_norm.running_mean"], now["stem_norm.running_mean"]) > 20


def test_evaluation_equals_a_compile_before_training() -> None:
    model = trained("conv")
    nearest = pb.QuantizationSettings(weights_algorithm="nearest")
    options = pb.CompileOptions(bias_correction=False, keep_ruined_layers_in_float=False)
    arguments = {"calibration_inputs": samples(model), "deployment_settings": TARGETS["onnxruntime"]}
    compiled = pb.compile_model(model, quantization_settings=nearest, compile_options=options, **arguments)
    prepared = prepared_of(model, settings=nearest)
    x = samples(model)[0]
    with torch.no_grad():
        assert sqnr(compiled(x), prepared(x)) >= 40
    for before, after in zip(compiled.report.layers, pb.compile_model(prepared).report.layers, strict=True):
        assert after.fqn == before.fqn
        assert after.input_range == pytest.approx(before.input_range)


def test_models_that_are_not_pretrained_learn_their_ranges() -> None:
    model = ConvNet()
    prepared = pb.trainable(
        model,
        tracing_inputs=samples(model),
        deployment_settings=TARGETS["onnxruntime"],
        quantization_settings=INT8,
        is_model_pretrained=False,
    )
    with pytest.raises(pb.PrepbenchError, match="not learned yet"):
        pb.compile_model(prepared)
    with pytest.raises(pb.PrepbenchError, match="nothing to learn from"):
        pb.recover(prepared, samples(model), steps=1)
    some_steps(prepared, model, 8)
    x = shaped(model, batches(model)[0][0])
    with torch.no_grad():
        assert sqnr(prepared(x), pb.compile_model(prepared)(x)) >= 40


def test_a_model_may_be_moved_loaded_and_copied() -> None:
    model = trained("conv")
    prepared = prepared_of(model)
    x = samples(model)[0]
    zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    other = copy.deepcopy(prepared)
    other.load_state_dict(zeros)
    with torch.no_grad():
        assert not bool(other(x).any())
        assert bool(prepared(x).any())
        assert torch.equal(prepared.to("cpu", torch.float64).float()(x), prepared(x))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"compile_options": pb.CompileOptions(smooth_quant=True)}, "smooth_quant"),
        ({"lora_settings": 3}, "LoraSettings"),
        ({"is_model_pretrained": "no"}, "True or False"),
        ({"deployment_settings": None}, "deployment_settings"),
    ],
)
def test_bad_arguments_are_named(keywords: dict[str, Any], message: str) -> None:
    given = {"calibration_inputs": samples(trained("conv")), "deployment_settings": TARGETS["onnxruntime"], **keywords}
    with pytest.raises(pb.PrepbenchError, match=message):
        pb.trainable(trained("conv"), quantization_settings=INT8, **given)


def test_a_trained_model_refuses_what_was_settled() -> None:
    prepared = prepared_of(trained("conv"))
    with pytest.raises(pb.PrepbenchError, match="quantization_settings"):
        pb.compile_model(prepared, quantization_settings=INT8)
    with pytest.raises(pb.PrepbenchError, match="trained for ONNX Runtime"):
        pb.compile_model(prepared, deployment_settings=pb.OpenVinoDeployment())
    with pytest.raises(pb.PrepbenchError, match=r"nested differently|must be"):
        prepared(torch.zeros(2, 3))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_integers_of_a_compile_are_those_that_training_rounds_to(bits: int, per_channel: bool) -> None:
    """The largest number of a row lies halfway between two integers, where the last bit of a division decides."""
    torch.manual_seed(0)
    settings = pb.QuantizationSettings(
        weights_num_bits=bits, prefer_weights_only_quantization=True, per_channel=per_channel
    )
    quantizer = WeightQuantizer(WeightScheme.of(settings), axis=0).eval()
    for _ in range(20):
        weight = torch.randn(50, 9)
        rows = quantizer.rows(weight)
        zeros = rows.zero_point[:, None].float()
        assert torch.equal(
            (rows.integers.float() - zeros) * rows.scale[:, None], quantizer(weight).reshape(rows.integers.shape)
        )


@pytest.mark.parametrize("seed", range(3))
def test_norms_are_folded_to_the_last_bit_as_a_compile_folds_them(seed: int) -> None:
    model = trained("conv")
    prepared = prepared_of(model, "openvino", INT4)
    torch.manual_seed(seed)
    some_steps(prepared, model)
    compiled = pb.compile_model(prepared)
    with torch.no_grad():
        assert sqnr(prepared(samples(model)[0]), compiled(samples(model)[0])) > 90
