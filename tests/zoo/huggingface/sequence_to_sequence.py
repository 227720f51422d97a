"""Architectures with an encoder and a decoder of text."""

from __future__ import annotations

import torch

from tests.zoo.huggingface.registry import Built, Samples, family, hf, ids


def _sequence_to_sequence(*sizes: tuple[int, int, int]) -> Samples:
    return [
        {"input_ids": ids(b, n), "attention_mask": torch.ones(b, n, dtype=torch.long), "decoder_input_ids": ids(b, m)}
        for b, n, m in sizes
    ]


@family
def t5() -> Built:
    config = hf("T5Config")(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    return hf("T5ForConditionalGeneration")(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))


def _bart_like(name: str, model: str) -> Built:
    config = hf(name)(
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=100,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=2,
    )
    return hf(model)(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))


@family
def bart() -> Built:
    return _bart_like("BartConfig", "BartForConditionalGeneration")


@family
def pegasus() -> Built:
    return _bart_like("PegasusConfig", "PegasusForConditionalGeneration")


@family
def switch_transformers() -> Built:
    config = hf("SwitchTransformersConfig")(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, num_experts=4, decoder_start_token_id=0,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_decoder_layers=2, expert_capacity=8,
    )  # fmt: skip
    return hf("SwitchTransformersForConditionalGeneration")(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))
