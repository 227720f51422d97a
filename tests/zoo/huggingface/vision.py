"""Architectures that take images."""

from __future__ import annotations

import torch

from tests.zoo.huggingface.registry import VISION, Built, family, hf, images


@family
def vit() -> Built:
    return hf("ViTForImageClassification")(hf("ViTConfig")(**VISION)), images(2, 3)


@family
def deit() -> Built:
    return hf("DeiTModel")(hf("DeiTConfig")(**VISION)), images(2, 3)


@family
def beit() -> Built:
    return hf("BeitModel")(hf("BeitConfig")(**VISION)), images(2, 3)


@family
def dinov2() -> Built:
    sizes = {key: value for key, value in VISION.items() if key != "intermediate_size"}
    return hf("Dinov2Model")(hf("Dinov2Config")(**sizes)), [
        {"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 32, 32), (3, 48, 40))
    ]


@family
def swin() -> Built:
    config = hf("SwinConfig")(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
    return hf("SwinModel")(config), images(2, 3)


@family
def swinv2() -> Built:
    config = hf("Swinv2Config")(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return hf("Swinv2Model")(config), images(2, 3)


@family
def convnext() -> Built:
    config = hf("ConvNextConfig")(hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 2, 1])
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return hf("ConvNextForImageClassification")(config), samples


@family
def resnet() -> Built:
    config = hf("ResNetConfig")(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic")
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return hf("ResNetForImageClassification")(config), samples


@family
def segformer() -> Built:
    config = hf("SegformerConfig")(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 32], num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16
    )
    samples = [{"pixel_values": torch.randn(b, 3, h, w)} for b, h, w in ((2, 64, 64), (3, 96, 64))]
    return hf("SegformerForSemanticSegmentation")(config), samples


@family
def mobilevit() -> Built:
    config = hf("MobileViTConfig")(
        image_size=64, hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32], num_attention_heads=2
    )
    return hf("MobileViTModel")(config), images(2, 3, size=64)


@family
def yolos() -> Built:
    config = hf("YolosConfig")(**{**VISION, "image_size": [32, 32]}, num_detection_tokens=5)
    return hf("YolosForObjectDetection")(config), images(2, 3)


@family
def detr() -> Built:
    backbone = hf("ResNetConfig")(
        embedding_size=8, hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = hf("DetrConfig")(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_queries=5,
    )  # fmt: skip
    samples = [
        {"pixel_values": torch.randn(b, 3, 64, w), "pixel_mask": torch.ones(b, 64, w, dtype=torch.long)}
        for b, w in ((2, 64), (3, 96))
    ]
    return hf("DetrForObjectDetection")(config), samples
