"""The report of each layer: how it was quantized, and how well."""

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
        block_size: how many inputs share a scale of the weights; 0 for a scale for each channel or for all.
        observer: how the range of what enters it was learned; empty when that is in float.
        input_range: smallest and largest value that its input's integers stand for.
        scale_range: smallest and largest scale of its weights.
        sqnr: SQNR of its output on calibration samples in dB, with inputs in float up to it; None when not measured.
        note: a remark on how it was quantized.
        bits_to_measure: bits of the weights among which measuring the layer decides; in a dry run only, where
            ``weights_bits`` is the smallest of them.
    """

    fqn: str
    type: str
    parameters: int
    weights_bits: int = 32
    activations_bits: int = 32
    rule: str = "global"
    reason: str = ""
    block_size: int = 0
    observer: str = ""
    input_range: tuple[float, float] | None = None
    scale_range: tuple[float, float] | None = None
    sqnr: float | None = None
    note: str = ""
    bits_to_measure: tuple[int, ...] = ()

    @property
    def quantized(self) -> bool:
        """Whether its weights have fewer than 32 bits."""
        return self.weights_bits < 32

    @property
    def summary(self) -> str:
        """The outcome in a few words."""
        if not self.quantized:
            return f"float: {self.reason}" if self.reason else "float"
        if self.bits_to_measure:
            return f"{' or '.join(map(str, self.bits_to_measure))} bits, to be measured"
        kind = f"int{self.weights_bits}"
        if self.activations_bits == 32:
            return f"{kind} weights"
        return kind if self.activations_bits == self.weights_bits else f"{kind}, int{self.activations_bits} activations"
