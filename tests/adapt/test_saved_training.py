"""What training learned, saved and loaded; loops of others, and half precision."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.running.sqnr import sqnr
from tests.adapt.models import batches, logits, loss, samples, trained
from tests.adapt.test_trainable import prepared_of, some_steps

FOUR = pb.QuantizationSettings(weights_num_bits=4, activations_num_bits=4, observer="mse")


@pytest.mark.parametrize("lora", [None, pb.LoraSettings(rank=2)])
@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_what_was_learned_comes_back_with_the_state(kind: str, lora: pb.LoraSettings | None) -> None:
    model = trained(kind)
    prepared = prepared_of(model, "openvino", FOUR, lora_settings=lora)
    some_steps(prepared, model)
    file = io.BytesIO()
    torch.save(prepared.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    fresh = prepared_of(model, "openvino", FOUR, lora_settings=lora)
    x = samples(model)[0]
    with torch.no_grad():
        expected = logits(prepared(x))
        assert not torch.equal(logits(fresh(x)), expected)
        fresh.load_state_dict(state)
        assert torch.equal(logits(fresh(x)), expected)
        assert sqnr(expected, logits(pb.compile_model(fresh)(x))) > 40
        # inside of another module, as loops have it
        around = torch.nn.ModuleDict({"inner": prepared_of(model, "openvino", FOUR, lora_settings=lora)})
        around.load_state_dict(torch.nn.ModuleDict({"inner": prepared}).state_dict())
        assert torch.equal(logits(around["inner"](x)), expected)
        # of the original, which knows no ranges: they stay, and weights are clipped anew
        fresh.load_state_dict({**state, **model.state_dict()})
        assert sqnr(logits(model(x)), logits(fresh(x))) > 5
    original = type(model)()
    original.load_state_dict(prepared.float_model().state_dict())


def test_autocast_trains() -> None:
    model = trained("conv")
    prepared = prepared_of(model).train()
    optimizer = torch.optim.Adam(prepared.parameters(), 1e-3)
    for x, y in batches(model)[:3]:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            found = loss(prepared(x), y)
        found.backward()
        optimizer.step()
        assert bool(found.isfinite())
    x = samples(model)[0]
    with torch.no_grad():
        assert sqnr(prepared.eval()(x), pb.compile_model(prepared)(x)) > 40


def test_the_trainer_of_transformers_trains(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    model = trained("conv")
    prepared = prepared_of(model)

    class WithLoss(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            found = loss(model(inputs["x"]), inputs["labels"])
            return (found, None) if return_outputs else found

    rows = [{"x": x, "labels": y} for batch in batches(model)[:2] for x, y in zip(*batch, strict=True)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=16, report_to=[], use_cpu=True, save_strategy="no"
    )
    before = prepared.stem.weight.detach().clone()
    WithLoss(prepared, arguments, train_dataset=rows).train()
    assert not torch.equal(before, prepared.stem.weight)
    x = samples(model)[0]
    with torch.no_grad():
        assert sqnr(prepared.eval()(x), pb.compile_model(prepared)(x)) > 40
