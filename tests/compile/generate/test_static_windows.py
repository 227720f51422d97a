"""Caches of a fixed length whose layers see a sliding window: all of them, or some (hybrid)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError
from prepbench.generate.greedy import CompiledSteps
from tests.compile.generate.generating import PROMPTS, TARGETS
from tests.turns import in_turns, one_pair_each

WINDOW = 8
STATIC: dict[str, Any] = {
    "do_sample": False,
    "max_new_tokens": 12,
    "min_new_tokens": 12,
    "cache_implementation": "static",
}
LONG = torch.randint(3, 40, (2, WINDOW + 3), generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
LONG_PADDED = torch.ones_like(LONG).index_put((torch.tensor([0]), torch.tensor([0])), torch.tensor(0))
CALLS: dict[str, dict[str, Any]] = {
    "past the window": {"inputs": PROMPTS},
    "a prompt longer than the window": {"inputs": LONG},
    "one row": {"inputs": LONG[:1]},
    "padded": {"inputs": PROMPTS, "attention_mask": PADDED},
    "long and padded": {"inputs": LONG, "attention_mask": LONG_PADDED},
    "beams": {"inputs": PROMPTS, "num_beams": 2},
}


def make_model(kind: str) -> Any:
    import transformers

    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "sliding_window": WINDOW,
        "eos_token_id": None,
    }  # fmt: skip
    if kind == "some layers":
        config = transformers.Gemma2Config(**sizes, layer_types=["sliding_attention", "full_attention"])
        model = transformers.Gemma2ForCausalLM(config)
    else:
        model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes))
    for parameter in model.parameters():  # the logits of small weights are so close that rounding decides
        parameter.data.mul_(4.0) if parameter.dim() > 1 else None
    return model.eval()


# those of which some layers have a window come first: both kinds of layers are in them
MODELS = {"some layers": "some layers", "all layers": "all layers"}
RUNTIMES = {"ONNX Runtime": "ONNX Runtime", "OpenVINO": "OpenVINO"}


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    return make_model(request.param)


of_both_kinds = pytest.mark.parametrize("model", MODELS, indirect=True)
of_the_first_kind = pytest.mark.parametrize("model", in_turns(MODELS, 0), indirect=True)


@functools.cache
def expected_tokens(model: Any, name: str) -> torch.Tensor:
    """What the model itself gives, asked once for all that is compiled from it."""
    found: torch.Tensor = model.generate(**CALLS[name], **STATIC)
    return found


def make_call(model: Any, batch: int, past: int, new: int, room: int, *, mask: bool) -> dict[str, Any]:
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=room)
    if past:
        with torch.no_grad():
            model(input_ids=torch.ones(batch, past, dtype=torch.long), past_key_values=cache)
    call: dict[str, Any] = {
        "input_ids": torch.ones(batch, new, dtype=torch.long),
        "position_ids": (past + torch.arange(new)).expand(batch, new),
        "past_key_values": cache,
    }
    return {**call, "attention_mask": torch.ones(batch, past + new, dtype=torch.long)} if mask else call


def make_calls(model: Any, *, mask: bool) -> list[dict[str, Any]]:
    return [make_call(model, *sizes, mask=mask) for sizes in ((2, 0, 5, 32), (3, 11, 1, 24), (2, 4, 2, 16))]


def recorded(model: Any) -> pb.RecordedInputs:
    with pb.record_inputs(model, distinct_shapes=True) as found:
        model.generate(PROMPTS, **STATIC)
        model.generate(PROMPTS[:1, :4], **{**STATIC, "max_new_tokens": 25})
    return found


def check_tokens(compiled: pb.CompiledModel, model: Any, steps: int, names: list[str]) -> None:
    ran: list[int] = []
    hook = compiled.register_forward_hook(lambda *_: ran.append(1))
    for name in names:
        ran.clear()
        with compiled.attached(model):
            found = model.generate(**CALLS[name], **STATIC)
        assert torch.equal(found, expected_tokens(model, name)), name
        assert len(ran) == steps, name
    hook.remove()


@pytest.mark.parametrize(("target", "model"), one_pair_each(RUNTIMES, MODELS, 2), indirect=["model"])
def test_one_graph_for_all_steps(target: str, model: Any) -> None:
    calls = make_calls(model, mask=True)
    compiled = pb.compile_model(model, tracing_inputs=calls, deployment_settings=TARGETS[target])
    check_tokens(compiled, model, 12, list(CALLS))


@pytest.mark.parametrize(
    ("target", "model"), one_pair_each({"eager": "eager", **RUNTIMES}, MODELS, 3), indirect=["model"]
)
def test_recorded_later_steps(target: str, model: Any) -> None:
    later = [sample for sample in recorded(model) if sample.kwargs["input_ids"].shape[1] == 1]
    compiled = pb.compile_model(model, tracing_inputs=later, deployment_settings=TARGETS[target])
    check_tokens(compiled, model, 11, list(CALLS))


@pytest.mark.stress
@of_the_first_kind
def test_without_a_mask_and_loaded(model: Any, tmp_path: Path) -> None:
    compiled = pb.compile_model(model, tracing_inputs=make_calls(model, mask=False))
    check_tokens(compiled, model, 12, ["past the window", "a prompt longer than the window"])
    with compiled.attached(model), pytest.raises(InputError, match="these prompts are padded"):
        model.generate(**CALLS["padded"], **STATIC)
    compiled.save(tmp_path / "saved")
    loaded = pb.load_compiled(tmp_path / "saved")
    check_tokens(loaded, model, 12, ["past the window", "a prompt longer than the window"])
    found = CompiledSteps(loaded).generate(LONG, torch.ones_like(LONG), 12).tokens
    assert torch.equal(found, model.generate(LONG, **STATIC)[:, LONG.shape[1] :])


@pytest.mark.stress
@of_the_first_kind
def test_the_result_counts_tokens_as_the_model_does(model: Any) -> None:
    calls = [*make_calls(model, mask=True), make_call(model, 2, 3, 2, 6, mask=True)]  # room for less than a window
    compiled = pb.compile_model(model, tracing_inputs=calls, deployment_settings=TARGETS["eager"])
    for sizes in ((2, 0, 11, 32), (2, 6, 3, 32), (1, 9, 1, 32), (1, 11, 4, 32), (3, 2, 1, 5)):
        with torch.no_grad():
            expected = model(**make_call(model, *sizes, mask=True)).past_key_values
        found = compiled(**make_call(model, *sizes, mask=True)).past_key_values
        layers = found["layers"] if isinstance(found, dict) else found.layers
        for one, other in zip(layers, expected.layers, strict=True):
            held = one if isinstance(one, dict) else vars(one)
            if other.is_sliding:
                assert (type(held["cumulative_length_int"]), held["cumulative_length_int"]) == (int, sum(sizes[1:3]))
            assert torch.equal(held["cumulative_length"], other.cumulative_length)
            torch.testing.assert_close(held["keys"], other.keys)
            torch.testing.assert_close(held["values"], other.values)


@of_both_kinds
def test_masks_with_rows_for_several_tokens_are_told(model: Any) -> None:
    with pytest.raises(InputError, match=r"has rows for 5 new tokens in sample 0 and for 1 .* later steps"):
        pb.capture(model, recorded(model))
