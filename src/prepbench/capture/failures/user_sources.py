"""Whether a class or function is the user's own, and its source."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import torch

from prepbench.errors import CaptureError
from prepbench.running.source_lines import is_user_code


def is_users(thing: Any) -> bool:
    """Whether the class or function is defined in a file of the user's, not in an installed package."""
    return bool(_files(thing))


def _files(thing: Any) -> list[str]:
    """The user's files that may define the class or function, best first."""
    code = _code(thing)
    if code is not None and is_user_code(code):
        return [] if _is_installed(code.co_filename) else [code.co_filename]
    home = sys.modules.get(getattr(thing, "__module__", None) or "")
    if not isinstance(thing, type) or home is None or thing.__module__ == "builtins":
        return []
    if home.__name__ == "__main__" and not hasattr(home, "__file__"):
        # a class without methods in a notebook: one of the cells has it
        return [file for file in reversed(linecache.cache) if "ipykernel" in file or file.startswith("<ipython")]
    return [str(home.__file__)] if is_users_module(home) else []


def is_users_module(module: types.ModuleType) -> bool:
    """Whether a Python module is a file of the user's, not of an installed package."""
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    return file is not None and spec is not None and not _is_installed(file)


def _is_installed(file: str) -> bool:
    """Whether a file belongs to Python itself or to an installed package."""
    return "site-packages" in file or file.startswith((os.path.dirname(os.__file__), str(Path(torch.__file__).parent)))


def source_of(thing: Any, where: str) -> tuple[str, list[str], dict[str, Any]]:
    """The source of a class or function, the global names in it, and where they have their values."""
    lines, node = _definition(thing, where)
    if isinstance(node, ast.Lambda):
        text = f"({ast.get_source_segment(''.join(lines), node)})"
    else:
        text = textwrap.dedent("".join(lines[_first_line(node) - 1 : node.end_lineno]))
    used = [n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    functions = [value for value in vars(thing).values() if _code_of(value)] if isinstance(thing, type) else [thing]
    scope = dict(vars(sys.modules[thing.__module__])) if thing.__module__ in sys.modules else {}
    for function in functions:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        if is_user_code(plain.__code__):
            scope |= plain.__globals__
            scope |= {k: v for k, v in inspect.getclosurevars(plain).nonlocals.items() if k != "__class__"}
    annotated = _names_in_annotations(text)
    return text, [name for name in dict.fromkeys(used) if name not in annotated], scope


def _definition(thing: Any, where: str) -> tuple[list[str], Any]:
    """The lines of the file that defines the thing, and the syntax tree of the definition."""
    kinds: Any = ast.ClassDef if isinstance(thing, type) else (ast.FunctionDef, ast.AsyncFunctionDef)
    code = _code(thing)
    for file in _files(thing):
        lines = linecache.getlines(file)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        if thing.__name__ == "<lambda>":
            found: list[Any] = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and _is_code_of(n, code)]
            if found:
                return lines, found[0]
            continue
        found = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == thing.__name__]
        if code is not None and is_user_code(code):
            line = code.co_firstlineno
            found = [n for n in found if _first_line(n) <= line <= (n.end_lineno or n.lineno)]
        if found:
            return lines, found[-1]
    raise CaptureError(
        f"The source of {thing.__qualname__} ({where}) is not available, so no script can hold it. "
        "Define it in a file or a notebook cell."
    )


def _is_code_of(node: ast.Lambda, code: types.CodeType | None) -> bool:
    """Whether a lambda of a file is the one with a code object; others may stand on its line."""
    if code is None or node.lineno != code.co_firstlineno:
        return False
    body = node.body
    return (body.lineno, body.end_lineno, body.col_offset, body.end_col_offset) in set(code.co_positions())


def _first_line(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _names_in_annotations(text: str) -> set[str]:
    """Names that only annotations use: they are text under ``from __future__ import annotations``."""
    tree = ast.parse(text)
    annotations: list[Any] = [n.annotation for n in ast.walk(tree) if isinstance(n, ast.arg | ast.AnnAssign)]
    annotations += [n.returns for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    inside = [n for a in annotations if a is not None for n in ast.walk(a) if isinstance(n, ast.Name)]
    other = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in inside]
    return {n.id for n in inside} - set(other)


def _code(thing: Any) -> types.CodeType | None:
    if isinstance(thing, type):
        return next((code for value in vars(thing).values() if (code := _code_of(value)) is not None), None)
    return _code_of(thing)


def _code_of(value: Any) -> types.CodeType | None:
    plain = inspect.unwrap(value) if callable(value) else value
    plain = getattr(plain, "__func__", plain)
    return plain.__code__ if isinstance(plain, types.FunctionType) else None
