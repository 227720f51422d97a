"""The leaves of a call whose caches hold nothing yet, found along the nesting that was captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prepbench.compile.output_tree import Tree
from prepbench.running.empty_caches import is_nothing
from prepbench.running.tensor_numbers import as_tensor

MISSING = object()
"""Stands for a tensor that an object does not hold yet."""


def leaves_along(value: Any, tree: Tree, *, is_inside: bool = False) -> list[Any] | None:
    """The leaves of ``value`` in the order of ``tree``, with :data:`MISSING` for those that objects in it lack.

    Args:
        value: nested like ``tree``, except that objects may hold None, no entries or flat tensors without entries.
        tree: a nesting.
        is_inside: whether the value is a part of an object.

    Returns:
        None where something else than a part of an object is missing.
    """
    if tree["kind"] == "leaf":
        if value is MISSING or (is_inside and is_nothing(value)):
            return [MISSING]
        leaf = as_tensor(value) if is_inside else value
        return [leaf] if not is_inside or isinstance(leaf, torch.Tensor) else None
    is_object = tree["kind"] == "object"
    if not is_object and value is not MISSING and not isinstance(value, tuple | list | Mapping):
        return None
    keys = range(len(tree["items"])) if tree["kind"] in ("tuple", "list") else tree["keys"]
    leaves: list[Any] = []
    for key, item in zip(keys, tree["items"], strict=True):
        inside = is_inside or is_object
        part = _part(value, key, tree["kind"]) if value is not MISSING else MISSING
        if (part is None and item["kind"] != "leaf") or part is MISSING:
            if not inside:
                return None
            part = MISSING
        found = leaves_along(part, item, is_inside=inside)
        if found is None:
            return None
        leaves += found
    return leaves


def _part(value: Any, key: Any, kind: str) -> Any:
    if kind in ("tuple", "list"):
        return value[key] if key < len(value) else MISSING
    if kind == "dict":
        return value.get(key, MISSING)
    return getattr(value, str(key), MISSING)
