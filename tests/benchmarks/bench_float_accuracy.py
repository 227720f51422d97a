"""How near to PyTorch the networks of public packages are in float on each target, and which operator is the limit.

All have random weights, are compiled with samples of two batch sizes and called with a third. Packages that are not
there have rows that say so: ``pip install torchvision timm vit-pytorch x-transformers conformer``.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import prepbench as pb
from prepbench.calls.call_spec import runtime_and_calls
from prepbench.compile.wrong_operator import Blame
from prepbench.inputs import Sample
from prepbench.objects.compare import sqnr
from prepbench.running.given_samples import normalize_samples
from prepbench.targets import target_for
from tests.benchmarks.table import print_cells, print_table

LIMIT = 80.0
TARGETS = {
    "onnxruntime": pb.OnnxRuntimeDeployment,
    "openvino": pb.OpenVinoDeployment,
    "executorch": pb.ExecuTorchDeployment,
    "inductor": pb.InductorDeployment,
}
Built = tuple[nn.Module, Callable[[int], Any]]


def _torchvision(name: str) -> Built:
    _with_operators_of_torchvision()
    import torchvision

    models = torchvision.models.segmentation if "lraspp" in name else torchvision.models
    options = {"weights_backbone": None} if "lraspp" in name else {}
    return getattr(models, name)(weights=None, **options), _images


def _timm(name: str) -> Built:
    _with_operators_of_torchvision()
    import timm

    return timm.create_model(name, pretrained=False, num_classes=10), _images


def _vit_pytorch(name: str) -> Built:
    _with_operators_of_torchvision()
    from vit_pytorch import SimpleViT

    return SimpleViT(image_size=64, patch_size=16, num_classes=10, dim=64, depth=3, heads=4, mlp_dim=128), _images


def _x_transformers(name: str) -> Built:
    from x_transformers import Encoder, TransformerWrapper

    layers = Encoder(dim=64, depth=3, heads=4, rotary_pos_emb=True, ff_glu=True)
    return TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers), lambda n: torch.randint(
        0, 100, (n, 24)
    )


def _conformer(name: str) -> Built:
    from conformer import Conformer

    return Conformer(dim=64, depth=2, dim_head=16, heads=4), lambda n: torch.randn(n, 40, 64)


def _transformers(name: str) -> Built:
    _with_operators_of_torchvision()  # transformers imports it where it is there
    from tests.zoo.huggingface import build

    model, samples = build(name)
    first = normalize_samples(model, samples)[0]

    def of(n: int) -> dict[str, torch.Tensor]:
        named = {**dict(zip(("pixel_values",), first.args, strict=False)), **first.kwargs}
        return {key: torch.cat([value[:1]] * n) for key, value in named.items()}

    return model, of


def _images(n: int) -> torch.Tensor:
    return torch.randn(n, 3, 64, 64)


def _with_operators_of_torchvision() -> None:
    """Builds of torchvision for another torch have no operators, and cannot be imported without these."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return
    except RuntimeError:
        global _LIBRARY
        _LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_LIBRARY: Any = None
_PACKAGES: dict[str, tuple[Callable[[str], Built], tuple[str, ...]]] = {
    "torchvision": (
        _torchvision,
        (
            *("resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1", "regnet_y_400mf"),
            "lraspp_mobilenet_v3_large",
        ),
    ),
    "timm": (
        _timm,
        ("lcnet_050", "convnext_atto", "mobilevitv2_050", "edgenext_xx_small", "ghostnet_050", "efficientvit_b0"),
    ),
    "vit-pytorch": (_vit_pytorch, ("simple_vit",)),
    "x-transformers": (_x_transformers, ("x_encoder",)),
    "conformer": (_conformer, ("conformer",)),
    "transformers": (_transformers, ("segformer", "wav2vec2")),
}
NETWORKS: Mapping[str, str] = {name: package for package, (_, names) in _PACKAGES.items() for name in names}


def cell(model: nn.Module, calls: Callable[[int], Any], target: str) -> str:
    """How near the compiled model is on a batch size that no sample has, and what keeps it from being nearer."""
    deployment = TARGETS[target]()
    samples = [calls(2), calls(3)]
    compiled = pb.compile_model(
        model, tracing_inputs=samples, deployment_settings=deployment, discard_input_model=False
    )
    sample = normalize_samples(model, [calls(4)])[0]
    with torch.no_grad():
        reached = sqnr(model(*sample.args, **sample.kwargs), compiled(*sample.args, **sample.kwargs))
    if reached >= LIMIT:
        return f"equal to {reached:.0f} dB"
    origin, spec = compiled._origin, runtime_and_calls(compiled)[1]
    assert origin is not None
    blame = Blame(target_for(deployment), deployment, origin.lowering)
    flat = Sample(tuple(spec.flatten(sample.args, sample.kwargs)), {})
    return f"{reached:.0f} dB: {blame(flat, lambda right, value: sqnr(right, value) >= LIMIT)}"


def measure(name: str, targets: list[str]) -> None:
    """Print the cells of one network."""
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        model, calls = _PACKAGES[NETWORKS[name]][0](name)
    except ImportError as error:
        print_cells(targets, lambda target, why=str(error): f"not installed: {why}")  # type: ignore[misc]
        return
    model.eval()
    print_cells(targets, lambda target: cell(model, calls, target))


def main() -> int:
    """Print a row for each network, then what keeps any from the limit; returns 1 where no operator is named."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="networks")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--one", action="store_true", help="measure the only network in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.families[0], given.targets)
        return 0
    rows = {name: NETWORKS[name] for name in given.families}
    below = print_table("tests.benchmarks.bench_float_accuracy", rows, given.targets, width=20)
    return any("The first value that differs" not in text for text in below)


if __name__ == "__main__":
    raise SystemExit(main())
