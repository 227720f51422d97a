"""Adapters: beside quantized layers, saved for PEFT, merged."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import ConvNet, digits, logits, samples, shaped, trained
from tests.compile.adapt.test_trainable import INT4, INT8, prepared_of, some_steps
from tests.turns import in_turns

LORA = pb.LoraSettings(rank=2, alpha=8.0)


@pytest.mark.parametrize("of", in_turns([("conv", "onnxruntime"), ("transformer", "openvino")], 0))
def test_a_quantized_base_with_trained_adapters_compiles(of: tuple[str, str]) -> None:
    kind, target = of
    model = trained(kind)
    prepared = prepared_of(model, target, INT4, lora_settings=LORA)
    frozen = {name: value.clone() for name, value in model.named_parameters()}
    assert {row.fqn for row in prepared.layer_reports} <= set(dict(model.named_modules()))
    some_steps(prepared, model)
    names = dict(prepared.state_dict())
    assert all(torch.equal(names[name], value) for name, value in frozen.items()), "the base is frozen"
    compiled = pb.compile_model(prepared)
    x = samples(model)[0]
    with torch.no_grad():
        assert sqnr(prepared(x), compiled(x)) >= 40
        assert sqnr(model(x), prepared(x)) < 40, "adapters were trained"


def test_peft_loads_the_checkpoint_onto_the_original(tmp_path: Path) -> None:
    import peft

    model = trained("transformer")
    prepared = prepared_of(model, settings=INT8, lora_settings=LORA)
    some_steps(prepared, model)
    folder = prepared.save_adapters(tmp_path / "adapters")
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    loaded = peft.PeftModel.from_pretrained(copy.deepcopy(model), str(folder)).eval()
    x = samples(model)[0]
    with torch.no_grad():
        merged = prepared.float_model().eval()
        assert sqnr(merged(x), loaded(x)) > 80
        assert sqnr(model(x), loaded(x)) < 60
    fresh = type(model)()
    fresh.load_state_dict(merged.state_dict())


def test_fields_change_something() -> None:
    model = trained("conv")
    of = {
        name: prepared_of(model, lora_settings=settings)
        for name, settings in {
            "first": LORA,
            "rank": pb.LoraSettings(rank=3),
            "one": pb.LoraSettings(target_modules=["head"]),
            "class": pb.LoraSettings(target_modules=["Conv2d"]),
        }.items()
    }
    trained_numbers = {name: prepared.trainable_parameters[0] for name, prepared in of.items()}
    assert len(set(trained_numbers.values())) == 4
    assert pb.LoraSettings.from_dict(LORA.to_dict()) == LORA
    drops = prepared_of(model, lora_settings=pb.LoraSettings(rank=2, dropout_rate=0.5)).train()
    some_steps(drops, model, 2)
    drops.train()
    assert isinstance(drops.head.lora_dropout["default"], nn.Dropout)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["stem_norm"]}, "stem_norm.*BatchNorm2d"),
        ({"target_modules": ["nothing"]}, "matches no module"),
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        ({"target_modules": 3}, "target_modules"),
    ],
)
def test_what_cannot_be_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(pb.PrepbenchError, match=message):
        prepared_of(ConvNet(), lora_settings=pb.LoraSettings(**settings))  # type: ignore[arg-type]
    with pytest.raises(pb.PrepbenchError, match="no adapters"):
        prepared_of(trained("conv")).save_adapters("/nowhere")


def test_explained_settings_show_adapters() -> None:
    rows = pb.explain_settings(ConvNet(), INT8, lora_settings=pb.LoraSettings(rank=3, target_modules=["head"]))
    assert {row.fqn: row.adapter for row in rows} == {"stem": "", "branch": "", "head": "adapter of rank 3"}
    assert "adapter of rank 3" in repr(rows)


def adapted(kind: str, settings: pb.LoraSettings | None, **keywords: object) -> pb.CompiledModel:
    model = trained(kind)
    return pb.compile_model(
        model,
        calibration_inputs=samples(model),
        deployment_settings=pb.OnnxRuntimeDeployment(),
        quantization_settings=INT4,
        lora_settings=settings,
        **keywords,
    )


@pytest.fixture(scope="module")
def of_lora() -> torch.Tensor:
    """What the convolutional model compiled with ``LORA`` gives."""
    return adapted("conv", LORA)(samples(trained("conv"))[0])


@pytest.mark.parametrize("kind", in_turns(["conv", "transformer"], 1))
def test_in_a_compile_adapters_learn_what_quantization_costs(kind: str) -> None:
    model = trained(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unseen = shaped(model, digits()[2][:64])
    plain, with_adapters = adapted(kind, None), adapted(kind, pb.LoraSettings(rank=4))
    with torch.no_grad():
        exact = logits(model(unseen))
        found = [sqnr(exact, logits(each(unseen))) for each in (plain, with_adapters)]
    assert found[1] > found[0] + 1
    assert "adapters of rank 4 beside" in repr(with_adapters.report)
    assert {row.fqn for row in with_adapters.report.layers} == {row.fqn for row in plain.report.layers}
    assert all("adapter of rank 4" in row.note for row in with_adapters.report.layers)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("field", [{"rank": 3}, {"alpha": 2.0}, {"dropout_rate": 0.5}, {"target_modules": ["head"]}])
def test_fields_change_what_a_compile_gives(of_lora: torch.Tensor, field: dict[str, Any]) -> None:
    settings = pb.LoraSettings(**{"rank": 2, "alpha": 8.0, **field})
    assert sqnr(of_lora, adapted("conv", settings)(samples(trained("conv"))[0])) < 80


def test_a_plan_names_layers_with_adapters() -> None:
    plan = adapted("conv", pb.LoraSettings(target_modules=["head"]), is_dry_run=True)
    assert {row.fqn: "adapter" in row.note for row in plan.layers} == {"stem": False, "branch": False, "head": True}
    assert "would learn" in repr(plan)


@pytest.mark.stress
def test_the_backend_of_torch_takes_adapters_and_gives_the_same_again(of_lora: torch.Tensor) -> None:
    model = trained("conv")
    options = {
        "calibration_inputs": samples(model),
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": INT4,
        "lora_settings": LORA,
    }
    x = samples(model)[0]
    with torch.no_grad():
        assert torch.equal(torch.compile(model, backend="prepbench", options=options)(x), of_lora)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"quantization_settings": None}, "change nothing.*pb.trainable"),
        ({"calibration_inputs": None, "quantization_settings": None}, "change nothing"),
        ({"is_model_pretrained": False}, "is_model_pretrained=False"),
        ({"fullgraph": False}, "do not go with fullgraph=False"),
        ({"lora_settings": 3}, "lora_settings must be"),
        ({"lora_settings": pb.LoraSettings(target_modules=["stem_norm"])}, "stem_norm.*BatchNorm2d"),
        ({"compile_options": pb.CompileOptions(smooth_quant=True)}, "smooth_quant"),
        ({"rang": 3}, "no argument 'rang'"),
    ],
)
def test_what_adapters_do_not_go_with_is_named(keywords: dict[str, object], message: str) -> None:
    model = ConvNet()
    given = {
        "calibration_inputs": samples(model),
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": INT4,
        "lora_settings": LORA,
        **keywords,
    }
    with pytest.raises(pb.PrepbenchError, match=message):
        pb.compile_model(model, **given)  # type: ignore[arg-type]
