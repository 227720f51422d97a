"""What a simulation is asked for: layers that it has, each with one kind of settings."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from prepbench.checks import check_type, described
from prepbench.errors import InputError, SettingsError
from prepbench.settings import QuantizationSettings

_SINGLE = ("weights_num_bits", "weights_only_quantization_block_size")


def check_layer(fqn: object, layers: Sequence[str]) -> None:
    """Raise ``InputError``, with the nearest names, unless there is such a layer."""
    if fqn in layers:
        return
    near = difflib.get_close_matches(str(fqn), layers, 3, 0.4)
    hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else "See simulation.layers."
    raise InputError(f"There is no layer {described(fqn)} that this target can quantize. {hint}")


def check_settings(fqn: str, settings: object) -> None:
    """Raise ``SettingsError`` unless these are settings that name one number of bits and one block size."""
    check_type(f"settings[{fqn!r}]", settings, QuantizationSettings, "Give pb.QuantizationSettings(), or None.")
    assert isinstance(settings, QuantizationSettings)
    several = [field for field in _SINGLE if not isinstance(getattr(settings, field), int)]
    if several:
        raise SettingsError(
            f"settings[{fqn!r}].{several[0]} names several values, {getattr(settings, several[0])}, and a layer is "
            "simulated with one. Give one of them; settings.candidates() lists what they stand for."
        )
