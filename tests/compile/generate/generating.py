"""A small language model with a cache, compiled for a few targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import prepbench as pb

TARGETS = {
    "eager": pb.EagerDeployment(),
    "ONNX Runtime": pb.OnnxRuntimeDeployment(),
    "OpenVINO": pb.OpenVinoDeployment(),
}
PROMPTS = torch.tensor([[5, 9, 2, 17, 30], [7, 7, 21, 4, 11]])


def make_model(layers: int = 2) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():  # the logits of small weights are so close that rounding decides
        parameter.data.mul_(4.0) if parameter.dim() > 1 else None
    return model


def make_sample(model: Any, batch: int, past: int, new: int, *, positions: bool = False) -> dict[str, Any]:
    """A call with a cache of ``past`` tokens, which may be none, and ``new`` further ones."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    if past:
        with torch.no_grad():
            cache = model(input_ids=torch.ones(batch, past, dtype=torch.long), past_key_values=cache).past_key_values
    sample = {"input_ids": torch.ones(batch, new, dtype=torch.long)}
    sample["attention_mask"] = torch.ones(batch, past + new, dtype=torch.long)
    if positions:
        sample["position_ids"] = past + torch.arange(new).expand(batch, new)
    return {**sample, "past_key_values": cache}


def make_samples(model: Any, *, positions: bool = False) -> list[dict[str, Any]]:
    return [make_sample(model, *sizes, positions=positions) for sizes in ((2, 0, 5), (3, 11, 1), (2, 4, 2))]


def compile_for(model: Any, names: Mapping[str, Any] = TARGETS, **options: Any) -> dict[str, pb.CompiledModel]:
    reuse, samples = pb.KeptStages(), make_samples(model, **options)
    return {
        name: pb.compile_model(model, tracing_inputs=samples, deployment_settings=settings, reuse=reuse)
        for name, settings in names.items()
    }
