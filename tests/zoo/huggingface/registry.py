"""Small configurations, inputs, and the registry of architectures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Samples = list[Any]
Built = tuple[torch.nn.Module, Samples]

ARCHITECTURES: dict[str, Callable[[], Built]] = {}

LEAVES: dict[str, tuple[str, ...]] = {
    # a size is divided by a tensor, and a flag is read from the mask
    "longformer": ("encoder",),
    # loops over the sequence; Mamba's also keeps its state in an object that the backbone makes
    "mamba": ("backbone",),
    # and RWKV's attention returns the state that it was given, which the next block writes into
    "rwkv": ("rwkv",),
    # a loop over the experts that were hit
    "switch_transformers": ("decoder.block.1.layer.2.mlp.experts", "encoder.block.1.layer.1.mlp.experts"),
    # positions are interpolated unless the image has the size of the configuration, as one sample has
    "dinov2": ("embeddings",),
    # a loop over the images of the batch
    "vilt": ("embeddings",),
}
"""The modules that no single graph can hold; all other architectures are captured whole."""

LOOPS = ("mamba", "rwkv")
"""Of these, what becomes one operator in programs, and is a leaf in graphs of modules."""

DECODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENCODER = {
    key: DECODER[key]
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
} | {"max_position_embeddings": 64, "pad_token_id": 0}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def build(name: str) -> Built:
    """The architecture with seeded weights, in eval mode, and its samples: batch and length vary where they may."""
    torch.manual_seed(0)
    model, samples = ARCHITECTURES[name]()
    return model.eval(), samples


def register(name: str, make: Callable[[], Built]) -> None:
    ARCHITECTURES[name] = make


def family(make: Callable[[], Built]) -> Callable[[], Built]:
    """Register a function under its name."""
    register(make.__name__, make)
    return make


def ids(batch: int, length: int) -> torch.Tensor:
    """Token ids from 3: 0 to 2 mean padding, begin and end."""
    return torch.randint(3, 99, (batch, length))


def text(*sizes: tuple[int, int], mask: bool = True) -> Samples:
    """Samples of token ids, with a mask whose first tokens of the first row are padding."""
    samples = []
    for batch, length in sizes:
        sample = {"input_ids": ids(batch, length)}
        if mask:
            sample["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        samples.append(sample)
    return samples


def images(*batches: int, size: int = 32) -> Samples:
    """Samples of images; only the batch varies."""
    return [{"pixel_values": torch.randn(batch, 3, size, size)} for batch in batches]


def hf(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Inside the block, transformers and pytree log errors only."""
    loggers = [logging.getLogger(name) for name in ("transformers", "torch.utils._pytree")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
