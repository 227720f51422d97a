"""Lines of the user's source: which line an error or an operation came from, and the text around it."""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

import torch

from prepbench.document.model import SourceLine
from prepbench.errors import printable
from prepbench.objects.parts import is_user_code, is_user_file


def place_in_stack_trace(text: str | None) -> tuple[str, int] | None:
    """Return the innermost user's file and line in a stack trace of torch."""
    places = re.findall(r'File "([^"]+)", line (\d+)', text or "")
    return next(((file, int(line)) for file, line in reversed(places) if is_user_file(file)), None)


def user_place(error: BaseException) -> tuple[str, int] | None:
    for stack in (getattr(error, "real_stack", None), getattr(error, "user_stack", None)):
        if stack is not None and (line := _innermost(_summary_lines(stack))) is not None:
            return line
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if (line := _innermost(_traceback_lines(link.__traceback__))) is not None:
            return line
        link = link.__cause__ or link.__context__
    return None


# above these, the user's code is what started the capture, not the model
_ENTRIES = frozenset({"trace_values", "trace_symbolically"})


def source_of_frame(frame: FrameType | None) -> SourceLine | None:
    """Return the innermost user's line at or above ``frame``; cheap enough to call for every recorded operation."""
    while frame is not None and frame.f_code.co_name not in _ENTRIES:
        if is_user_code(frame.f_code):
            return source_line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


def _traceback_lines(traceback: TracebackType | None) -> Iterable[tuple[str, int, bool]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, is_user_code(code)
        traceback = traceback.tb_next


def _summary_lines(stack: Any) -> Iterable[tuple[str, int, bool]]:
    for frame in stack:
        yield frame.filename, frame.lineno or 0, is_user_file(frame.filename)


def _innermost(lines: Iterable[tuple[str, int, bool]]) -> tuple[str, int] | None:
    found = None
    for file, line, is_user in lines:
        if is_user:
            found = (file, line)
    return found


_FILES: dict[SourceLine, str] = {}
"""Where the lines that were named lie: people know files by shorter names."""


def source_line(file: str, line: int) -> SourceLine:
    found = SourceLine(_readable(file), line, printable(linecache.getline(file, line).strip()))
    _FILES[found] = file
    return found


_COPIES: dict[str, tuple[str, Callable[[int], int]]] = {}
"""For the name of each changed copy of a file: the file, and which of its lines a line of the copy came from."""


def note_copy(name: str, file: str, line_of: Callable[[int], int]) -> None:
    """Record a changed copy of a user's file, for :func:`as_written`."""
    _COPIES[name] = file, line_of


def forget_copy(name: str) -> None:
    """Undo :func:`note_copy`."""
    _COPIES.pop(name, None)


def as_written(source: SourceLine | None) -> SourceLine | None:
    """Return the line of the user's file that a line of a changed copy came from; other lines are returned as given."""
    if source is None or (file := file_of(source)) not in _COPIES:
        return source
    original, line_of = _COPIES[file]
    return source_line(original, line_of(source.line))


def line_in_stack_trace(text: str | None) -> SourceLine | None:
    """Return the innermost user's line in a stack trace of torch, as the user wrote it."""
    place = place_in_stack_trace(text)
    return as_written(source_line(*place)) if place else None


def file_of(source: SourceLine) -> str:
    """Return the file of a line that :func:`source_line` made, as Python names it; "" for others."""
    return _FILES.get(source, "")


def frame_of(source: SourceLine) -> str:
    """Return the lines around one that :func:`source_line` made, as :func:`code_frame` shows them; "" for others."""
    file = file_of(source)
    return code_frame(file, source.line) if file else ""


_AROUND = 2
_WIDTH = 120


def code_frame(file: str, line: int) -> str:
    """Return the lines around ``line`` with their numbers, the line itself marked ``>``; "" if there is no source."""
    numbers = range(max(1, line - _AROUND), line + _AROUND + 1)
    texts = {number: printable(linecache.getline(file, number)) for number in numbers}
    if not texts[line].strip():
        return ""
    filled = [number for number, text in texts.items() if text.strip()]
    last = max(filled)
    shown = {n: text.rstrip().expandtabs(4) for n, text in texts.items() if min(filled) <= n <= last}
    margin = min((len(text) - len(text.lstrip()) for text in shown.values() if text), default=0)
    width = len(str(last))
    return "\n".join(
        f"{'>' if number == line else ' '} {number:>{width}} | {text[margin:]}".rstrip()[:_WIDTH]
        for number, text in shown.items()
    )


NOTEBOOK_CELL = "notebook cell"
_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def _readable(file: str) -> str:
    """Return the file as shown to users; a notebook cell's file name contains a process id, and its number changes with
    each run.
    """
    # installed packages lie elsewhere on each machine; below site-packages the path is the same everywhere
    is_cell = _cell_compiler(file) is not None
    return NOTEBOOK_CELL if is_cell else re.sub(r"^.*/(?:site|dist)-packages/", "", file)


def cell_flags(file: str) -> int | None:
    """Return the flags that a notebook compiles cells with, such as those of ``__future__``; None for other files."""
    compiler = _cell_compiler(file)
    return compiler.flags & _FUTURES | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if compiler is not None else None


def _cell_compiler(file: str) -> Any:
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    compiler: Any = getattr(shell, "compile", None)
    is_cell = hasattr(compiler, "format_code_name") and compiler.format_code_name(file) is not None
    return compiler if is_cell else None


def forward_place(module: torch.nn.Module) -> tuple[str, int] | None:
    code = getattr(getattr(module.forward, "__func__", module.forward), "__code__", None)
    if code is None or not is_user_code(code):
        return None
    return code.co_filename, code.co_firstlineno


# Find code objects by their position in a file.


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
