"""torch.compile with the backend: the same as compile_model, whatever way dynamo cuts the model."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.errors import InputError, SettingsError, TargetError
from prepbench.objects.compare import sqnr
from tests.compile.compile.models import SmallNet, images, unchanged


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def shared_net() -> nn.Module:
    torch.manual_seed(0)
    return SmallNet().eval()


def optimized(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="prepbench", options=options)


def quantized(samples: list[Any], **further: Any) -> dict[str, Any]:
    """Options for int8, by default for the target that compiles at once."""
    return {
        "tracing_inputs": samples,
        "calibration_inputs": samples,
        "deployment_settings": pb.EagerDeployment(),
        "quantization_settings": pb.QuantizationSettings(),
        **further,
    }


EAGER = {"deployment_settings": pb.EagerDeployment()}
INT8 = quantized([images(8), images(16)])
ONNX = {**INT8, "deployment_settings": pb.OnnxRuntimeDeployment()}


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"tracing_inputs": [images(1), images(2)], **EAGER}, ONNX], ids=["float", "int8"])
def test_a_conv_net_gives_the_same_bits_at_every_batch(shared_net: nn.Module, options: dict[str, Any]) -> None:
    right, compiled = pb.compile_model(shared_net, **options), optimized(shared_net, **options)
    for batch in (1, 7, 4):
        assert_same(compiled(images(batch)), right(images(batch)))


@pytest.mark.parametrize(
    "rules", [{"head": True, "re:body\\.\\d": False}, {"Conv2d": False, "he*": True}], ids=["fqn", "type"]
)
def test_rules_for_layers_have_their_effect(shared_net: nn.Module, rules: dict[str, bool]) -> None:
    settings = {
        key: pb.LayerQuantizationSettings(skip_quantization=True)
        if skip
        else pb.LayerQuantizationSettings(per_channel=False)
        for key, skip in rules.items()
    }
    base = {**INT8, "is_model_pretrained": False}
    options = {**base, "layer_quantization_settings": settings}
    right = pb.compile_model(shared_net, **options)(images(5))
    assert_same(optimized(shared_net, **options)(images(5)), right)
    assert not torch.equal(right, pb.compile_model(shared_net, **base)(images(5)))


class Nested(nn.Module):
    """Takes a dict, keywords, a flag and a tensor that it does not use; returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(
        self, batch: dict[str, torch.Tensor], *, bias: torch.Tensor, scale: float = 1.0, unused: Any = None
    ) -> dict[str, Any]:
        x = self.embed(batch["ids"]) + bias
        for layer in self.layers:
            x = torch.relu(layer(x)) * scale
        return {"x": x, "pooled": [x.mean(1), x.shape[0]], "ids": batch["ids"]}


def nested_sample(batch: int, length: int) -> tuple[Any, ...]:
    ids = torch.arange(batch * length).reshape(batch, length) % 10
    return {"ids": ids}, {"bias": torch.ones(8), "unused": torch.zeros(batch)}


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_dict_keywords_and_an_unused_tensor(dynamic: bool | None) -> None:
    torch.manual_seed(0)
    model = Nested().eval()
    options = quantized([nested_sample(2, 3), nested_sample(4, 5)])
    right = pb.compile_model(model, **options)
    compiled = torch.compile(model, backend="prepbench", options=options, dynamic=dynamic)
    for sizes in [(2, 3), (3, 6), (5, 4)]:
        args, kwargs = nested_sample(*sizes)
        result, expected = compiled(args, **kwargs), right(args, **kwargs)
        assert result.keys() == {"x", "pooled", "ids"}
        assert_same([result["x"], result["pooled"][0]], [expected["x"], expected["pooled"][0]])
        assert result["pooled"][1] == sizes[0]
        assert result["ids"] is args["ids"]
    assert_same(compiled(batch=args, scale=1.0, **kwargs)["x"], expected["x"])
    with pytest.raises(InputError, match="scale"):
        compiled(args, scale=2.0, **kwargs)


def test_numbers_and_unused_tensors_without_samples() -> None:
    torch.manual_seed(0)
    model = Nested().eval()
    compiled = torch.compile(model, backend="prepbench", dynamic=True, options=EAGER)
    for scale in (2.0, 3.0, 2.0):
        for sizes in [(2, 3), (3, 6)]:
            args, kwargs = nested_sample(*sizes)
            with torch.no_grad():
                torch.testing.assert_close(compiled(args, scale=scale, **kwargs), model(args, scale=scale, **kwargs))


