"""Hugging Face architectures from small configurations with random weights: one function per family.

Not part of :data:`tests.zoo.ZOO`, because importing ``transformers`` takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Samples = list[Any]
Built = tuple[torch.nn.Module, Samples]

ARCHITECTURES: dict[str, Callable[[], Built]] = {}

LEAVES: dict[str, tuple[str, ...]] = {
    # a size is divided by a tensor, and a flag is read from the mask
    "longformer": ("encoder",),
    # loops over the sequence; Mamba's also keeps its state in an object that the backbone makes
    "mamba": ("backbone",),
    # and RWKV's attention returns the state that it was given, which the next block writes into
    "rwkv": ("rwkv",),
    # a loop over the experts that were hit
    "switch_transformers": ("decoder.block.1.layer.2.mlp.experts", "encoder.block.1.layer.1.mlp.experts"),
    # positions are interpolated unless the image has the size of the configuration, as one sample has
    "dinov2": ("embeddings",),
    # a loop over the images of the batch
    "vilt": ("embeddings",),
}
"""The modules that no single graph can hold; all other architectures are captured whole."""

DECODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    key: DECODER[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
} | {"max_position_embeddings": 64, "pad_token_id": 0}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def build(name: str) -> Built:
    """The architecture with seeded weights, in eval mode, and its samples: batch and length vary where they may."""
    torch.manual_seed(0)
    model, samples = ARCHITECTURES[name]()
    return model.eval(), samples


def _register(name: str, make: Callable[[], Built]) -> None:
    ARCHITECTURES[name] = make


def family(make: Callable[[], Built]) -> Callable[[], Built]:
    """Register a function under its name."""
    _register(make.__name__, make)
    return make


def ids(batch: int, length: int) -> torch.Tensor:
    """Token ids from 3: 0 to 2 mean padding, begin and end."""
    return torch.randint(3, 99, (batch, length))


def text(*sizes: tuple[int, int], mask: bool = True) -> Samples:
    """Samples of token ids, with a mask whose first tokens of the first row are padding."""
    samples = []
    for batch, length in sizes:
        sample = {"input_ids": ids(batch, length)}
        if mask:
            sample["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        samples.append(sample)
    return samples


def images(*batches: int, size: int = 32) -> Samples:
    """Samples of images; only the batch varies."""
    return [{"pixel_values": torch.randn(batch, 3, size, size)} for batch in batches]


def _hf(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


def _text_model(config: str, model: str, sizes: dict[str, Any], further: dict[str, Any], mask: bool) -> Built:
    return _hf(model)(_hf(config)(**sizes, **further)), text((2, 7), (3, 12), mask=mask)


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
    _register(_name, lambda c=_config, m=_model, f=_further: _text_model(c, m, ENCODER, f, True))  # type: ignore[misc]
for _name, (_config, _model, _further) in _DECODERS.items():
    _register(_name, lambda c=_config, m=_model, f=_further: _text_model(c, m, {**DECODER, **f}, {}, True))  # type: ignore[misc]


@family
def distilbert() -> Built:
    config = _hf("DistilBertConfig")(dim=32, hidden_dim=64, n_layers=2, n_heads=4, vocab_size=100)
    return _hf("DistilBertModel")(config), text((2, 7), (3, 12))


@family
def fnet() -> Built:
    sizes = {key: value for key, value in ENCODER.items() if key != "num_attention_heads"}
    return _hf("FNetModel")(_hf("FNetConfig")(**sizes)), text((2, 7), (3, 12), mask=False)


@family
def longformer() -> Built:
    model = _hf("LongformerModel")(_hf("LongformerConfig")(attention_window=4, **ENCODER))
    return model, text((2, 8), (3, 16))


@family
def gpt2() -> Built:
    config = _hf("GPT2Config")(
        n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    return _hf("GPT2LMHeadModel")(config), text((2, 7), (3, 12))


@family
def gptj() -> Built:
    config = _hf("GPTJConfig")(
        n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64, rotary_dim=4, bos_token_id=1, eos_token_id=2
    )
    return _hf("GPTJForCausalLM")(config), text((2, 7), (3, 12))


@family
def opt() -> Built:
    config = _hf("OPTConfig")(
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=100,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
    )
    return _hf("OPTForCausalLM")(config), text((2, 7), (3, 12))


@family
def bloom() -> Built:
    config = _hf("BloomConfig")(hidden_size=32, n_layer=2, n_head=4, vocab_size=100)
    return _hf("BloomForCausalLM")(config), text((2, 7), (3, 12))


@family
def falcon() -> Built:
    config = _hf("FalconConfig")(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=100)
    return _hf("FalconForCausalLM")(config), text((2, 7), (3, 12))


@family
def mamba() -> Built:
    config = _hf("MambaConfig")(
        hidden_size=16, num_hidden_layers=2, vocab_size=100, state_size=4, intermediate_size=32, time_step_rank=2
    )
    return _hf("MambaForCausalLM")(config), text((2, 5), (3, 6), mask=False)


@family
def mamba2() -> Built:
    config = _hf("Mamba2Config")(
        hidden_size=16,
        num_hidden_layers=2,
        vocab_size=100,
        state_size=4,
        num_heads=4,
        head_dim=8,
        n_groups=1,
        chunk_size=4,
    )
    return _hf("Mamba2ForCausalLM")(config), text((2, 5), (3, 6), mask=False)


@family
def rwkv() -> Built:
    config = _hf("RwkvConfig")(
        hidden_size=16, num_hidden_layers=2, vocab_size=100, attention_hidden_size=16, intermediate_size=32
    )
    return _hf("RwkvForCausalLM")(config), text((2, 5), (3, 6), mask=False)


def _sequence_to_sequence(*sizes: tuple[int, int, int]) -> Samples:
    return [
        {"input_ids": ids(b, n), "attention_mask": torch.ones(b, n, dtype=torch.long), "decoder_input_ids": ids(b, m)}
        for b, n, m in sizes
    ]


@family
def t5() -> Built:
    config = _hf("T5Config")(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, decoder_start_token_id=0
    )
    return _hf("T5ForConditionalGeneration")(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))


def _bart_like(name: str, model: str) -> Built:
    config = _hf(name)(
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
    return _hf(model)(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))


@family
def bart() -> Built:
    return _bart_like("BartConfig", "BartForConditionalGeneration")


@family
def pegasus() -> Built:
    return _bart_like("PegasusConfig", "PegasusForConditionalGeneration")


@family
def switch_transformers() -> Built:
    config = _hf("SwitchTransformersConfig")(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=100, num_experts=4, decoder_start_token_id=0,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_decoder_layers=2, expert_capacity=8,
    )  # fmt: skip
    return _hf("SwitchTransformersForConditionalGeneration")(config), _sequence_to_sequence((2, 7, 3), (3, 9, 5))


@family
def vit() -> Built:
    return _hf("ViTForImageClassification")(_hf("ViTConfig")(**VISION)), images(2, 3)


@family
def deit() -> Built:
    return _hf("DeiTModel")(_hf("DeiTConfig")(**VISION)), images(2, 3)


@family
def beit() -> Built:
    return _hf("BeitModel")(_hf("BeitConfig")(**VISION)), images(2, 3)


@family
def dinov2() -> Built:
    sizes = {key: value for key, value in VISION.items() if key != "intermediate_size"}
    return _hf("Dinov2Model")(_hf("Dinov2Config")(**sizes)), [
        {"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 32, 32), (3, 48, 40))
    ]


@family
def swin() -> Built:
    config = _hf("SwinConfig")(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return _hf("SwinModel")(config), images(2, 3)


@family
def swinv2() -> Built:
    config = _hf("Swinv2Config")(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return _hf("Swinv2Model")(config), images(2, 3)


@family
def convnext() -> Built:
    config = _hf("ConvNextConfig")(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1])
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return _hf("ConvNextForImageClassification")(config), samples


@family
def resnet() -> Built:
    config = _hf("ResNetConfig")(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return _hf("ResNetForImageClassification")(config), samples


@family
def segformer() -> Built:
    config = _hf("SegformerConfig")(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16
    )
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return _hf("SegformerForSemanticSegmentation")(config), samples


@family
def mobilevit() -> Built:
    config = _hf("MobileViTConfig")(
        image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], num_attention_heads=2
    )
    return _hf("MobileViTModel")(config), images(2, 3, size=64)


@family
def yolos() -> Built:
    config = _hf("YolosConfig")(**{**VISION, "image_size": [32, 32]}, num_detection_tokens=5)
    return _hf("YolosForObjectDetection")(config), images(2, 3)


@family
def detr() -> Built:
    backbone = _hf("ResNetConfig")(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = _hf("DetrConfig")(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=5,
    )  # fmt: skip
    samples = [
        {"pixel_values": torch.randn(b, 3, 64, w), "pixel_mask": torch.ones(b, 64, w, dtype=torch.long)}
        for b, w in ((2, 64), (3, 96))
    ]
    return _hf("DetrForObjectDetection")(config), samples


@family
def wav2vec2() -> Built:
    config = _hf("Wav2Vec2Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=20,
        conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2,
    )  # fmt: skip
    return _hf("Wav2Vec2ForCTC")(config), [{"input_values": torch.randn(b, n)} for b, n in ((2, 400), (3, 640))]


@family
def whisper() -> Built:
    config = _hf("WhisperConfig")(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, num_mel_bins=8, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    samples = [{"input_features": torch.randn(b, 8, 40), "decoder_input_ids": ids(b, n)} for b, n in ((2, 3), (3, 6))]
    return _hf("WhisperForConditionalGeneration")(config), samples


@family
def audio_spectrogram() -> Built:
    sizes = {key: value for key, value in VISION.items() if key != "image_size"}
    config = _hf("ASTConfig")(**sizes, max_length=32, num_mel_bins=16)
    return _hf("ASTModel")(config), [{"input_values": torch.randn(b, 32, 16)} for b in (2, 3)]


@family
def clip() -> Built:
    config = _hf("CLIPConfig")(
        text_config={**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "projection_dim": 16},
        vision_config={**VISION, "projection_dim": 16},
        projection_dim=16,
    )
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(m, 3, 32, 32), "attention_mask": torch.ones(b, n).long()}
        for b, n, m in ((2, 5, 3), (4, 9, 2))
    ]
    return _hf("CLIPModel")(config), samples


@family
def siglip() -> Built:
    config = _hf("SiglipConfig")(text_config={**ENCODER, "projection_size": 32}, vision_config=VISION)
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(m, 3, 32, 32)} for b, n, m in ((2, 5, 3), (4, 9, 2))
    ]
    return _hf("SiglipModel")(config), samples


@family
def vilt() -> Built:
    sizes = {**ENCODER, "image_size": 32, "patch_size": 8, "max_image_length": -1}
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(b, 3, 32, 32), "pixel_mask": torch.ones(b, 32, 32).long()}
        for b, n in ((2, 5), (3, 9))
    ]
    return _hf("ViltModel")(_hf("ViltConfig")(**sizes)), samples


@family
def llava() -> Built:
    config = _hf("LlavaConfig")(
        text_config=_hf("LlamaConfig")(**DECODER),
        vision_config=_hf("CLIPVisionConfig")(**VISION, projection_dim=16),
        image_token_index=99,
        image_seq_length=16,
    )
    samples = []
    for batch, length in ((1, 20), (1, 24)):
        tokens = ids(batch, length)
        tokens[tokens == 99] = 98
        tokens[:, 1:17] = 99
        samples.append({"input_ids": tokens, "pixel_values": torch.randn(batch, 3, 32, 32)})
    return _hf("LlavaForConditionalGeneration")(config), samples
