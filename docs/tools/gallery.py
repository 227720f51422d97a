"""``python -m docs.tools.gallery``: diagrams of known architectures, from configurations, without weights.

Models are made on the device "meta", which has shapes and no values, and traced at module level. What is committed are
the documents, packed, which the site draws live.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from docs.tools.notebooks import live_html

FOLDER = Path(__file__).parents[1] / "gallery"
_MOST = 10**9  # parameters that are made in memory


@dataclass(frozen=True)
class Entry:
    """An architecture.

    Attributes:
        title: its name.
        about: what to look at, in a sentence.
        make: the model, and the keyword arguments of one call.
    """

    title: str
    about: str
    make: Callable[[], tuple[torch.nn.Module, dict[str, Any]]]


def _images(size: int = 224, batch: int = 1) -> torch.Tensor:
    return torch.empty(batch, 3, size, size)


def _ids(length: int = 64) -> torch.Tensor:
    return torch.ones(1, length, dtype=torch.long)


def _pictures(name: str, size: int = 224, **settings: Any) -> Callable[[], tuple[torch.nn.Module, dict[str, Any]]]:
    def make() -> tuple[torch.nn.Module, dict[str, Any]]:
        return _model(name, **settings), {"pixel_values": _images(size)}

    return make


def _texts(name: str, **settings: Any) -> Callable[[], tuple[torch.nn.Module, dict[str, Any]]]:
    def make() -> tuple[torch.nn.Module, dict[str, Any]]:
        return _model(name, **settings), {"input_ids": _ids()}

    return make


def _model(name: str, **settings: Any) -> torch.nn.Module:
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**settings)
    return kind(config).eval()


def _whisper() -> tuple[torch.nn.Module, dict[str, Any]]:
    model = _model("WhisperModel", d_model=384, encoder_layers=4, decoder_layers=4)
    return model, {"input_features": torch.empty(1, 80, 3000), "decoder_input_ids": _ids(8)}


def _t5() -> tuple[torch.nn.Module, dict[str, Any]]:
    return _model("T5Model"), {"input_ids": _ids(), "decoder_input_ids": _ids(8)}


def _clip() -> tuple[torch.nn.Module, dict[str, Any]]:
    return _model("CLIPModel"), {"input_ids": _ids(16), "pixel_values": _images()}


ENTRIES = {
    "resnet50": Entry(
        "ResNet-50", "Sixteen blocks, each with a way around it.", _pictures("ResNetForImageClassification")
    ),
    "mobilenetv2": Entry(
        "MobileNetV2", "Wide inside, narrow at the ends of each block.", _pictures("MobileNetV2ForImageClassification")
    ),
    "convnext": Entry(
        "ConvNeXt", "Convolutions in the form of a transformer.", _pictures("ConvNextForImageClassification")
    ),
    "vit": Entry("ViT-B/16", "An image as 196 words.", _pictures("ViTForImageClassification")),
    "swin": Entry("Swin", "Attention in windows that move.", _pictures("SwinForImageClassification")),
    "segformer": Entry(
        "SegFormer",
        "Four stages, whose results meet in one head.",
        _pictures("SegformerForSemanticSegmentation", 128),
    ),
    "bert": Entry("BERT base", "Twelve layers that are alike.", _texts("BertForSequenceClassification")),
    "gpt2": Entry("GPT-2", "A decoder with a table that it shares with its head.", _texts("GPT2LMHeadModel")),
    "llama": Entry(
        "Llama 2, 7B", "32 layers, 6.7 billion parameters, none of them in memory.", _texts("LlamaForCausalLM")
    ),
    "t5": Entry("T5 small", "An encoder and a decoder that looks at it.", _t5),
    "whisper": Entry("Whisper tiny", "Sound in, words out.", _whisper),
    "clip": Entry("CLIP", "Two networks, one for images and one for texts.", _clip),
}


def document(name: str) -> dict[str, Any]:
    """The module graphs of an architecture, as data."""
    import prepbench as pb
    from prepbench.document.codec import to_json

    try:
        with torch.device("meta"):
            model, call = ENTRIES[name].make()
            collection = pb.recursive_trace(model, inputs=[pb.Sample((), call)])
    except pb.PrepbenchError:  # it looks at values, which this device does not have
        if sum(parameter.numel() for parameter in model.parameters()) > _MOST:
            raise
        model, call = ENTRIES[name].make()
        collection = pb.recursive_trace(model, inputs=[pb.Sample((), call)])
    data: dict[str, Any] = json.loads(to_json(collection.document()))
    return data


def write(names: list[str]) -> None:
    """Write the packed documents of these architectures."""
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        data = json.dumps(without_paths(document(name)), sort_keys=True, separators=(",", ":")).encode()
        packed = gzip.compress(data, compresslevel=9, mtime=0)
        (FOLDER / f"{name}.graph.json").write_text(json.dumps({"gzip": base64.b64encode(packed).decode()}))
        sys.stdout.write(f"{name}: {len(packed) / 1000:.0f} kB\n")


def without_paths(value: Any) -> Any:
    """The document without the folders of the machine it was made on."""
    if isinstance(value, dict):
        return {key: _shorter(item) if key == "file" else without_paths(item) for key, item in value.items()}
    return [without_paths(item) for item in value] if isinstance(value, list) else value


def unpacked(graph: dict[str, Any]) -> Any:
    """The document that :func:`write` has packed."""
    return json.loads(gzip.decompress(base64.b64decode(graph["gzip"])))


def _shorter(file: Any) -> Any:
    return str(file).rpartition("site-packages/")[2] if file else file


def stage(folder: Path) -> None:
    """Write a page for each architecture, and the page that lists them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, entry in ENTRIES.items():
        graph = json.loads((FOLDER / f"{name}.graph.json").read_text())
        live = live_html(graph, '<div class="pb-picture"></div>')
        page = f"# {entry.title}\n\n{entry.about}\n\n```{{raw}} html\n{live}\n```\n"
        (folder / f"{name}.md").write_text(page)
        rows.append(f"| [{entry.title}]({name}.md) | {entry.about} |")
    toc = "\n".join(ENTRIES)
    (folder / "index.md").write_text(_INDEX.format(rows="\n".join(rows), toc=toc))


_INDEX = """# Gallery

Twelve known architectures, made from their configurations and without weights. Each page is live: click a module to
open it, type to search, choose what colours the boxes. `pb.recursive_trace(model, inputs=samples)` draws yours.

| architecture | what to look at |
|---|---|
{rows}

```{{toctree}}
:hidden:

{toc}
```
"""

if __name__ == "__main__":
    write(sys.argv[1:] or list(ENTRIES))
