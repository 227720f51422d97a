"""The formats of numbers: of weights, of activations, and of what a file or a table says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class NumberFormat:
    """How numbers are written: in integers of some bits, or in floating point.

    Example:
        >>> INT4.low, INT4.high, INT4.dtype, INT4.unsigned.name
        (-8, 7, torch.int8, 'uint4')
    """

    name: str
    bits: int
    dtype: torch.dtype
    low: float
    high: float
    is_float: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def unsigned(self) -> NumberFormat:
        """Return the format of the integers from 0 on with as many bits; itself where there is none."""
        return format_named(f"u{self.name}") or self

    @property
    def asked(self) -> int | str:
        """Return what settings call it: its bits, or its name where these bits mean another format."""
        return self.bits if format_of_bits(self.bits) is self else self.name

    @property
    def name_beside_bits(self) -> str:
        """Return the name where bits alone mean another format; empty where they are enough."""
        return self.asked if isinstance(self.asked, str) else ""

    @property
    def words(self) -> str:
        """Return it as an adjective, such as ``"8-bit"``."""
        return self.name if isinstance(self.asked, str) else f"{self.bits}-bit"

    @property
    def steps(self) -> int:
        """Return the number of steps from the smallest integer to the largest."""
        return int(self.high - self.low)

    def holds(self, numbers: Any) -> bool:
        """Return whether all numbers of a tensor or an array, one at least, are in its range."""
        return bool(self.low <= numbers.min() and numbers.max() <= self.high)


def _integers(name: str, bits: int, dtype: torch.dtype, *aliases: str) -> NumberFormat:
    low = 0 if name.startswith("u") else -(2 ** (bits - 1))
    return NumberFormat(name, bits, dtype, low, low + 2**bits - 1, aliases=aliases)


def _floats(name: str, dtype: torch.dtype, *aliases: str) -> NumberFormat:
    kind = torch.finfo(dtype)
    return NumberFormat(name, kind.bits, dtype, kind.min, kind.max, is_float=True, aliases=aliases)


INT4 = _integers("int4", 4, torch.int8, "i4")
INT8 = _integers("int8", 8, torch.int8, "i8")
INT16 = _integers("int16", 16, torch.int16)
UINT4 = _integers("uint4", 4, torch.uint8)
UINT8 = _integers("uint8", 8, torch.uint8)
FLOAT8 = _floats("float8", torch.float8_e4m3fn, "fp8")
FLOAT16 = _floats("float16", torch.float16, "fp16", "f16")
BFLOAT16 = _floats("bfloat16", torch.bfloat16, "bf16")
FLOAT32 = _floats("float32", torch.float32, "fp32", "f32", "float")

FORMATS = (INT4, INT8, INT16, UINT4, UINT8, FLOAT8, FLOAT16, BFLOAT16, FLOAT32)
"""All formats. Of those with as many bits, the first is meant where settings and reports name bits alone."""


def format_of_bits(bits: int) -> NumberFormat:
    """Return the format that settings and reports mean by a number of bits: integers, and float32 by 32; the next
    wider one where no format has as many, and float32 for more.
    """
    return min((one for one in FORMATS if one.bits >= bits), key=lambda one: one.bits, default=FLOAT32)


def format_named(text: str) -> NumberFormat | None:
    """Return the format with a name, an alias or a number of bits in digits; None where there is none.

    Example:
        >>> format_named("f16").name, format_named("8").name, format_named("complex64")
        ('float16', 'int8', None)
    """
    return next((one for one in FORMATS if text in (one.name, *one.aliases, str(one.bits))), None)
