"""The report of each layer: its quantization and its exactness; and of each tensor: its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from prepbench.settings.numbers import FLOAT32, NumberFormat, format_named, format_of_bits


@dataclass(frozen=True)
class LayerReport:
    """One layer of the model after quantization.

    Attributes:
        fqn: the layer.
        type: its class name.
        parameters: number of elements of its parameters.
        weights_bits: bits of its weights; 32 when left in float.
        activations_bits: bits of its inputs; 32 when left in float.
        rule: the settings key that decided, or ``"global"``.
        reason: why it, or a part of it, stayed in float; empty when nothing did.
        block_size: how many inputs share a scale of the weights; 0 for a scale for each channel or for all.
        observer: how the range of its inputs was learned; empty when they are in float.
        input_range: smallest and largest value that its input's integers stand for.
        scale_range: smallest and largest scale of its weights.
        sqnr: SQNR of its output on calibration samples in dB, with inputs in float up to it; None when not measured.
        note: a remark on its quantization.
        bits_to_measure: bits of the weights among which measuring the layer decides; in a dry run only, where
            ``weights_bits`` is the smallest of them.
        stored_bits: bits of each of its weights in the lowered program, read from there; None where that is opaque.
            Kernels that read integers of activations read weights of 8 bits, so those of 4 are stored in 8.
        weights_format: the name of their format where their bits mean another.
    """

    fqn: str
    type: str
    parameters: int
    weights_bits: int = FLOAT32.bits
    activations_bits: int = FLOAT32.bits
    rule: str = "global"
    reason: str = ""
    block_size: int = 0
    observer: str = ""
    input_range: tuple[float, float] | None = None
    scale_range: tuple[float, float] | None = None
    sqnr: float | None = None
    note: str = ""
    bits_to_measure: tuple[int, ...] = ()
    stored_bits: float | None = None
    weights_format: str = ""

    @property
    def weights(self) -> NumberFormat:
        """Return the format of its weights."""
        return format_named(self.weights_format) or format_of_bits(self.weights_bits)

    @property
    def quantized(self) -> bool:
        """Whether its weights have fewer bits than in float."""
        return self.weights_bits < FLOAT32.bits

    @property
    def summary(self) -> str:
        """Return a short text of the outcome."""
        if not self.quantized:
            return f"float: {self.reason}" if self.reason else "float"
        if self.bits_to_measure:
            return f"{' or '.join(map(str, self.bits_to_measure))} bits, to be measured"
        weights, activations = self.weights, format_of_bits(self.activations_bits)
        kind = weights.name
        if activations.is_float:
            kind = f"{kind} weights"
        elif activations != weights:
            kind = f"{kind}, {activations.name} activations"
        return kind if self.stored_bits in (None, self.weights_bits) else f"{kind}, stored in {self.stored_bits:g} bits"


QUANTIZED, BY_RULE, FLOAT, NOT_REACHED = "quantized", "float by rule", "float", "not reached"
"""The outcomes of a parameter or buffer."""

NOT_CALLED = "not called on the tracing inputs"
"""The reason of a layer that no graph calls."""


@dataclass(frozen=True)
class TensorReport:
    """One parameter, buffer or constant of the model, and its outcome. Tied ones share a row.

    Attributes:
        fqn: its name in the model.
        kind: ``"parameter"``, ``"buffer"`` or ``"constant"``.
        layer: the layer that it is a weight of; empty for none.
        elements: how many numbers it holds.
        bytes: its size in the original model.
        bits: of each number as it is computed with.
        outcome: ``"quantized"``, ``"float by rule"``, ``"float"`` or ``"not reached"``, which is: by the graph.
        reason: why it is not quantized, or that it is one of several that a quantized weight is computed from.
        names: further names that it has in the model.
    """

    fqn: str
    kind: str
    layer: str
    elements: int
    bytes: int
    bits: int
    outcome: str
    reason: str = ""
    names: tuple[str, ...] = ()
