"""Architectures that take text: encoders, decoders and recurrent ones."""

from __future__ import annotations

from typing import Any

from tests.zoo.huggingface.registry import DECODER, ENCODER, Built, family, hf, register, text


def _text_model(config: str, model: str, sizes: dict[str, Any], further: dict[str, Any], mask: bool) -> Built:
    return hf(model)(hf(config)(**sizes, **further)), text((2, 7), (3, 12), mask=mask)


_ENCODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForSequenceClassification", {}),
    "roberta": ("RobertaConfig", "RobertaForTokenClassification", {}),
    "electra": ("ElectraConfig", "ElectraModel", {"embedding_size": 32}),
    "albert": ("AlbertConfig", "AlbertModel", {"embedding_size": 16}),
    "deberta_v2": (
        "DebertaV2Config",
        "DebertaV2Model",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8},
    ),
    "mpnet": ("MPNetConfig", "MPNetModel", {}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {"local_attention": 8, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "convbert": ("ConvBertConfig", "ConvBertModel", {"embedding_size": 32, "head_ratio": 2}),
    "roformer": ("RoFormerConfig", "RoFormerModel", {}),
}
_DECODERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 8}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 8}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 8, "sliding_window": 8}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 8, "sliding_window": 8}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 4}),
    "qwen2_moe": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "olmoe": ("OlmoeConfig", "OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 8},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            "n_routed_experts": 4,
            "num_key_value_heads": 4,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 1,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "bamba": (
        "BambaConfig",
        "BambaForCausalLM",
        {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8},
    ),
}
for _name, (_config, _model, _further) in _ENCODERS.items():
    register(_name, lambda c=_config, m=_model, f=_further: _text_model(c, m, ENCODER, f, True))  # type: ignore[misc]
for _name, (_config, _model, _further) in _DECODERS.items():
    register(_name, lambda c=_config, m=_model, f=_further: _text_model(c, m, {**DECODER, **f}, {}, True))  # type: ignore[misc]


@family
def distilbert() -> Built:
    config = hf("DistilBertConfig")(dim=32, hidden_dim=64, n_layers=2, n_heads=4, vocab_size=100)
    return hf("DistilBertModel")(config), text((2, 7), (3, 12))


@family
def fnet() -> Built:
    sizes = {key: value for key, value in ENCODER.items() if key != "num_attention_heads"}
    return hf("FNetModel")(hf("FNetConfig")(**sizes)), text((2, 7), (3, 12), mask=False)


@family
def longformer() -> Built:
    model = hf("LongformerModel")(hf("LongformerConfig")(attention_window=4, **ENCODER))
    return model, text((2, 8), (3, 16))


@family
def gpt2() -> Built:
    config = hf("GPT2Config")(
        n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return hf("GPT2LMHeadModel")(config), text((2, 7), (3, 12))


@family
def gptj() -> Built:
    config = hf("GPTJConfig")(
        n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2
    )
    return hf("GPTJForCausalLM")(config), text((2, 7), (3, 12))


@family
def opt() -> Built:
    config = hf("OPTConfig")(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=100,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
    )
    return hf("OPTForCausalLM")(config), text((2, 7), (3, 12))


@family
def bloom() -> Built:
    config = hf("BloomConfig")(hidden_size=32, n_layer=2, n_head=4, vocab_size=100)
    return hf("BloomForCausalLM")(config), text((2, 7), (3, 12))


@family
def falcon() -> Built:
    config = hf("FalconConfig")(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=100)
    return hf("FalconForCausalLM")(config), text((2, 7), (3, 12))


@family
def mamba() -> Built:
    config = hf("MambaConfig")(
        hidden_size=16, num_hidden_layers=2, vocab_size=100, state_size=4, intermediate_size=32, time_step_rank=2
    )
    return hf("MambaForCausalLM")(config), text((2, 5), (3, 6), mask=False)


@family
def mamba2() -> Built:
    config = hf("Mamba2Config")(
        hidden_size=16,
        num_hidden_layers=2,
        vocab_size=100,
        state_size=4,
        num_heads=4,
        head_dim=8,
        n_groups=1,
        chunk_size=4,
    )
    return hf("Mamba2ForCausalLM")(config), text((2, 5), (3, 6), mask=False)


@family
def rwkv() -> Built:
    config = hf("RwkvConfig")(
        hidden_size=16, num_hidden_layers=2, vocab_size=100, attention_hidden_size=16, intermediate_size=32
    )
    return hf("RwkvForCausalLM")(config), text((2, 5), (3, 6), mask=False)
