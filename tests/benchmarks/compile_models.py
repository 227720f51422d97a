"""Models and inputs of the compile benchmarks: well-known architectures with random weights that still behave.

Untrained networks are degenerate in ways that would make a distance from float meaningless, so:

- batch norms get running statistics from a few batches (:func:`_fit_batch_norms`); with means of 0 and variances of 1,
  activations vanish or explode with the depth;
- transformers get weights of deviation ``hidden ** -0.5``, which keep the scale of what they multiply; with the usual
  0.02 attention is uniform and the logits are nearly the same for all inputs;
- images are smooth random fields (:func:`images`), and texts have subjects (:func:`texts`), so that they differ in what
  a network sees; white noise averages out.

``python -m tests.benchmarks.compile_models [model ...]`` prints how much the logits vary and how fast they are.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Inputs = tuple[torch.Tensor, ...]

PIXELS = 224
TOKENS = 128
VOCABULARY = 2000
CALIBRATION_BATCHES = 4
CALIBRATION_BATCH = 8
EVALUATION_SAMPLES = 16


@dataclass(frozen=True)
class Case:
    """A model and what it is given.

    Attributes:
        model: in float and eval mode; ``model(*inputs)`` gives the logits.
        input_names: names of its tensors.
        tracing: two samples of different batch size, because the batch shall be dynamic.
        calibration: batches of :data:`CALIBRATION_BATCH`.
        evaluation: samples of batch 1, none of which is in the calibration set.
        transformer: whether the libraries' settings for transformers apply.
    """

    model: nn.Module
    input_names: tuple[str, ...]
    tracing: list[Inputs]
    calibration: list[Inputs]
    evaluation: list[Inputs]
    transformer: bool


class ImageLogits(nn.Module):
    """``forward(x)``: images to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


class TextLogits(nn.Module):
    """``forward(input_ids, attention_mask)``: tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def images(batch: int) -> Inputs:
    """Sums of random fields from coarse to fine, each image with contrast and brightness of its own."""
    field = torch.zeros(batch, 3, PIXELS, PIXELS)
    for cells in (4, 8, 16, 32, 64, 112):
        coarse = torch.randn(batch, 3, cells, cells) * cells**-0.5
        field += F.interpolate(coarse, size=(PIXELS, PIXELS), mode="bilinear", align_corners=False)
    field /= field.std((1, 2, 3), keepdim=True)
    return (field * (0.5 + torch.rand(batch, 1, 1, 1)) + 0.5 * torch.randn(batch, 3, 1, 1),)


def texts(batch: int) -> Inputs:
    """Texts of half to full length, the rest masked; each takes its tokens from a few of its own, as a subject does."""
    subject = torch.randint(1, VOCABULARY, (batch, 24))
    ids = subject.gather(1, torch.randint(0, 24, (batch, TOKENS)))
    lengths = torch.randint(TOKENS // 2, TOKENS + 1, (batch, 1))
    mask = (torch.arange(TOKENS) < lengths).long()
    return ids * mask, mask


def resnet() -> nn.Module:
    """ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000, layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512])
    return ImageLogits(ResNetForImageClassification(config))


def mobilenetv2() -> nn.Module:
    """MobileNetV2 1.0."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    return ImageLogits(MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000, tf_padding=False)))


def efficientnet() -> nn.Module:
    """EfficientNet-B0."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        num_labels=1000, width_coefficient=1.0, depth_coefficient=1.0, image_size=PIXELS, hidden_dim=1280
    )
    return ImageLogits(EfficientNetForImageClassification(config))


def vit() -> nn.Module:
    """ViT of the size "tiny"."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_labels=1000, hidden_size=192, num_attention_heads=3, intermediate_size=768, initializer_range=192**-0.5
    )
    return ImageLogits(ViTForImageClassification(config))


def convnext() -> nn.Module:
    """ConvNeXt with half the channels of its size "tiny"; blocks count as much as in a trained one."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        num_labels=1000, hidden_sizes=[48, 96, 192, 384], layer_scale_init_value=0.3, initializer_range=96**-0.5
    )
    return ImageLogits(ConvNextForImageClassification(config))


def bert() -> nn.Module:
    """BERT with six layers of 256 channels."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=VOCABULARY,
        num_labels=100,
        hidden_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=1024,
        initializer_range=256**-0.5,
    )
    return TextLogits(BertForSequenceClassification(config))


MODELS: dict[str, Callable[[], nn.Module]] = {
    f.__name__: f for f in (resnet, mobilenetv2, efficientnet, vit, convnext, bert)
}
TRANSFORMERS = ("vit", "convnext", "bert")


def build(name: str) -> Case:
    """The model of this name and its inputs, always the same ones."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    sample = texts if name == "bert" else images
    _fit_batch_norms(model, [sample(8)])
    torch.manual_seed(3)
    calibration = [sample(CALIBRATION_BATCH) for _ in range(CALIBRATION_BATCHES)]
    torch.manual_seed(7)
    evaluation = [sample(1) for _ in range(EVALUATION_SAMPLES)]
    names = ("input_ids", "attention_mask") if name == "bert" else ("x",)
    return Case(model, names, [sample(1), sample(2)], calibration, evaluation, name in TRANSFORMERS)


def _fit_batch_norms(model: nn.Module, batches: list[Inputs]) -> None:
    """Give the batch norms of ``model``, in place, the mean statistics of ``batches`` and uneven weights, as training
    does.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.train()
        norm.momentum = None  # the mean over all batches
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.2)
    if norms:
        with torch.no_grad():
            for batch in batches:
                model(*batch)
    model.eval()


def main() -> None:
    """Check the models: how much of the logits' power differs between samples (0: none, 1: all), and their speed."""
    for name in sys.argv[1:] or MODELS:
        case = build(name)
        with torch.no_grad():
            logits = torch.cat([case.model(*inputs) for inputs in case.evaluation])
            seconds = []
            for _ in range(20):
                start = time.perf_counter()
                case.model(*case.evaluation[0])
                seconds.append(time.perf_counter() - start)
        varying = (logits - logits.mean(0)).square().sum() / logits.square().sum()
        parameters = sum(p.numel() for p in case.model.parameters()) / 1e6
        print(
            f"{name:<14}{parameters:6.1f} M parameters, {statistics.median(seconds) * 1e3:6.1f} ms, logits of "
            f"{float(logits.square().mean().sqrt()):.3g}, {float(varying):.0%} of their power differs between samples"
        )


if __name__ == "__main__":
    main()
