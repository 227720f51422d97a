"""The source of a user's function: read from its file, changed, compiled again, and compared as a diff."""

from __future__ import annotations

import ast
import copy
import difflib
import functools
import inspect
import linecache
import textwrap
import types
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prepbench.document.model import SourceLine
from prepbench.fixes.results import CannotRewrite
from prepbench.running.source_lines import source_line

Place = tuple[int, int]
"""Line and column of an expression or statement in the user's file."""

PROBE = "__prepbench_probe__"


def place_of(node: ast.expr | ast.stmt) -> Place:
    """Where a node stands."""
    return node.lineno, node.col_offset


def probe_call(place: Place, value: ast.expr) -> ast.expr:
    """An expression that passes ``value`` to the probe of an instrumented function and has the probe's result."""
    where = ast.Tuple([ast.Constant(number) for number in place], ast.Load())
    return ast.Call(ast.Name(PROBE, ast.Load()), [where, value], [])


@dataclass(frozen=True)
class Edit:
    """Lines of a function and the statements that replace them."""

    first_line: int
    last_line: int
    statements: Sequence[ast.stmt]


@dataclass(frozen=True)
class FunctionSource:
    """The text of a function without its indentation.

    Attributes:
        function: the function itself.
        file: its file.
        first: its first line there, decorators included.
        text: its lines.
        tree: the same as a syntax tree, with the line numbers of the file.
    """

    function: types.FunctionType
    file: str
    first: int
    text: str
    tree: ast.FunctionDef

    @classmethod
    def of(cls, forward: Callable[..., Any]) -> FunctionSource:
        """The source of a function or bound method.

        Raises:
            CannotRewrite: there is no source, or the function uses variables of a function around it.
        """
        function = _plain(forward)
        name = function.__qualname__
        try:
            lines, first = inspect.getsourcelines(function)
            text = textwrap.dedent("".join(lines))
            tree = ast.parse(text).body[0]
        except (OSError, TypeError, SyntaxError) as error:
            raise CannotRewrite(f"The source of {name} is not available.") from error
        if not isinstance(tree, ast.FunctionDef):
            raise CannotRewrite(f"{name} is not defined by def.")
        free = set(function.__code__.co_freevars)
        if free - {"__class__"}:
            raise CannotRewrite(f"{name} uses variables of an enclosing function.")
        ast.increment_lineno(tree, first - 1)
        return cls(function, function.__code__.co_filename, first, text, tree)

    @property
    def place(self) -> SourceLine:
        """Where the function starts."""
        return source_line(self.file, self.first)

    def compiled(self, code: str) -> types.FunctionType:
        """The function with other code, in the globals of the original.

        Raises:
            CannotRewrite: the function calls ``super()``, which works only inside its class.
        """
        # one name for each text, so that a traceback never shows the lines of another one
        name = f"<rewritten {self.function.__qualname__} {zlib.crc32(code.encode()):08x}>"
        made = self._made(ast.parse(code), name)
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        return made

    def instrumented(self, instrument: Callable[[ast.FunctionDef], None], probe: Any) -> types.FunctionType:
        """The function with calls of ``probe`` where ``instrument`` puts them.

        Its lines are those of the user's file, so that what it raises shows what the user wrote.
        """
        tree = copy.deepcopy(self.tree)
        instrument(tree)
        return self._made(ast.Module([ast.fix_missing_locations(tree)], []), self.file, probe)

    def _made(self, tree: ast.Module, name: str, probe: Any = None) -> types.FunctionType:
        if "__class__" in self.function.__code__.co_freevars:
            raise CannotRewrite(f"{self.function.__qualname__} calls super().")
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        scope = {"torch": torch, **self.function.__globals__, PROBE: probe}
        # the user's own code, from the user's own file
        exec(compile(tree, name, "exec"), scope)
        made: types.FunctionType = scope[self.tree.name]
        made.__defaults__, made.__kwdefaults__ = self.function.__defaults__, self.function.__kwdefaults__
        return made

    def edited(self, edits: Sequence[Edit]) -> str:
        """The text with some of its lines replaced; all others stay as the user wrote them."""
        lines = self.text.splitlines(True)
        for edit in sorted(edits, key=lambda edit: edit.first_line, reverse=True):
            start, end = edit.first_line - self.first, edit.last_line - self.first + 1
            margin = _margin(lines[start])
            texts = [ast.unparse(ast.fix_missing_locations(statement)) for statement in edit.statements]
            lines[start:end] = [textwrap.indent(text, margin) + "\n" for text in texts]
        return "".join(lines)

    def diff(self, code: str) -> str:
        """The unified diff of the user's file with ``code`` in the place of this function."""
        before = linecache.getlines(self.file)
        start, count = self.first - 1, len(self.text.splitlines())
        changed = textwrap.indent(code, _margin(before[start])).splitlines(True)
        after = [*before[:start], *changed, *before[start + count :]]
        name = self.place.file
        return "".join(difflib.unified_diff(before, after, name, name, n=2))


def _plain(forward: Callable[..., Any]) -> types.FunctionType:
    plain = inspect.unwrap(getattr(forward, "__func__", forward))
    while isinstance(plain, functools.partial):
        plain = plain.func
    if not isinstance(plain, types.FunctionType):
        raise CannotRewrite("forward is not a Python function.")
    return plain


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
