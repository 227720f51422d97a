"""Caches of a fixed length, as samples and in generation: ``cache_implementation="static"``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from prepbench.generate.greedy import CompiledSteps
from prepbench.running.check_inputs import alike_samples
from tests.compile.generate.generating import PROMPTS, TARGETS, make_model

STATIC: dict[str, Any] = {
    "do_sample": False,
    "max_new_tokens": 6,
    "min_new_tokens": 6,
    "cache_implementation": "static",
}
PADDED = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model(layers=1)


def make_call(model: Any, batch: int, past: int, new: int, room: int, mask: str) -> dict[str, Any]:
    """A call with a cache that has room for some tokens; one without past holds no tensors yet."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=room)
    if past:
        with torch.no_grad():
            model(input_ids=torch.ones(batch, past, dtype=torch.long), past_key_values=cache)
    positions = past + torch.arange(new)
    call = {
        "input_ids": torch.ones(batch, new, dtype=torch.long),
        "position_ids": positions.expand(batch, new),
        "past_key_values": cache,
    }
    if mask == "a row for each token":
        call["attention_mask"] = (torch.arange(room) <= positions[:, None]).expand(batch, 1, -1, -1).clone()
    elif mask == "one row":
        call["attention_mask"] = torch.ones(batch, past + new, dtype=torch.long)
    return call


def make_calls(model: Any, mask: str) -> list[dict[str, Any]]:
    return [make_call(model, *sizes, mask) for sizes in ((2, 0, 5, 32), (3, 11, 1, 24), (2, 4, 2, 16))]


def test_a_cache_without_tensors_gets_the_length_that_it_notes(model: Any) -> None:
    empty = alike_samples(model, make_calls(model, ""))[0].kwargs["past_key_values"].layers[0]
    assert empty.keys.shape == empty.values.shape == (2, 1, 32, 8)
    assert (empty.batch_size, empty.max_cache_len, int(empty.cumulative_length)) == (2, 32, 0)


@pytest.mark.parametrize(
    ("target", "mask"), [("eager", ""), ("ONNX Runtime", "one row"), ("OpenVINO", "a row for each token")]
)
def test_one_graph_generates_from_the_first_step(target: str, mask: str, model: Any) -> None:
    compiled = pb.compile_model(model, tracing_inputs=make_calls(model, mask), deployment_settings=TARGETS[target])
    steps: list[int] = []
    compiled.register_forward_hook(lambda *_: steps.append(1))
    with compiled.attached(model):
        found = model.generate(PROMPTS, **STATIC)
        assert len(steps) == 6
        if mask:
            padded = model.generate(PROMPTS, attention_mask=PADDED, **STATIC)
        else:
            with pytest.raises(InputError, match="attention_mask: these prompts are padded"):
                model.generate(PROMPTS, attention_mask=PADDED, **STATIC)
    assert torch.equal(found, model.generate(PROMPTS, **STATIC))
    assert not mask or torch.equal(padded, model.generate(PROMPTS, attention_mask=PADDED, **STATIC))


def test_comparing_generations_makes_room_for_all_tokens(model: Any) -> None:
    compiled = pb.compile_model(model, tracing_inputs=make_calls(model, ""), deployment_settings=TARGETS["eager"])
    found = CompiledSteps(compiled).generate(PROMPTS, torch.ones_like(PROMPTS), 6).tokens
    assert torch.equal(found, model.generate(PROMPTS, **STATIC)[:, 5:])
    calls = [make_call(model, *sizes, 16, "") for sizes in ((2, 0, 5), (3, 4, 1))]
    small = pb.compile_model(model, tracing_inputs=calls, deployment_settings=TARGETS["eager"])
    with pytest.raises(InputError, match=r"keys has room for 16 tokens in all tracing inputs, .* new tokens are 17"):
        CompiledSteps(small).generate(PROMPTS, torch.ones_like(PROMPTS), 12)


def test_recorded_later_steps_are_compiled_and_the_first_runs_in_pytorch(model: Any) -> None:
    with pb.record_inputs(model, distinct_shapes=True) as recorded:
        model.generate(PROMPTS, **STATIC)
        model.generate(PROMPTS[:1, :4], **STATIC)
    with pytest.raises(InputError, match=r"'attention_mask' is given in sample 1 but not in sample 0.*later steps"):
        pb.capture(model, recorded)
    later = [sample for sample in recorded if sample.kwargs["input_ids"].shape[1] == 1]
    compiled = pb.compile_model(model, tracing_inputs=later, deployment_settings=TARGETS["OpenVINO"])
    steps: list[int] = []
    compiled.register_forward_hook(lambda *_: steps.append(1))
    with compiled.attached(model):
        found = [model.generate(PROMPTS, num_beams=beams, **STATIC) for beams in (1, 2)]
    assert len(steps) == 10
    assert all(
        torch.equal(one, model.generate(PROMPTS, num_beams=b, **STATIC)) for one, b in zip(found, (1, 2), strict=True)
    )
