"""The report of each layer as columns: half the size of rows, and read a whole column at a time.

A history of 200 runs of 1,000 layers has millions of values. Each column is checked at once; only where that finds
something wrong are the rows read one by one, for a message that names the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from prepbench.document.checks import MAX_NUMBER
from prepbench.document.codec import plain, read_object
from prepbench.errors import UNPRINTABLE, DocumentError
from prepbench.quantize.report import LayerReport

_FIELDS = {field.name: field for field in fields(LayerReport)}
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_columns(rows: Sequence[LayerReport]) -> dict[str, list[Any]]:
    """The values of each field, as JSON-ready data; fields in which all rows have the default are left out."""
    columns = {name: [getattr(row, name) for row in rows] for name in _FIELDS}
    return {
        name: column if _CHECKS[name] in (_are_texts, _are_counts) else list(map(_plain, column))
        for name, column in columns.items()
        if _FIELDS[name].default is MISSING or any(value != _FIELDS[name].default for value in column)
    }


def from_columns(data: Any, path: str) -> tuple[LayerReport, ...]:
    """Read what :func:`to_columns` wrote.

    Raises:
        DocumentError: columns of different length, or a missing, unknown or wrong field; the message names the place.
    """
    if not isinstance(data, Mapping) or not all(isinstance(column, list) for column in data.values()):
        raise DocumentError(f"{path} must be an object of lists, one for each field of a layer.")
    lengths = {len(column) for column in data.values()}
    if len(lengths) > 1:
        raise DocumentError(f"{path} has columns of {min(lengths)} and of {max(lengths)} layers.")
    count = lengths.pop() if lengths else 0
    required = {name for name, field in _FIELDS.items() if field.default is MISSING}
    if count and required <= set(data) <= set(_FIELDS) and all(_CHECKS[name](data[name]) for name in data):
        columns = [_restored(name, data[name]) if name in data else [field.default] * count
                   for name, field in _FIELDS.items()]  # fmt: skip
        return tuple(map(LayerReport, *columns))
    rows = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]
    return tuple(
        read_object(row, LayerReport, f"{path}[{i}]", lenient=True, measured=True) for i, row in enumerate(rows)
    )


def _plain(value: Any) -> Any:
    return value if value is None or _is_number(value) else plain(value)


def _restored(name: str, column: list[Any]) -> list[Any]:
    if _CHECKS[name] is _are_numbers:
        return [_NOT_FINITE.get(value, value) if isinstance(value, str) else value for value in column]
    if _CHECKS[name] in (_are_pairs, _are_lists):
        return [None if value is None else tuple(value) for value in column]
    return column


def _are_texts(column: list[Any]) -> bool:
    return all(type(value) is str for value in column) and UNPRINTABLE.search("".join(column)) is None


def _are_counts(column: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= MAX_NUMBER for value in column)


def _are_numbers(column: list[Any]) -> bool:
    return all(value is None or _is_number(value) or (type(value) is str and value in _NOT_FINITE) for value in column)


def _are_pairs(column: list[Any]) -> bool:
    return all(
        value is None or (type(value) is list and len(value) == 2 and all(map(_is_number, value))) for value in column
    )


def _are_lists(column: list[Any]) -> bool:
    return all(type(value) is list and _are_counts(value) for value in column)


def _is_number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


_CHECKS: Mapping[str, Callable[[list[Any]], bool]] = {
    **dict.fromkeys(("fqn", "type", "rule", "reason", "observer", "note"), _are_texts),
    **dict.fromkeys(("parameters", "weights_bits", "activations_bits", "block_size"), _are_counts),
    **dict.fromkeys(("input_range", "scale_range"), _are_pairs),
    **dict.fromkeys(("sqnr", "stored_bits"), _are_numbers),
    "bits_to_measure": _are_lists,
}
