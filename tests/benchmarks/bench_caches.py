"""Which sequence models compile with their caches, as one graph for prefill and decode.

The samples hold an empty cache and filled ones. A cell is ``equal`` when logits and the returned cache agree with the
model in float at prefill and decode of sizes that no sample had; else it says where they first differ, or the error.

``python -m tests.benchmarks.bench_caches [--families llama gemma2] [--targets eager]`` runs a part of it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from typing import Any

import torch

from tests.benchmarks.table import print_cells, print_table

TARGETS = ("eager", "onnxruntime", "openvino")
SAMPLES = ((2, 0, 5), (3, 11, 1), (2, 4, 2))
UNSEEN = ((1, 0, 7), (1, 12, 1), (4, 9, 3))

Make = Callable[[int, int, int], dict[str, Any]]


def _decoder(name: str, *, static: bool = False, mask: bool = True, positions: bool = False, **sizes: Any) -> Any:
    from transformers import DynamicCache, StaticCache

    from tests.zoo.huggingface import build
    from tests.zoo.huggingface.registry import ids

    model = build(name)[0]

    def make(batch: int, past: int, new: int) -> dict[str, Any]:
        text = model.config
        cache = StaticCache(config=text, max_cache_len=32) if static else DynamicCache(config=text)
        if static:
            heads = text.num_key_value_heads
            size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            cache.early_initialization(batch, heads, size, torch.float32, torch.device("cpu"))
        if past:
            with torch.no_grad():
                cache = model(input_ids=ids(batch, past), past_key_values=cache).past_key_values
        sample: dict[str, Any] = {"input_ids": ids(batch, new)}
        if mask:
            sample["attention_mask"] = torch.ones(batch, past + new, dtype=torch.long)
        if positions:
            sample["position_ids"] = past + torch.arange(new).expand(batch, new)
        return {**sample, "past_key_values": cache}

    return model, make


def _encoder_decoder(name: str, encoder: Callable[[int], dict[str, Any]]) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    from tests.zoo.huggingface import build
    from tests.zoo.huggingface.registry import ids

    model = build(name)[0]

    def make(batch: int, past: int, new: int) -> dict[str, Any]:
        cache: Any = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        with torch.no_grad():
            states = model.get_encoder()(**encoder(batch))
            if past:
                cache = model(
                    encoder_outputs=states, decoder_input_ids=ids(batch, past), past_key_values=cache
                ).past_key_values
        return {"encoder_outputs": states, "decoder_input_ids": ids(batch, new), "past_key_values": cache}

    return model, make


def _text(batch: int) -> dict[str, Any]:
    from tests.zoo.huggingface.registry import ids

    return {"input_ids": ids(batch, 7)}


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: _decoder("llama"),
    "llama, no mask": lambda: _decoder("llama", mask=False),
    "llama, positions": lambda: _decoder("llama", positions=True),
    "llama, static": lambda: _decoder("llama", static=True, mask=False, positions=True),
    "qwen3": lambda: _decoder("qwen3"),
    "mistral (sliding)": lambda: _decoder("mistral"),
    "gemma2 (hybrid)": lambda: _decoder("gemma2"),
    "gemma3 (hybrid)": lambda: _decoder("gemma3"),
    "mixtral": lambda: _decoder("mixtral"),
    "phi3": lambda: _decoder("phi3"),
    "deepseek_v3": lambda: _decoder("deepseek_v3"),
    "t5": lambda: _encoder_decoder("t5", _text),
    "bart": lambda: _encoder_decoder("bart", _text),
    "whisper": lambda: _encoder_decoder("whisper", lambda b: {"input_features": torch.randn(b, 8, 40)}),
    "mamba": lambda: _decoder("mamba", mask=False),
    "bamba": lambda: _decoder("bamba"),
}


def _difference(wanted: Any, found: Any) -> str:
    from torch.utils import _pytree

    from prepbench.objects.flatten import register_nodes

    names = ("logits", "past_key_values")
    one, other = ({name: getattr(value, name) for name in names} for value in (wanted, found))
    register_nodes((one, other))
    pairs = [dict(_pytree.tree_flatten_with_path(value)[0]) for value in (one, other)]
    tensors = [{_pytree.keystr(k): v for k, v in pair.items() if isinstance(v, torch.Tensor)} for pair in pairs]
    if tensors[0].keys() != tensors[1].keys():
        return f"structure: {sorted(tensors[0].keys() ^ tensors[1].keys())[:2]}"
    for place, expected in tensors[0].items():
        got = tensors[1][place]
        if got.shape != expected.shape:
            return f"shape of {place}: {tuple(got.shape)}, not {tuple(expected.shape)}"
        if not torch.allclose(got.float(), expected.float(), rtol=1e-3, atol=1e-3):
            return f"{place} by {(got - expected).abs().max():.2g}"
    return ""


def _cell(model: Any, make: Make, target: str, reuse: Any) -> str:
    import prepbench as pb

    deployments = {
        "eager": pb.EagerDeployment,
        "onnxruntime": pb.OnnxRuntimeDeployment,
        "openvino": pb.OpenVinoDeployment,
    }
    compiled = pb.compile_model(
        model,
        tracing_inputs=[make(*sizes) for sizes in SAMPLES],
        deployment_settings=deployments[target](),
        fullgraph=False,
        reuse=reuse,
    )
    wrong = []
    for sizes in (*SAMPLES, *UNSEEN):
        sample = make(*sizes)
        with torch.no_grad():
            wanted = model(**copy.deepcopy(sample))
        try:
            difference = _difference(wanted, compiled(**copy.deepcopy(sample)))
        except Exception as error:
            difference = f"{type(error).__name__}: {error}"
        wrong += [f"{sizes}: {difference}"] if difference else []
    leaves = f", {len(compiled.report.fallbacks)} in PyTorch" if compiled.report.fallbacks else ""
    return ("; ".join(wrong) or "equal") + leaves


def measure(name: str, targets: list[str]) -> None:
    """Print the cells of one family."""
    import logging

    import prepbench as pb

    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    model, make = FAMILIES[name]()
    reuse = pb.KeptStages()
    print_cells(targets, lambda target: _cell(model, make, target, reuse))


def main() -> int:
    """Print a row for each family, then each error in full; returns 1 if there is one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--one", action="store_true", help="measure the only family in this process")
    given = parser.parse_args()
    if given.one:
        measure(given.families[0], given.targets)
        return 0
    return bool(
        print_table("tests.benchmarks.bench_caches", dict.fromkeys(given.families, ""), given.targets, width=36)
    )


if __name__ == "__main__":
    raise SystemExit(main())
