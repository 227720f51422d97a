"""What training learned, saved and loaded, and training in half precision."""

from __future__ import annotations

import copy
import io

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from prepbench.objects.compare import sqnr
from tests.compile.adapt.models import batches, logits, loss, samples, trained
from tests.compile.adapt.test_trainable import prepared_of, some_steps

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_are_told_what_to_do(dtype: torch.dtype) -> None:
    model = copy.deepcopy(trained("conv")).to(dtype)
    given = {
        "calibration_inputs": [x.to(dtype) for x in samples(model)],
        "deployment_settings": pb.OnnxRuntimeDeployment(),
        "quantization_settings": pb.QuantizationSettings(),
    }
    with pytest.raises(InputError, match=r"stem\.weight is torch\..*16.*Give model\.float\(\)"):
        pb.trainable(model, **given)
    with pytest.raises(InputError, match=r"Give model\.float\(\)"):
        pb.compile_model(model, **given, lora_settings=pb.LoraSettings(rank=2))
    prepared = prepared_of(model.float())
    x = samples(model)[0].to(dtype)
    assert prepared.float_model().to(dtype)(x).dtype == dtype
