"""What quantization made of each layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerReport:
    """One layer of the model after quantization.

    Attributes:
        fqn: the layer.
        type: its class name.
        parameters: number of elements of its parameters.
        weights_bits: bits of its weights; 32 when left in float.
        activations_bits: bits of what enters it; 32 when left in float.
        rule: the settings key that decided, or ``"global"``.
        reason: why it, or a part of it, stayed in float; empty when nothing did.
    """

    fqn: str
    type: str
    parameters: int
    weights_bits: int = 32
    activations_bits: int = 32
    rule: str = "global"
    reason: str = ""

    @property
    def quantized(self) -> bool:
        """Whether its weights have fewer than 32 bits."""
        return self.weights_bits < 32

    @property
    def summary(self) -> str:
        """The outcome in a few words."""
        if not self.quantized:
            return f"float: {self.reason}" if self.reason else "float"
        kind = f"int{self.weights_bits}"
        return kind if self.activations_bits < 32 else f"{kind} weights"
