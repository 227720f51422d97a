"""Tiny models of further families that generate, made from their configuration's own defaults and small sizes.

Two are left out. RecurrentGemma keeps its states in its modules and not in the cache, so no graph takes them. RWKV
(transformers 5.23) mixes the rows of a batch in each later step: it adds tensors of (batch, 1, hidden) and of (batch,
hidden).
"""

from __future__ import annotations

from typing import Any

import torch

from tests.zoo.huggingface.registry import DECODER

_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}
_SEQUENCES = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "decoder_start_token_id": 1, "max_target_positions": 64,
}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
_LINEAR = {
    "head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_DENSE, _GROUPED, _SLIDING = "dense", "grouped heads", "sliding window and full"
_EXPERT, _STATE, _HYBRID, _CODER = "mixture of experts", "state space", "state and attention", "encoder-decoder"

FURTHER: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (_GROUPED, {}),
    "smollm3": (_GROUPED, {}),
    "nemotron": (_GROUPED, {}),
    "glm": (_GROUPED, {}),
    "glm4": (_GROUPED, {}),
    "starcoder2": (_GROUPED, {}),
    "olmo": (_GROUPED, {}),
    "phi": (_GROUPED, {}),
    "persimmon": (_DENSE, {}),
    "helium": (_GROUPED, {"head_dim": 8}),
    "ernie4_5": (_GROUPED, {}),
    "seed_oss": (_GROUPED, {}),
    "arcee": (_GROUPED, {}),
    "apertus": (_GROUPED, {}),
    "hunyuan_v1_dense": (_GROUPED, {"head_dim": 8}),
    "bitnet": (_GROUPED, {}),
    "diffllama": (_GROUPED, {}),
    "nanochat": (_GROUPED, {}),
    "gemma": (_GROUPED, {"head_dim": 8}),
    "gpt_bigcode": ("one head of keys", {}),
    "gptj": (_DENSE, {"rotary_dim": 4}),
    "codegen": (_DENSE, {"rotary_dim": 4}),
    "xglm": (_DENSE, {}),
    "biogpt": (_DENSE, {}),
    "mpt": (_DENSE, {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
    "ctrl": (_DENSE, {}),
    "gpt_neo": ("sliding window and full", {"attention_types": [[["global", "local"], 1]], "window_size": 8}),
    "exaone4": (_SLIDING, {"sliding_window": 8}),
    "cohere2": (_SLIDING, {"sliding_window": 8}),
    "olmo3": (_SLIDING, {"sliding_window": 8}),
    "gpt_oss": ("sliding window, experts", {"sliding_window": 8, "head_dim": 8}),
    "qwen3_moe": (_EXPERT, {}),
    "granitemoe": (_EXPERT, {}),
    "phimoe": (_EXPERT, {}),
    "glm4_moe": (_EXPERT, {}),
    "ernie4_5_moe": (_EXPERT, {}),
    "jetmoe": (_EXPERT, {}),
    "doge": (_EXPERT, {}),
    "minimax": ("linear attention, experts", {}),
    "lfm2": ("convolution and attention", {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": ("convolution and attention", {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "falcon_mamba": (_STATE, {"state_size": 4, "time_step_rank": 2}),
    "jamba": (
        _HYBRID,
        {
            "attn_layer_offset": 1, "attn_layer_period": 2, "expert_layer_period": 2, "expert_layer_offset": 1,
            "use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4,
        },
    ),
    "zamba2": (
        _HYBRID,
        {
            "num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"], "n_mamba_heads": 4,
            "mamba_ngroups": 1, "mamba_d_state": 8, "use_mamba_kernels": False, "chunk_size": 8,
        },
    ),
    "granitemoehybrid": (
        _HYBRID,
        {
            "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "layer_types": ["mamba", "attention"],
            "mamba_chunk_size": 8,
        },
    ),
    "qwen3_next": ("linear and full attention", _LINEAR),
    "qwen3_5_text": ("linear and full attention", _LINEAR),
    "pegasus": (_CODER, _SEQUENCES),
    "marian": (_CODER, _SEQUENCES),
    "mbart": (_CODER, _SEQUENCES),
    "m2m_100": (_CODER, _SEQUENCES),
    "blenderbot": (_CODER, _SEQUENCES),
    "mt5": (_CODER, _T5),
    "umt5": (_CODER, _T5),
}  # fmt: skip
"""By model type: the kind, and what its configuration needs besides small sizes."""


def build_further(name: str) -> Any:
    """A model with seeded weights, in eval mode."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    defaults = AutoConfig.for_model(name)
    sizes = {key: value for key, value in {**DECODER, **_EXPERTS}.items() if hasattr(defaults, key)}
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **sizes | FURTHER[name][1])
    kind: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return kind.from_config(config).eval()
