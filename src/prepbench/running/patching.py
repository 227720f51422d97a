"""Temporary replacements of attributes, always undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value`` inside the block; an inherited attribute is inherited again afterwards."""
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def patched_item(owner: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """``owner[name]`` is ``value`` inside the block."""
    before = owner.get(name, _ABSENT)
    owner[name] = value
    try:
        yield
    finally:
        if before is _ABSENT:
            del owner[name]
        else:
            owner[name] = before
