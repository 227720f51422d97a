"""The modality of one row of an input or output: an image, audio, text or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch

from prepbench.checks import described
from prepbench.errors import SettingsError

Modality = Literal["image", "audio", "text", "numbers"]
"""What a person perceives in a tensor, in the words that data sets and model cards use."""

MODALITIES: tuple[Modality, ...] = get_args(Modality)
SAMPLING_RATE = 16_000
"""Samples in a second where none are given: what most models of speech take."""

SMALLEST_SIDE = 4
"""Pixels of the shorter side of an image."""

_CLIP = 800  # values of the shortest clip: a twentieth of a second at the usual rate
_FULL = 1.0  # values of a waveform are shares of the full scale


def modality_of(values: torch.Tensor | None, name: str = "") -> Modality:
    """Return the modality of one row, as its shape, type and values tell.

    - image: bytes or floating-point numbers of shape (channels, height, width) or (height, width, channels), with 1 or
      3 channels, and 4 pixels or more at each side;
    - audio: at least 800 floating-point numbers of shape (time,), or (channels, time) with 1 or 2 channels, all between
      -1 and 1, and of both signs;
    - text: integers of shape (tokens,), unless the name tells of a mask or of positions;
    - numbers: all else.

    Args:
        values: without the batch dimension.
        name: of the input or output.

    Example:
        >>> modality_of(torch.rand(3, 32, 32)), modality_of(torch.linspace(-1, 1, 16000)), modality_of(torch.ones(8))
        ('image', 'audio', 'numbers')
    """
    if values is None or values.numel() == 0 or values.is_complex() or values.dtype == torch.bool:
        return "numbers"
    if channels_first(values) is not None and (values.is_floating_point() or values.dtype == torch.uint8):
        return "image"
    if values.is_floating_point():
        return "audio" if _is_waveform(values) else "numbers"
    is_text = values.dim() == 1 and "mask" not in name and "position" not in name
    return "text" if is_text and values.dtype != torch.uint8 else "numbers"


def channels_first(values: torch.Tensor) -> bool | None:
    """Return whether the channels of an image come before height and width; None for what has not its shape."""
    if values.dim() != 3:
        return None
    for first, channels, sides in ((True, 0, (1, 2)), (False, 2, (0, 1))):
        if values.shape[channels] in (1, 3) and all(values.shape[side] >= SMALLEST_SIDE for side in sides):
            return first
    return None


def _is_waveform(values: torch.Tensor) -> bool:
    is_mono = values.dim() == 1
    if not (is_mono or (values.dim() == 2 and values.shape[0] in (1, 2))) or values.shape[-1] < _CLIP:
        return False
    low, high = (float(value) for value in values.aminmax())
    return -_FULL <= low < 0 < high <= _FULL


def check_modality(given: Any) -> None:
    """Raise ``SettingsError`` for what is neither a modality nor a table of modalities by name; None is allowed."""
    table = given if isinstance(given, Mapping) else {"": given}
    for name, value in table.items():
        if not isinstance(name, str) or (value is not None and value not in MODALITIES):
            wrong = described(name if not isinstance(name, str) else value)
            raise SettingsError(
                f"modality: {wrong} is unknown. Give one of {', '.join(map(repr, MODALITIES))} for all inputs and "
                'outputs, or a table such as {"x": "audio"} by their names.'
            )


def chosen_modality(given: str | Mapping[str, str] | None, name: str, values: torch.Tensor | None) -> Modality:
    """Return the given modality of an input or output where its shape allows that, else what its values tell."""
    wanted: Any = given.get(name) if isinstance(given, Mapping) else given
    if wanted is None or values is None or not _is_possible(wanted, values):
        return modality_of(values, name)
    found: Modality = wanted
    return found


def _is_possible(modality: str, values: torch.Tensor) -> bool:
    if modality == "image":
        return channels_first(values) is not None or values.dim() == 2
    if modality == "audio":
        return values.dim() in (1, 2) and not values.is_complex()
    if modality == "text":
        return values.dim() == 1 and not values.is_floating_point() and not values.is_complex()
    return True
