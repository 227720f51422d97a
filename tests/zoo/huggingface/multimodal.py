"""Architectures that take images with text."""

from __future__ import annotations

import torch

from tests.zoo.huggingface.registry import DECODER, ENCODER, VISION, Built, family, hf, ids


@family
def clip() -> Built:
    config = hf("CLIPConfig")(
        text_config={**ENCODER, "bos_token_id": 1, "eos_token_id": 2, "projection_dim": 16},
        vision_config={**VISION, "projection_dim": 16},
        projection_dim=16,
    )
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(m, 3, 32, 32), "attention_mask": torch.ones(b, n).long()}
        for b, n, m in ((2, 5, 3), (4, 9, 2))
    ]
    return hf("CLIPModel")(config), samples


@family
def siglip() -> Built:
    config = hf("SiglipConfig")(text_config={**ENCODER, "projection_size": 32}, vision_config=VISION)
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(m, 3, 32, 32)} for b, n, m in ((2, 5, 3), (4, 9, 2))
    ]
    return hf("SiglipModel")(config), samples


@family
def vilt() -> Built:
    sizes = {**ENCODER, "image_size": 32, "patch_size": 8, "max_image_length": -1}
    samples = [
        {"input_ids": ids(b, n), "pixel_values": torch.randn(b, 3, 32, 32), "pixel_mask": torch.ones(b, 32, 32).long()}
        for b, n in ((2, 5), (3, 9))
    ]
    return hf("ViltModel")(hf("ViltConfig")(**sizes)), samples


@family
def llava() -> Built:
    config = hf("LlavaConfig")(
        text_config=hf("LlamaConfig")(**DECODER),
        vision_config=hf("CLIPVisionConfig")(**VISION, projection_dim=16),
        image_token_index=99,
        image_seq_length=16,
    )
    samples = []
    for batch, length in ((1, 20), (1, 24)):
        tokens = ids(batch, length)
        tokens[tokens == 99] = 98
        tokens[:, 1:17] = 99
        samples.append({"input_ids": tokens, "pixel_values": torch.randn(batch, 3, 32, 32)})
    return hf("LlavaForConditionalGeneration")(config), samples
