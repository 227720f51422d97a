"""Hugging Face models with random weights: caches in and out, prefill and decode, nothing prepared by the user."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from prepbench.capture.aten.capture import capture
from prepbench.capture.aten.captured import Captured
from tests.turns import in_turns

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(2, 99, (batch, length))


def verified(model: torch.nn.Module, samples: list[Any], **options: Any) -> Captured:
    torch.manual_seed(0)
    captured = capture(model.eval(), samples, **options)
    report = captured.verify()
    assert not report.problems, report
    assert all(axis.status == "holds" for axis in report.axes), report
    return captured


def llama() -> torch.nn.Module:
    model: torch.nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SMALL))
    return model.eval()


def test_bert() -> None:
    samples = [{"input_ids": ids(b, n), "attention_mask": torch.ones(b, n).long()} for b, n in ((1, 7), (2, 9))]
    captured = verified(transformers.BertModel(transformers.BertConfig(**SMALL)), samples)
    assert captured.leaves == ()
    assert {axis.symbol for axis in captured.axes.dynamic} == {"batch", "sequence"}


def test_gpt2_prefill_and_decode() -> None:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, bos_token_id=0, eos_token_id=1)
    captured = verified(transformers.GPT2LMHeadModel(config), [{"input_ids": ids(1, 1)}, {"input_ids": ids(1, 64)}])
    output = captured.program.module()(input_ids=ids(1, 11))
    assert output.logits.shape == (1, 11, 100)
    assert output.past_key_values.get_seq_length() == 11


def test_cache_of_the_graph_continues_in_the_model() -> None:
    model, prompt, token = llama(), ids(2, 9), ids(2, 1)
    captured = verified(model, [{"input_ids": ids(1, 1)}, {"input_ids": ids(2, 20)}])
    with torch.no_grad():
        cache = captured.program.module()(input_ids=prompt).past_key_values
        assert type(cache) is transformers.DynamicCache
        expected = model(torch.cat([prompt, token], 1)).logits[:, -1]
        torch.testing.assert_close(model(token, past_key_values=cache).logits[:, -1], expected, rtol=1e-4, atol=1e-5)


def test_cache_as_an_input() -> None:
    model = llama()

    def sample(batch: int, past: int) -> dict[str, Any]:
        with torch.no_grad():
            cache = model(ids(batch, past)).past_key_values
        mask = torch.ones(batch, past + 1, dtype=torch.long)
        return {"input_ids": ids(batch, 1), "attention_mask": mask, "past_key_values": cache}

    samples = [sample(1, 5), sample(2, 8)]
    captured = capture(model, samples)
    assert samples[0]["past_key_values"].get_seq_length() == 5
    assert any(axis.path == "past_key_values.layers[1].values" and axis.dim == 2 for axis in captured.axes.dynamic)
    assert not captured.verify().problems


@pytest.mark.parametrize("name", in_turns(["Llama", "GPT2"], 0))
def test_an_empty_and_a_filled_cache_with_a_mask(name: str) -> None:
    config = {
        "Llama": lambda: transformers.LlamaConfig(num_key_value_heads=2, **SMALL),
        "GPT2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100),
    }[name]()
    kind = {"Llama": transformers.LlamaForCausalLM, "GPT2": transformers.GPT2LMHeadModel}[name]
    model = kind(config).eval()

    def sample(batch: int, new: int, past: int) -> dict[str, Any]:
        with torch.no_grad():
            cache = model(ids(batch, max(past, 1))).past_key_values
        if past == 0:
            cache.crop(-1)
        mask = torch.ones(batch, past + new, dtype=torch.long)
        return {"input_ids": ids(batch, new), "attention_mask": mask, "past_key_values": cache}

    samples = [sample(2, 5, 0), sample(2, 1, 2), sample(1, 2, 3)]
    captured = capture(model, samples)
    assert not captured.verify().problems
    for batch, new, past in ((2, 4, 0), (3, 1, 7)):
        with torch.no_grad():
            given = sample(batch, new, past)
            actual = captured.program.module()(**copy.deepcopy(given)).logits
            torch.testing.assert_close(actual, model(**given).logits, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        expected = model(**sample_copy(samples[1])).logits
        torch.testing.assert_close(captured.program.module()(**sample_copy(samples[1])).logits, expected)


def sample_copy(sample: dict[str, Any]) -> dict[str, Any]:
    import copy

    return copy.deepcopy(sample)


@pytest.mark.stress
def test_t5_with_two_caches() -> None:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    samples = [{"input_ids": ids(b, n), "decoder_input_ids": ids(b, m)} for b, n, m in ((1, 5, 3), (2, 8, 4))]
    captured = verified(transformers.T5ForConditionalGeneration(config), samples)
    output = captured.program.module()(input_ids=ids(3, 6), decoder_input_ids=ids(3, 2))
    assert type(output.past_key_values) is transformers.EncoderDecoderCache


def test_mixture_of_experts_routes_in_one_graph() -> None:
    config = transformers.MixtralConfig(num_key_value_heads=2, num_local_experts=4, **SMALL)
    verified(
        transformers.MixtralForCausalLM(config), [{"input_ids": ids(1, 6)}, {"input_ids": ids(2, 20)}], fullgraph=False
    )


@pytest.mark.stress
def test_a_leaf_inside_a_transformer() -> None:
    samples = [{"input_ids": ids(1, 6)}, {"input_ids": ids(2, 9)}]
    captured = verified(llama(), samples, leaf_modules=["model.layers.1.mlp"])
    assert [leaf.fqn for leaf in captured.leaves] == ["model.layers.1.mlp"]


def test_a_leaf_may_grow_the_cache() -> None:
    model = llama()
    samples = [{"input_ids": ids(1, 6)}, {"input_ids": ids(2, 9)}]
    captured = capture(model, samples, leaf_modules=["model.layers.0.self_attn"])
    assert [leaf.fqn for leaf in captured.leaves] == ["model.layers.0.self_attn"]
    assert captured.verify().passed
