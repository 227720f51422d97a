"""What was lowered, read again: the bits that weights take there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from prepbench.quantize import LayerReport, TensorReport
from prepbench.quantize.conversion import Stored


def with_stored_bits(
    layers: Iterable[LayerReport], stored: Mapping[str, Stored], bits: Mapping[str, int]
) -> tuple[LayerReport, ...]:
    """The reports of layers with the bits that their integers take.

    Args:
        layers: the reports.
        stored: the constants that hold integers, by the names that the program has for them.
        bits: what each constant of the lowered program takes; the names begin as in the program.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, taken in bits.items():
        known = _integers_of(name, stored)
        if known is None:
            continue
        for fqn in stored[known].layers:
            total, elements = found.get(fqn, (0, 0))
            found[fqn] = total + taken, elements + stored[known].elements
    return tuple(
        replace(row, stored_bits=round(found[row.fqn][0] / found[row.fqn][1], 2)) if row.fqn in found else row
        for row in layers
    )


def bits_per_weight(tensors: Iterable[TensorReport], bits: Mapping[str, int], size: int | None) -> float | None:
    """Bits that are stored for each number of the model's parameters and buffers, scales and zero points included.

    Args:
        tensors: what the model has.
        bits: what each constant of the lowered program takes; empty where it is opaque.
        size: of the files, which counts there.
    """
    elements = sum(row.elements for row in tensors if row.kind != "constant")
    total = sum(bits.values()) if bits else None if size is None else 8 * size
    return None if total is None or not elements else round(total / elements, 2)


def _integers_of(name: str, stored: Mapping[str, Stored]) -> str | None:
    """The name in the program of the integers that a constant holds, as they are or packed."""
    while name not in stored:
        shorter = re.sub(r"(_packed|_table)?_*$", "", name)
        if shorter == name:
            return None
        name = shorter
    return name
