"""The methods of a module that a line calls: what fails at the line may stand in them."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator

import torch

from prepbench.fixes.source_text import SourceText


def lines_of_called(module: torch.nn.Module, source: SourceText, line: int) -> Iterator[int]:
    """The last line of each method of a module's class that a line of a file calls, if it stands in this file.

    Where the line is that of a ``def``, it stands for all lines of the function.
    """
    now, original = source.codes(), source.original_codes()
    lines = source.text.splitlines()
    last = line
    if lines[line - 1].lstrip().startswith("def "):
        last = max((_last_line(code) for code in now.values() if _has_line(code, line)), default=line)
    for name in dict.fromkeys(re.findall(r"\bself\.(\w+)\(", "\n".join(lines[line - 1 : last]))):
        method = getattr(type(module), name, None)
        code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
        path = next((path for path, known in original.items() if known == code), None)
        if path in now:
            yield _last_line(now[path])


def _last_line(code: types.CodeType) -> int:
    return max(number for _, _, number in code.co_lines() if number is not None)


def _has_line(code: types.CodeType, line: int) -> bool:
    """Whether a function begins on a line; the code of a class has no such line among its own."""
    return code.co_firstlineno == line and bool(code.co_flags & inspect.CO_OPTIMIZED)
