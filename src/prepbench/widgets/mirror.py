"""Traits that mirror dataclasses: one synced trait per field, so that the page gets only the fields that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import traitlets

from prepbench.document.codec import field_types

_TRAITS = {str: traitlets.Unicode, bool: traitlets.Bool, int: traitlets.Int, float: traitlets.Float}


def traits_of(*kinds: type) -> dict[str, Any]:
    """A synced trait for each field of the dataclasses, by name."""
    return {name: _trait(hint).tag(sync=True) for kind in kinds for name, hint in field_types(kind).items()}


def plain_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields as JSON can hold them: dataclasses as dicts and tuples as lists, all the way down."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return plain_fields(vars(value))
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _trait(hint: Any) -> Any:
    if is_dataclass(hint):
        return traitlets.Dict()
    return _TRAITS.get(hint, traitlets.List)()
