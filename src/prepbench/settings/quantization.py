"""What to quantize, and how: global settings and overrides for layers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from prepbench.settings.validation import Settings, check_choice


@dataclass(frozen=True, kw_only=True)
class QuantizationSettings(Settings):
    """How layers are quantized unless a layer's own settings say otherwise.

    Attributes:
        weights_num_bits: bits of the weights: 8.
        activations_num_bits: bits of the activations that enter and leave a layer: 8.
        prefer_weights_only_quantization: quantize weights and leave activations in float.
        per_channel: one scale for each output channel of a weight; otherwise one for the whole tensor.

    Example:
        >>> QuantizationSettings(prefer_weights_only_quantization=True).to_dict()["weights_num_bits"]
        8
    """

    weights_num_bits: int = 8
    activations_num_bits: int = 8
    prefer_weights_only_quantization: bool = False
    per_channel: bool = True

    def __post_init__(self) -> None:
        check_choice(self, "weights_num_bits", (8,))
        check_choice(self, "activations_num_bits", (8,))
        check_choice(self, "prefer_weights_only_quantization", (True, False))
        check_choice(self, "per_channel", (True, False))


@dataclass(frozen=True, kw_only=True)
class LayerQuantizationSettings(Settings):
    """Overrides for the layers that a key of ``layer_quantization_settings`` matches; ``None`` keeps the global value.

    Attributes:
        skip_quantization: leave the layer in float.
        weights_num_bits: see :class:`QuantizationSettings`; so for the others.

    Example:
        >>> LayerQuantizationSettings(skip_quantization=True).applied_to(QuantizationSettings()) is None
        True
    """

    skip_quantization: bool = False
    weights_num_bits: int | None = None
    activations_num_bits: int | None = None
    prefer_weights_only_quantization: bool | None = None
    per_channel: bool | None = None

    def __post_init__(self) -> None:
        check_choice(self, "skip_quantization", (True, False))
        check_choice(self, "weights_num_bits", (8, None))
        check_choice(self, "activations_num_bits", (8, None))
        check_choice(self, "prefer_weights_only_quantization", (True, False, None))
        check_choice(self, "per_channel", (True, False, None))

    def applied_to(self, base: QuantizationSettings) -> QuantizationSettings | None:
        """The settings of a layer with these overrides, or None if it stays in float."""
        if self.skip_quantization:
            return None
        changed = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "skip_quantization"}
        return replace(base, **{name: value for name, value in changed.items() if value is not None})
