"""Architectures that take sound."""

from __future__ import annotations

import torch

from tests.zoo.huggingface.registry import VISION, Built, family, hf, ids


@family
def wav2vec2() -> Built:
    config = hf("Wav2Vec2Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=20,
        conv_dim=(16, 16), conv_kernel=(10, 3), conv_stride=(5, 2), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, num_feat_extract_layers=2,
    )  # fmt: skip
    return hf("Wav2Vec2ForCTC")(config), [{"input_values": torch.randn(b, n)} for b, n in ((2, 400), (3, 640))]


@family
def whisper() -> Built:
    config = hf("WhisperConfig")(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, num_mel_bins=8, max_source_positions=20,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    samples = [{"input_features": torch.randn(b, 8, 40), "decoder_input_ids": ids(b, n)} for b, n in ((2, 3), (3, 6))]
    return hf("WhisperForConditionalGeneration")(config), samples


@family
def audio_spectrogram() -> Built:
    sizes = {key: value for key, value in VISION.items() if key != "image_size"}
    config = hf("ASTConfig")(**sizes, max_length=32, num_mel_bins=16)
    return hf("ASTModel")(config), [{"input_values": torch.randn(b, 32, 16)} for b in (2, 3)]
