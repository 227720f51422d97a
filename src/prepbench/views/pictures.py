"""Tensors as small pictures: PNG files in ``data:`` addresses, made with the standard library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch

from prepbench.measure.modality import channels_first, modality_of

_DARKEST, _BRIGHTEST = 0, 255


def is_image(values: torch.Tensor | None) -> bool:
    """Return whether a row looks like an image: 1 or 3 channels before or after height and width, floats or bytes."""
    return modality_of(values) == "image"


def picture(values: torch.Tensor, side: int) -> str:
    """Return an image as a ``data:`` address.

    Bytes and floats between 0 and 1 are shown unchanged; other ranges are stretched to black and white. NaN is
    black.

    Args:
        values: of shape (channels, height, width), (height, width, channels) or (height, width).
        side: pixels of its longer side at most; larger images lose lines and columns.

    Example:
        >>> picture(torch.zeros(3, 8, 8), 96).startswith("data:image/png;base64,")
        True
    """
    values = values[None] if values.dim() == 2 else values
    pixels = values if channels_first(values) else values.movedim(-1, 0)
    step = -(-max(pixels.shape[1:]) // side)
    shown = _bytes(pixels[:, ::step, ::step])
    return "data:image/png;base64," + base64.b64encode(png(shown.movedim(0, -1))).decode()


def png(pixels: torch.Tensor) -> bytes:
    """Encode a PNG file.

    Args:
        pixels: uint8 of shape (height, width, 1 or 3).
    """
    height, width, channels = pixels.shape
    rows = pixels.contiguous().reshape(height, -1).tolist()
    data = b"".join(b"\0" + bytes(row) for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _bytes(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.uint8:
        return values
    wide = values.double()
    finite = wide[wide.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scaled = (wide.clamp(low, high) - low) / ((high - low) or 1.0) * _BRIGHTEST
    return torch.nan_to_num(scaled, nan=_DARKEST).round().to(torch.uint8)
