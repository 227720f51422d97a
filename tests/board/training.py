"""Training for the board: a minute each, the same weights in every run; they are kept in ``build/board``."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

KEPT = Path(__file__).parents[2] / "build" / "board"

Loss = Callable[..., torch.Tensor]
"""The loss of a network on a batch: takes the network, then the tensors of the batch."""


def classification(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy, with labels that are a little unsure."""
    return nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)


def kept(name: str, make: Callable[[], nn.Module], train: Callable[[nn.Module], object]) -> nn.Module:
    """Return a network in evaluation mode, with the weights of an earlier run, or trained now.

    Args:
        name: of the file of weights, with anything that the weights depend on beside the network's layers.
        make: the network before training.
        train: trains it in place.
    """
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model = make()
    file = KEPT / f"{name}-{zlib.crc32(repr(model).encode()):08x}.safetensors"
    if file.exists():
        model.load_state_dict(load_file(file))
        return model.eval()
    with torch.enable_grad():
        train(model)
    KEPT.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, file)
    return model.eval()


def trained(
    name: str,
    make: Callable[[], nn.Module],
    data: Sequence[torch.Tensor],
    epochs: int,
    loss: Loss = classification,
    *,
    batch: int = 64,
    rate: float = 6e-3,
) -> nn.Module:
    """Return a network that has seen all data so many times.

    Args:
        name: of the file of weights.
        make: the network before training.
        data: tensors with a row for each item.
        epochs: how often each item is seen.
        loss: of the network and a batch of ``data``.
        batch: items in a step.
        rate: the highest learning rate.
    """

    def train(model: nn.Module) -> None:
        count = len(data[0])
        steps = epochs * -(-count // batch)
        optimizer = torch.optim.AdamW(model.parameters(), rate / 2, weight_decay=0.01)
        schedule: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, steps)
        for _ in range(epochs):
            for places in torch.randperm(count).split(batch):
                optimizer.zero_grad()
                loss(model, *(each[places] for each in data)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if schedule.last_epoch < steps - 1:
                    schedule.step()

    return kept(f"{name}-{epochs}-{len(data[0])}", make, train)
