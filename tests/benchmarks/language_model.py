"""A small language model of bytes, trained on the help texts that ship with Python, and its perplexity."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

STEPS, BATCH, LENGTH = 500, 8, 128
WINDOW = 256
PAGE = 4096
SIZES = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


class Predictor(nn.Module):
    """Logits of the next byte, of shape (batch, length, 256), for bytes of shape (batch, length)."""

    def __init__(self, **sizes: object) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        self.model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **sizes}))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def text() -> torch.Tensor:
    """Python's help texts as bytes."""
    from pydoc_data.topics import topics

    return torch.tensor(list("\n".join(topics[key] for key in sorted(topics)).encode()))


def _split() -> tuple[torch.Tensor, torch.Tensor]:
    """What is trained on, and the tenth page of every ten, which is held out."""
    data = text()
    pages = data[: len(data) // PAGE * PAGE].reshape(-1, PAGE)
    held_out = torch.arange(len(pages)) % 10 == 9
    return pages[~held_out].flatten(), pages[held_out].flatten()


def windows(count: int, length: int = LENGTH, seed: int = 1) -> list[torch.Tensor]:
    """Pieces of the text that is trained on, each of shape (4, length)."""
    train, _ = _split()
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(train) - length, (count, 4), generator=generator)
    return [torch.stack([train[start : start + length] for start in row]) for row in starts.tolist()]


def trained(seed: int = 0, **sizes: object) -> Predictor:
    """The model after some minutes of training; kept in the folder for temporary files.

    Args:
        seed: of the weights that training begins with, and of the order of the text.
        sizes: of its configuration, where they are not :data:`SIZES`.
    """
    key = repr((SIZES, sizes, STEPS, BATCH, LENGTH, torch.__version__) + ((seed,) if seed else ()))
    path = Path(tempfile.gettempdir()) / f"prepbench-language-model-{hashlib.sha256(key.encode()).hexdigest()[:12]}.pt"
    torch.manual_seed(seed)
    model = Predictor(**sizes)
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    train, _ = _split()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    for step in range(STEPS):
        starts = torch.randint(0, len(train) - LENGTH - 1, (BATCH,)).tolist()
        batch = torch.stack([train[start : start + LENGTH + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"trained {step + 1} of {STEPS} steps, loss {float(loss):.3f}", file=sys.stderr, flush=True)
    torch.save(model.state_dict(), path)
    return model.eval()


def held_out() -> torch.Tensor:
    """All of the text that is held out, in pieces, of shape (pieces, :data:`WINDOW`)."""
    _, held = _split()
    return held[: len(held) // WINDOW * WINDOW].reshape(-1, WINDOW)


@torch.no_grad()
def predictions(logits: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Logarithms of the probabilities of each byte after all bytes of held-out text, the last ones left out."""
    pieces = [logits(batch)[:, :-1].float().log_softmax(-1) for batch in held_out().split(8)]
    return torch.cat(pieces)


def losses(predicted: torch.Tensor) -> torch.Tensor:
    """Nats for each byte, a mean for each piece of held-out text, of what :func:`predictions` gives."""
    right = predicted.gather(-1, held_out()[:, 1:, None]).squeeze(-1)
    return -right.mean(1)


def perplexity(logits: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Of held-out text: how many bytes the model hesitates between."""
    return float(losses(predictions(logits)).mean().exp())
