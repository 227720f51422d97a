"""The outcome of pruning for each layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PrunedLayer:
    """The outcome of pruning for one layer.

    Attributes:
        fqn: the layer.
        type: its class name.
        mask_type: the unit of pruning; empty where nothing was removed.
        rule: the settings key that decided, or ``"global"``.
        parameters: how many numbers its parameters had.
        left: how many of them are stored, without channels that are gone.
        zeros: how many of the stored ones are zero by a mask.
        channels: how many channels its output had.
        removed_channels: how many of them are gone, by its own settings or with a layer that makes the same channels.
        reason: why nothing, or less than the settings ask for, was removed.
    """

    fqn: str
    type: str
    mask_type: str = ""
    rule: str = "global"
    parameters: int = 0
    left: int = 0
    zeros: int = 0
    channels: int = 0
    removed_channels: int = 0
    reason: str = ""

    @property
    def sparsity(self) -> float:
        """The share of its parameters that is removed or zero."""
        return 1 - (self.left - self.zeros) / self.parameters if self.parameters else 0.0

    @property
    def summary(self) -> str:
        """Return a short text of the outcome."""
        if self.left == self.parameters and not self.zeros:
            return f"dense: {self.reason}" if self.reason else "dense"
        parts = [f"{self.removed_channels} of {self.channels} channels removed"] if self.removed_channels else []
        parts += [f"{self.zeros / self.left:.0%} of the weights are zero ({self.mask_type})"] if self.zeros else []
        if not parts:
            stay = f" (its own stay: {self.reason})" if self.reason else ""
            parts = [f"{self.sparsity:.0%} smaller with the channels that it reads{stay}"]
        return ", ".join(parts)
