"""Traits that mirror dataclasses: one synced trait per field, so that the page gets only the fields that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import groupby
from typing import Any, Literal, get_args, get_origin

import traitlets

from prepbench.document.codec import field_types

_TRAITS = {str: traitlets.Unicode, bool: traitlets.Bool, int: traitlets.Int, float: traitlets.Float}


def traits_of(*kinds: type) -> dict[str, Any]:
    """Return a synced trait for each field of the dataclasses, by name."""
    return {name: _trait(hint).tag(sync=True) for kind in kinds for name, hint in field_types(kind).items()}


def plain_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields as JSON-ready data: dataclasses as dicts and tuples as lists, recursively."""
    plain = {name: _plain(value) for name, value in values.items()}
    return {**plain, "planned": in_runs(plain["planned"])} if "planned" in plain else plain


def in_runs(numbers: list[int]) -> list[int]:
    """Return numbers of zero and more with each run of equal ones as how many, below zero, and the number: a click
    that changes one of a thousand layers stays a small message.

    Example:
        >>> in_runs([0, 0, 0, 2, 1, 1])
        [-3, 0, 2, -2, 1]
    """
    runs: list[int] = []
    for number, equal in groupby(numbers):
        count = len(list(equal))
        runs += [-count, number] if count > 1 else [number]
    return runs


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain_fields(vars(value))
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _trait(hint: Any) -> Any:
    if is_dataclass(hint):
        return traitlets.Dict()
    if get_origin(hint) is Literal:
        return traitlets.Enum(get_args(hint), default_value=get_args(hint)[0])
    return traitlets.List() if get_origin(hint) is tuple else _TRAITS[hint]()
