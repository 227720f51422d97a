"""Tiny models of many families that generate, and the calls that their generation makes."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch

import prepbench as pb
from prepbench.objects.flatten import fixed_numbers, is_mark, register_nodes
from tests.benchmarks.further_families import FURTHER, build_further
from tests.compile.generate.generating import make_samples

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
} | {name: kind for name, (kind, _) in FURTHER.items()}
NEW_TOKENS = 16
_IMAGE_TOKEN = 99


class Family:
    """A model of the zoo whose tokens depend on all of it.

    Args:
        name: one of :data:`FAMILIES`.
        dtype: what the weights are rounded to.
    """

    def __init__(self, name: str, dtype: torch.dtype = torch.float32) -> None:
        from tests.zoo.huggingface import build

        self.name, self.dtype = name, dtype
        self.model: Any = build_further(name) if name in FURTHER else build(name)[0]
        for parameter in self.model.parameters():  # the logits of small weights are so close that rounding decides
            parameter.data.mul_(4.0) if parameter.dim() > 1 else None
        self.model.to(dtype)
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.forced_eos_token_id = None

    def in_float32(self) -> Family:
        """The same weights, computed in float32."""
        other = copy.copy(self)
        other.model, other.dtype = copy.deepcopy(self.model).float(), torch.float32
        return other

    @functools.cached_property
    def logits_type(self) -> torch.dtype:
        """Of the model's own logits."""
        types: list[torch.dtype] = []
        hook = self.model.register_forward_hook(lambda _model, _args, result: types.append(result.logits.dtype))
        self.generate(2, 5, 1)
        hook.remove()
        return types[0]

    def generate(self, batch: int, length: int, new_tokens: int = NEW_TOKENS) -> torch.Tensor:
        """The tokens that the model generates after seeded prompts, greedily."""
        found: torch.Tensor = self.model.generate(
            **self.prompts(batch, length), max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
        )
        return found

    def steps(self) -> list[pb.Sample]:
        """Calls of generation: all of them, or without the first where the model computes other things in it."""
        with pb.record_inputs(self.model, distinct_shapes=True) as recorded:
            self.generate(2, 5, 3)
            self.generate(3, 7, 4)
        if FAMILIES[self.name].startswith("sliding"):  # the length of the mask tells what a full window has seen
            return [pb.Sample((), call) for call in make_samples(self.model)]
        one_graph = len({_form(sample.kwargs) for sample in recorded}) == 1
        return [
            sample for sample in recorded if one_graph or _form(sample.kwargs) == _form(recorded.samples[-1].kwargs)
        ]

    def prompts(self, batch: int, length: int) -> dict[str, Any]:
        """Seeded prompts, as a tokenizer or processor returns them."""
        torch.manual_seed(100 * batch + length)
        if self.model.main_input_name == "input_features":
            return {"input_features": torch.randn(batch, 8, 40).to(self.dtype)}
        images = FAMILIES[self.name].startswith("vision")
        ids = torch.randint(3, _IMAGE_TOKEN, (batch, length + 17 * images))
        prompts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if not images:
            return prompts
        ids[:, 1:17] = _IMAGE_TOKEN
        return {**prompts, "pixel_values": torch.randn(batch, 3, 32, 32).to(self.dtype)}


def _form(call: dict[str, Any]) -> tuple[frozenset[str], frozenset[tuple[str, Any]]]:
    """What one graph has one answer for: which arguments there are, and what caches mark as done."""
    register_nodes(call)
    marks = {(path, value) for path, value in fixed_numbers((), (), call).items() if is_mark(path, value)}
    return frozenset(name for name, value in call.items() if value is not None), frozenset(marks)
