"""Caches of sliding windows that grow: prompts of any length, masks with rows, and tokens that are taken back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import prepbench as pb
from prepbench.errors import InputError, PrepbenchWarning

WINDOW = 4


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(3)
    config = MistralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, head_dim=8, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, sliding_window=WINDOW, eos_token_id=None,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    for parameter in model.parameters():  # the logits of small weights are so close that rounding decides
        parameter.data.mul_(4.0) if parameter.dim() > 1 else None
    return model.eval()


def prompts(batch: int, length: int) -> torch.Tensor:
    return torch.randint(1, 40, (batch, length), generator=torch.Generator().manual_seed(batch + length))


@pytest.fixture(scope="module")
def compiled(model: Any) -> pb.CompiledModel:
    with pb.record_inputs(model, distinct_shapes=True) as samples:
        for batch, length in ((2, 5), (4, 7)):
            tokens = prompts(batch, length)
            mask = torch.ones_like(tokens)
            mask[0, :2] = 0
            model.generate(tokens, attention_mask=mask, max_new_tokens=3, do_sample=False)
    for sample in samples:
        sample.kwargs.pop("logits_to_keep", None)  # a call of prompt lookup asks for several
    return pb.compile_model(model, tracing_inputs=samples, deployment_settings=pb.EagerDeployment())


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (1, 3), (3, WINDOW + 2)])
def test_prompts_of_any_length_generate_the_tokens_of_eager(
    batch: int, length: int, model: Any, compiled: pb.CompiledModel
) -> None:
    call = {"inputs": prompts(batch, length), "max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**call)
    with compiled.attached(model, strict=True):
        assert torch.equal(model.generate(**call), expected)


def test_masks_that_the_window_is_not_in_are_refused(model: Any, compiled: pb.CompiledModel) -> None:
    tokens = prompts(2, WINDOW + 3)
    every = torch.ones(WINDOW + 3, WINDOW + 3, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    near = every & every.tril(0).triu(1 - WINDOW)
    hole = near.clone()
    hole[:, :, 3:, 2] = False
    with compiled.attached(model, strict=True), torch.no_grad():
        for mask in (every, hole):
            with pytest.raises(InputError, match=r"tokens see others than those before them here \(in their window"):
                model(tokens, attention_mask=mask)
        found = model(tokens, attention_mask=near).logits
    with torch.no_grad():
        torch.testing.assert_close(found, model(tokens, attention_mask=near).logits)


def test_candidates_that_are_taken_back_run_in_pytorch(model: Any, compiled: pb.CompiledModel) -> None:
    call = {"max_new_tokens": 10, "do_sample": False, "prompt_lookup_num_tokens": 3}
    tokens = prompts(1, WINDOW + 2).repeat(1, 2)
    expected = model.generate(tokens, **call)
    with compiled.attached(model), pytest.warns(PrepbenchWarning, match="takes tokens back from past_key_values"):
        assert torch.equal(model.generate(tokens, **call), expected)
