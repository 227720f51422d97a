"""Random vectors at the outputs of a model, by which backward passes measure noise there."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import torch

from prepbench.running.sqnr import powers


class OutputVectors:
    """Random vectors at the outputs of a graph whose products with an error there are its noise, in the mean.

    Args:
        outputs: the results in float for each sample.
        logits: the outputs that predict tokens, to measure a divergence; all floating-point outputs if there are none.
    """

    def __init__(self, outputs: Sequence[tuple[Any, ...]], logits: Collection[int]) -> None:
        self.in_nats = bool(logits)
        self._scale: dict[int, float] = {}
        for index in range(len(outputs[0]) if outputs else 0):
            each = [one[index] for one in outputs]
            if (index in logits or not logits) and isinstance(each[0], torch.Tensor) and each[0].is_floating_point():
                total = (
                    float(sum(one.numel() // max(1, one.shape[-1]) for one in each))
                    if logits
                    else sum(powers(one, one).signal for one in each)
                )
                self._scale[index] = math.sqrt((0.5 if logits else 1.0) / total) if total else 0.0

    def rows(self, outputs: Sequence[Any]) -> int:
        """How many rows all outputs that count have; 1 where they differ."""
        rows = {outputs[index].shape[0] if outputs[index].ndim else 1 for index in self._scale}
        return rows.pop() if len(rows) == 1 else 1

    def vectors(self, outputs: Sequence[Any], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Outputs that have a gradient, and a random vector for each."""
        generator = torch.Generator().manual_seed(seed)
        pairs = []
        for index, scale in self._scale.items():
            output = outputs[index]
            vector = torch.randn(output.shape, generator=generator).to(output)
            if self.in_nats:
                likely = output.detach().softmax(-1)
                root = likely.sqrt()
                vector = root * vector - likely * (root * vector).sum(-1, keepdim=True)
            if output.requires_grad:
                pairs.append((output, vector * scale))
        return pairs