@pytest.mark.stress
def test_a_model_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.BertForMaskedLM(config).eval()
    samples = [
        {"input_ids": torch.arange(n * 6).reshape(n, 6) % 50, "attention_mask": torch.ones(n, 6, dtype=torch.long)}
        for n in (2, 3)
    ]
    options = {"tracing_inputs": samples, **EAGER}
    right, compiled = pb.compile_model(model, **options), optimized(model, **options)
    for sample in [*samples, {name: value[:1] for name, value in samples[0].items()}]:
        expected, result = right(**sample), compiled(**sample)
        assert type(result) is type(expected)
        assert_same(result.logits, expected.logits)
    assert_same(compiled(sample["input_ids"], sample["attention_mask"]).logits, expected.logits)


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def infer(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).softmax(-1)


class Inferring(Owner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.infer(x)


def test_a_bound_method_a_function_and_a_compiled_forward() -> None:
    torch.manual_seed(0)
    owner, x = Owner().eval(), torch.randn(6, 4)
    options = quantized([x[:2], x[:4]], is_model_pretrained=False)
    right = pb.compile_model(owner.infer, **options)(x)
    assert_same(optimized(owner.infer, **options)(x), right)

    def function(x: torch.Tensor) -> torch.Tensor:
        return owner.infer(x) + 1

    assert_same(optimized(function, **options)(x), pb.compile_model(function, **options)(x))

    class Decorated(Owner):
        forward = torch.compile(Owner.infer, backend="prepbench", options=options)

    decorated = Decorated().eval()
    decorated.load_state_dict(owner.state_dict())
    assert_same(decorated(x), right)
    own = Inferring().eval()
    own.load_state_dict(owner.state_dict())
    own.compile(backend="prepbench", options=options)
    assert_same(own(x), right)


def test_without_options_it_compiles_in_float_and_recompiles_for_other_inputs() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU()).eval()
    compiled = torch.compile(model, backend="prepbench")
    for x in (torch.randn(2, 12), torch.randn(3, 12), torch.randn(4, 3, 4)):
        torch.testing.assert_close(compiled(x), model(x).detach())
    model.double()
    x = torch.randn(2, 12, dtype=torch.float64)
    torch.testing.assert_close(compiled(x), model(x).detach())


