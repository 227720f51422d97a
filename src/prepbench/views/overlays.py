"""Turn tables into overlays: values by module that colour a diagram."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, cast

from prepbench.checks import described
from prepbench.document.model import Combine, GraphCollectionDocument, Overlay, OverlayValue
from prepbench.errors import InputError
from prepbench.settings.numbers import FLOAT32, NumberFormat, format_named
from prepbench.views.palette import PRECISION

_NAMES = ("fqn", "layer", "module", "name")
_COMBINES = ("sum", "mean", "max", "min")


def make_overlay(
    table: Any,
    documents: Iterable[GraphCollectionDocument],
    *,
    column: str | None = None,
    name: str | None = None,
    unit: str = "",
    combine: str = "",
    diverging: bool | None = None,
) -> Overlay:
    """Make an overlay from a table by layer.

    Args:
        table: a mapping from FQN to value, a pandas ``Series`` by FQN, or a ``DataFrame`` with the FQNs in a column
            named ``fqn``, ``layer``, ``module`` or ``name``, or as its index.
        documents: the diagrams of the overlay: at least one name must be a module in them.
        column: the column with the values; may be left out when there is only one.
        name: shown in the legend; the column's name if left out.
        unit: e.g. ``"ms"``.
        combine: how the values inside a closed module become one: ``"sum"``, ``"mean"``, ``"max"`` or ``"min"``. By
            default the sum; for values in dB the smallest, because the worst layer counts; for sparsity the mean.
        diverging: put zero in the middle of the scale; by default if there are values on both sides of it, and they are
            no decibels, of which 0 means nothing special.

    Raises:
        InputError: no such column, several to choose from, no name that fits, or an unknown ``combine``.

    Example:
        >>> make_overlay({"fc": 8}, [], name="bits").kind
        'precision'
    """
    values, title = _values(table, column)
    title = name or title or "value"
    if combine and combine not in _COMBINES:
        raise InputError(f"combine must be one of {', '.join(_COMBINES)}; got {described(combine)}.")
    _check_names(values, documents)
    present = {fqn: value for fqn, value in values.items() if not _is_missing(value)}
    if _is_precision(title, present):
        texts = {fqn: _precision(value) for fqn, value in present.items()}
        return Overlay(title, "precision", values=tuple(OverlayValue(f, None, t) for f, t in texts.items()))
    if present and all(isinstance(value, numbers.Real) and not isinstance(value, bool) for value in present.values()):
        figures = {fqn: float(value) for fqn, value in present.items() if math.isfinite(value)}
        return _number_overlay(title, figures, unit, combine, diverging)
    return Overlay(title, "category", values=tuple(OverlayValue(f, None, str(v)) for f, v in present.items()))


def fill_of(kind: NumberFormat) -> str:
    """Return the key in ``PRECISION`` of the palette with the most similar number of bits.

    Example:
        >>> fill_of(FLOAT32)
        'float32'
    """
    fills = filter(None, map(format_named, PRECISION))
    return min(fills, key=lambda one: abs(one.bits - kind.bits)).name


def _number_overlay(
    title: str, figures: Mapping[str, float], unit: str, combine: str, diverging: bool | None
) -> Overlay:
    both = any(value < 0 for value in figures.values()) and any(value > 0 for value in figures.values())
    decibels = unit == "dB" or any(word in title.lower() for word in ("sqnr", "snr", "(db)", "_db"))
    return Overlay(
        title,
        "number",
        unit or ("dB" if decibels else ""),
        cast(Combine, combine or ("min" if decibels else "mean" if "sparsity" in title.lower() else "sum")),
        both and not decibels if diverging is None else diverging,
        tuple(OverlayValue(fqn, value) for fqn, value in figures.items()),
    )


def _values(table: Any, column: str | None) -> tuple[dict[str, Any], str]:
    import pandas

    if isinstance(table, Mapping):
        return {str(fqn): value for fqn, value in table.items()}, column or ""
    if isinstance(table, pandas.Series):
        return {str(fqn): value for fqn, value in table.items()}, str(table.name or "")
    if not isinstance(table, pandas.DataFrame):
        raise InputError(
            f"An overlay is made from a mapping, a pandas Series or a DataFrame by layer; got {type(table).__name__}."
        )
    key = next((each for each in _NAMES if each in table.columns and each != column), None)
    names = table[key] if key else table.index
    others = [each for each in table.columns if each != key]
    if column is None and len(others) != 1:
        raise InputError(f"The table has the columns {', '.join(map(str, others))}: say which with column=.")
    chosen = others[0] if column is None else column
    if chosen not in table.columns:
        raise InputError(f"The table has no column {chosen!r}; it has {', '.join(map(str, table.columns))}.")
    return {str(fqn): value for fqn, value in zip(names, table[chosen], strict=True)}, str(chosen)


def _check_names(values: Mapping[str, Any], documents: Iterable[GraphCollectionDocument]) -> None:
    known = {module.fqn for document in documents for module in document.modules}
    if not known or known & set(values):
        return
    given = next(iter(values), None)
    if given is None:
        raise InputError("The overlay has no values.")
    near = difflib.get_close_matches(given, sorted(known), n=3)
    hint = f" Did you mean {', '.join(near)}?" if near else f" The model has e.g. {', '.join(sorted(known)[1:4])}."
    raise InputError(f"No name in the table is a module of the model; the first one is {given!r}.{hint}")


def _is_precision(title: str, values: Mapping[str, Any]) -> bool:
    words = {_plain(value).partition(" ")[0] for value in values.values()}
    if not words or not all(map(format_named, words)):
        return False
    numeric = all(word.isdigit() for word in words)
    return not numeric or any(word in title.lower() for word in ("bit", "precision", "dtype"))


def _precision(value: Any) -> str:
    """Return the fill, ``"int8"``, or with a qualifier, ``"int8 weights"``."""
    word, space, further = _plain(value).partition(" ")
    return fill_of(format_named(word) or FLOAT32) + space + further


def _plain(value: Any) -> str:
    if isinstance(value, numbers.Real) and float(value).is_integer():
        return str(int(float(value)))
    return str(value).removeprefix("torch.").lower()


def _is_missing(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, numbers.Real) and math.isnan(float(value)))
