"""Tiny models of many families that generate, and the calls that their generation makes."""

from __future__ import annotations

from typing import Any

import torch

import prepbench as pb
from tests.compile.generating import make_samples

FAMILIES = {
    "llama": "grouped heads",
    "qwen2": "grouped heads",
    "qwen3": "grouped heads",
    "phi3": "grouped heads",
    "olmo2": "grouped heads",
    "cohere": "grouped heads",
    "stablelm": "grouped heads",
    "gpt2": "dense",
    "gpt_neox": "dense",
    "opt": "dense",
    "bloom": "dense",
    "falcon": "one head of keys",
    "mistral": "sliding window",
    "gemma2": "sliding window and full",
    "gemma3": "sliding window and full",
    "mixtral": "mixture of experts",
    "qwen2_moe": "mixture of experts",
    "olmoe": "mixture of experts",
    "deepseek_v3": "latent keys, experts",
    "mamba": "state space",
    "mamba2": "state space",
    "bamba": "state space and attention",
    "t5": "encoder-decoder",
    "bart": "encoder-decoder",
    "whisper": "audio",
    "llava": "vision-language",
}
NEW_TOKENS = 16
_IMAGE_TOKEN = 99


class Family:
    """A model of the zoo whose tokens depend on all of it.

    Args:
        name: one of :data:`FAMILIES`.
    """

    def __init__(self, name: str) -> None:
        from tests.zoo.huggingface import build

        self.name = name
        self.model: Any = build(name)[0]
        for parameter in self.model.parameters():  # the logits of small weights are so close that rounding decides
            parameter.data.mul_(4.0) if parameter.dim() > 1 else None
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.forced_eos_token_id = None

    def generate(self, batch: int, length: int, new_tokens: int = NEW_TOKENS) -> torch.Tensor:
        """The tokens that the model generates after seeded prompts, greedily."""
        found: torch.Tensor = self.model.generate(
            **self._prompts(batch, length), max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
        )
        return found

    def steps(self) -> list[pb.Sample]:
        """Calls of generation: all of them, or without the first where the model computes other things in it."""
        with pb.record_inputs(self.model, distinct_shapes=True) as recorded:
            self.generate(2, 5, 3)
            self.generate(3, 7, 4)
        kind = FAMILIES[self.name]
        if kind.startswith("sliding"):  # the length of the mask tells what a full window has seen
            return [pb.Sample((), call) for call in make_samples(self.model)]
        one_graph = not kind.startswith(("state", "encoder", "audio", "vision"))
        return [sample for sample in recorded if one_graph or not _is_first(sample.kwargs)]

    def _prompts(self, batch: int, length: int) -> dict[str, Any]:
        torch.manual_seed(100 * batch + length)
        if self.model.main_input_name == "input_features":
            return {"input_features": torch.randn(batch, 8, 40)}
        images = FAMILIES[self.name].startswith("vision")
        ids = torch.randint(3, _IMAGE_TOKEN, (batch, length + 17 * images))
        prompts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if not images:
            return prompts
        ids[:, 1:17] = _IMAGE_TOKEN
        return {**prompts, "pixel_values": torch.randn(batch, 3, 32, 32)}


def _is_first(call: dict[str, Any]) -> bool:
    cache = call.get("past_key_values", call.get("cache_params"))
    if hasattr(cache, "is_updated"):
        return not all(cache.is_updated.values())
    ids: torch.Tensor = call["input_ids"]
    return ids.shape[1] > 1