def test_new_weights_are_compiled_anew() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(3, 4)
    compiled = optimized(model, tracing_inputs=iter([x[:2], x]), **EAGER)
    torch.testing.assert_close(compiled(x), model(x).detach())
    torch.testing.assert_close(compiled(x[:1]), model(x[:1]).detach())
    state = {name: value + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    torch.testing.assert_close(compiled(x[:1]), model(x[:1]).detach())
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    torch.testing.assert_close(compiled(x), model(x).detach())
    torch.testing.assert_close(compiled(x[:1]), model(x[:1]).detach())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.settings = {"scale": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.settings["scale"]


@pytest.mark.parametrize("dynamic", [None, True])
def test_what_the_model_reads_may_change(dynamic: bool | None) -> None:
    model, x, compiled_times = Scaled().eval(), torch.randn(6, 4), []
    options: dict[str, Any] = {"tracing_inputs": [x, x[:2]], **EAGER}
    options["progress"] = lambda progress: compiled_times.append(progress.stage == "lower" and progress.done)
    compiled = torch.compile(model, backend="prepbench", options=options, dynamic=dynamic)
    for scale in (1.0, 2.0, 1.0, 2.0):
        model.settings["scale"] = scale
        for batch in (6, 5, 1):
            torch.testing.assert_close(compiled(x[:batch]), model(x[:batch]).detach())
    assert sum(compiled_times) == 2


def test_the_samples_reach_the_model_through_both_functions() -> None:
    torch.manual_seed(0)
    model = Nested().eval()
    batches = [(nested_sample(n, 3), "label") for n in (2, 4)]
    options = {
        "tracing_inputs": batches,
        **EAGER,
        "data_transform_fn": lambda batch: (*batch[0][:-1], {"bias": batch[0][-1]["bias"]}),
        "forward_fn": lambda model, args, kwargs: model(*args, **kwargs, scale=0.5),
    }
    args, kwargs = nested_sample(3, 3)
    pairs = [(*nested_sample(n, 3)[:1], {"bias": torch.ones(8), "scale": 0.5}) for n in (2, 4)]
    right = pb.compile_model(model, tracing_inputs=pairs, **EAGER)(args, bias=kwargs["bias"], scale=0.5)
    compiled = optimized(model, **options)
    assert_same(compiled(args, bias=kwargs["bias"], scale=0.5)["x"], right["x"])
    with pytest.raises(InputError, match="scale"):
        compiled(args, bias=kwargs["bias"])
    options["forward_fn"] = lambda model, args, kwargs: model(*args, **kwargs)["x"]
    with pytest.raises(SettingsError, match="forward_fn does more than call the model"):
        optimized(model, **options)(args, bias=kwargs["bias"])


class Halves(nn.Module):
    """Two graphs, which dynamo makes once for all layers of this class."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        if y.sum() > 1e6:
            return y
        return self.last(y.view(x.shape[0], 8))


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Halves(), Halves()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x)) * x.shape[0]


def test_several_graphs_are_compiled_one_by_one() -> None:
    torch.manual_seed(0)
    model, x = Broken().eval(), torch.randn(16, 4)
    compiled = optimized(model, **EAGER)
    for batch in (3, 5):
        torch.testing.assert_close(compiled(x[:batch]), model(x[:batch]).detach())
    options = quantized([x, x[:8]], is_model_pretrained=False)
    compiled = optimized(model, **options)
    with unchanged(model), pytest.warns(UserWarning, match="several graphs of Broken"):
        results = {3: compiled(x[:3])}
    results |= {batch: compiled(x[:batch]) for batch in (5, 1)}
    for batch, result in results.items():
        assert 20 < sqnr(model(x[:batch]), result) < 80
    rules = {"two.first": pb.LayerQuantizationSettings(skip_quantization=True)}
    compiled = optimized(model, **options, layer_quantization_settings=rules)
    with pytest.warns(UserWarning, match="several graphs"):
        other = compiled(x[:3])
    assert not torch.equal(other, results[3])
    assert 20 < sqnr(model(x[:3]), other) < 80
    with pytest.raises(SettingsError, match="makes several graphs of it"):
        optimized(model, tracing_inputs=[x], dynamic_axes=pb.DynamicAxes.infer([x], model))(x)


def test_training_mode_is_refused_where_it_matters() -> None:
    x = torch.randn(3, 4)
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert plain.training
    torch.testing.assert_close(optimized(plain, **EAGER)(x), plain(x).detach())
    for layer in (nn.Dropout(0.5), nn.BatchNorm1d(4)):
        model = nn.Sequential(nn.Linear(4, 4), layer)
        with unchanged(model), pytest.raises(SettingsError, match=r"training mode.*model.eval\(\)"):
            optimized(model, **EAGER)(x)
        model.eval()
        torch.testing.assert_close(optimized(model, **EAGER)(x), model(x).detach())
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    options = {"tracing_inputs": [x, x[:2]], **EAGER, "skip_eval_set_mode": True}
    compiled = optimized(model, **options)
    assert not torch.equal(compiled(x), compiled(x))


def test_what_the_backend_refuses_comes_as_our_error() -> None:
    net, x = nn.Linear(4, 2).eval(), torch.randn(2, 4)
    samples = {"tracing_inputs": [x], **EAGER}
    rules = {"9": pb.LayerQuantizationSettings()}
    for options, message in [
        (
            {**samples, "quantisation_settings": None},
            r"'quantisation_settings'. Did you mean 'quantization_settings'\?",
        ),
        ({**samples, "is_dry_run": True}, "a dry run gives a report and no model"),
        ({**samples, "quantization_settings": pb.QuantizationSettings()}, "needs calibration_inputs"),
        (quantized([x], layer_quantization_settings=rules), r"\['9'\] matches no module"),
    ]:
        with pytest.raises(SettingsError, match=message):
            optimized(net, **options)(x)
    with pytest.raises(SettingsError, match="mode='max-autotune' is one of Inductor"):
        torch.compile(net, backend="prepbench", mode="max-autotune")(x)
    with pytest.raises(InputError, match=r"input must be a torch.float32 tensor of shape \(2, 4\)"):
        optimized(net, **samples)(torch.randn(3, 4))
    with pytest.raises(TargetError):
        torch.compile(lambda x: torch.special.bessel_j0(x), backend="prepbench")(x)
    assert_same(optimized(net, disable=True)(x), net(x))


def test_other_options_on_the_same_model_and_models_that_die() -> None:
    x = torch.randn(4, 4)
    model = nn.Sequential(nn.Linear(4, 4)).eval()
    one = optimized(model, tracing_inputs=[x[:2], x[:3]], **EAGER)
    two = optimized(model, tracing_inputs=[x[:2], x[:3].clone()], dynamic=False, **EAGER)
    assert one(x).shape == (4, 4)
    with pytest.raises(InputError):
        two(x)
    assert one(x[:3]).shape == (3, 4)
    gone = weakref.ref(model)
    del model, one, two
    import gc

    gc.collect()
    assert gone() is None


def test_the_entry_point_is_found_where_only_torch_is_imported() -> None:
    code = """
import torch
model = torch.nn.Linear(4, 2).eval()
x = torch.ones(3, 4)
torch.testing.assert_close(torch.compile(model, backend="prepbench")(x), model(x).detach())
assert "prepbench" in torch.compiler.list_backends()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
