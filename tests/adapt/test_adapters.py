"""Adapters: beside quantized layers, saved for PEFT, merged."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import prepbench as pb
from prepbench.running.sqnr import sqnr
from tests.adapt.models import ConvNet, samples, trained
from tests.adapt.test_trainable import INT4, INT8, prepared_of, some_steps

LORA = pb.LoraSettings(rank=2, alpha=8.0)


@pytest.mark.parametrize(("kind", "target"), [("conv", "onnxruntime"), ("transformer", "openvino")])
def test_a_quantized_base_with_trained_adapters_compiles(kind: str, target: str) -> None:
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


def test_compile_model_names_what_trains_adapters() -> None:
    with pytest.raises(pb.PrepbenchError, match=r"lora_settings to pb\.trainable"):
        pb.compile_model(nn.Linear(2, 2), tracing_inputs=[torch.zeros(3, 2)], lora_settings=pb.LoraSettings(rank=1))
