"""Code objects by where they stand in their file."""

from __future__ import annotations

import types
from collections.abc import Iterator

CodePath = tuple[tuple[str, int], ...]
"""Where a code object stands in its file: names from outside in, each with its number among equal names."""


def nested_codes(code: types.CodeType, path: CodePath = ()) -> Iterator[tuple[CodePath, types.CodeType]]:
    """All code objects inside of one, with their paths."""
    counts: dict[str, int] = {}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            number = counts.get(inner.co_name, 0)
            counts[inner.co_name] = number + 1
            own = (*path, (inner.co_name, number))
            yield own, inner
            yield from nested_codes(inner, own)
