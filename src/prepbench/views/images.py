"""Tensors as small pictures: PNG files in ``data:`` addresses, made with the standard library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch

_SMALLEST = 4  # pixels of a side
_DARKEST, _BRIGHTEST = 0, 255


def is_image(values: torch.Tensor | None) -> bool:
    """Whether a row looks like an image: 1 or 3 channels before or after height and width, in float or bytes."""
    if values is None or values.dim() != 3 or values.numel() == 0:
        return False
    if not (values.is_floating_point() or values.dtype == torch.uint8):
        return False
    return _channels_first(values) is not None


def picture(values: torch.Tensor, side: int) -> str:
    """An image as a ``data:`` address.

    Bytes are shown as they are, and so are floats between 0 and 1; other ranges are stretched to black and white.
    What is no number is black.

    Args:
        values: of shape (channels, height, width) or (height, width, channels).
        side: pixels of its longer side at most; larger images lose lines and columns.

    Example:
        >>> picture(torch.zeros(3, 8, 8), 96).startswith("data:image/png;base64,")
        True
    """
    pixels = values if _channels_first(values) else values.movedim(-1, 0)
    step = -(-max(pixels.shape[1:]) // side)
    shown = _bytes(pixels[:, ::step, ::step])
    return "data:image/png;base64," + base64.b64encode(png(shown.movedim(0, -1))).decode()


def png(pixels: torch.Tensor) -> bytes:
    """A PNG file.

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


def _channels_first(values: torch.Tensor) -> bool | None:
    for first, channels, sides in ((True, 0, (1, 2)), (False, 2, (0, 1))):
        if values.shape[channels] in (1, 3) and all(values.shape[side] >= _SMALLEST for side in sides):
            return first
    return None


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
