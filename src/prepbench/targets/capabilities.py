"""Whether a target supports the quantization settings."""

from __future__ import annotations

from collections.abc import Iterable

from prepbench.errors import SettingsError
from prepbench.quantize import Constraint, Placement
from prepbench.settings import DeploymentSettings, ExplainedLayer, QuantizationSettings
from prepbench.targets.base import Target

# what several targets lack
NO_TABLES = Constraint(lambda call: call.layer.is_lookup, "this target looks embeddings up in float")
NO_TRANSPOSED = Constraint(
    lambda call: call.layer.is_transposed, "no int8 form of transposed convolutions for this target"
)
NO_RECURRENT = Constraint(lambda call: call.layer.is_recurrent, "no integer form of recurrent layers for this target")


def check_settings(target: Target, settings: DeploymentSettings, explained: Iterable[ExplainedLayer]) -> None:
    """Raise ``SettingsError`` for the first layer whose settings the target does not support; it lists the supported
    ones.
    """
    placement = target.placement
    for layer in explained:
        if layer.settings is None:
            continue
        problem = unsupported(layer.settings, placement)
        if problem:
            rule = "quantization_settings" if layer.rule == "global" else f"layer_quantization_settings[{layer.rule!r}]"
            raise SettingsError(
                f"{type(settings).__name__} does not support {problem}, which {rule} asks for (layer {layer.fqn!r}). "
                f"It supports: {supported(placement)}."
            )


def unsupported(settings: QuantizationSettings, placement: Placement) -> str:
    """Return the requested features that the target lacks; empty if it has all of them."""
    bits = settings.weights_num_bits
    listed = (bits,) if isinstance(bits, int) else tuple(bits)
    blocks = settings.weights_only_quantization_block_size
    if settings.prefer_weights_only_quantization:
        missing = [number for number in listed if number not in placement.weights_only_bits]
        if missing:
            return f"{missing[0]}-bit weights with activations in float"
        if blocks != 0 and not placement.block_sizes:
            return "scales for blocks of weights"
        return ""
    missing = [number for number in listed if number not in placement.weights_bits]
    if missing:
        return f"{missing[0]}-bit weights with quantized activations"
    if settings.activations_num_bits not in placement.activations_bits:
        return f"{settings.activations_num_bits}-bit activations"
    return ""


def supported(placement: Placement) -> str:
    """Return the features of a target in words."""

    def bits(numbers: tuple[int, ...]) -> str:
        return " or ".join(map(str, sorted(numbers)))

    parts = []
    if placement.weights_bits:
        parts.append(f"weights of {bits(placement.weights_bits)} bits with activations of ")
        parts[-1] += f"{bits(placement.activations_bits)} bits"
    if placement.weights_only_bits:
        blocks = ", with or without blocks" if placement.block_sizes else ""
        parts.append(f"weights of {bits(placement.weights_only_bits)} bits with activations in float{blocks}")
    return "; ".join(parts) or "no quantization"
