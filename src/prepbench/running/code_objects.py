"""Find code objects by their position in a file."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator
from typing import Any

CodePath = tuple[tuple[str, int], ...]
"""Where a code object stands in its file: names from outside in, each with its number among equal names."""


def nested_codes(code: types.CodeType, path: CodePath = ()) -> Iterator[tuple[CodePath, types.CodeType]]:
    """Yield all code objects inside of one, with their paths."""
    yield from _numbered(code.co_consts, path)


def file_codes(tree: ast.Module, name: str, flags: int | None) -> dict[CodePath, types.CodeType]:
    """Return all code objects of a file, compiled as they were when it was imported or its cell was run.

    A notebook compiles each statement of a cell separately, and Python compiles calls of names imported in the same
    text differently from others. So compiling the cell as a whole would give other code.

    Args:
        tree: the syntax of the file or cell, perhaps changed.
        name: the name that Python knows it by.
        flags: the result of :func:`cell_flags` for this file or cell, or for its original.

    Raises:
        SyntaxError: Python does not take it.
    """
    if flags is None:
        return dict(nested_codes(compile(tree, name, "exec", dont_inherit=True)))
    statements = [ast.Module([statement], []) for statement in tree.body]
    modules = [compile(each, name, "exec", flags, dont_inherit=True) for each in statements]
    return dict(_numbered([const for module in modules for const in module.co_consts], ()))


def _numbered(constants: Iterable[Any], path: CodePath) -> Iterator[tuple[CodePath, types.CodeType]]:
    counts: dict[str, int] = {}
    for inner in constants:
        if isinstance(inner, types.CodeType):
            number = counts.get(inner.co_name, 0)
            counts[inner.co_name] = number + 1
            own = (*path, (inner.co_name, number))
            yield own, inner
            yield from nested_codes(inner, own)
