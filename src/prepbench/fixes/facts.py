"""Facts about a user's function: the values of all its expressions on samples, recorded by an instrumented copy."""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from prepbench.fixes.syntax import SourceText
from prepbench.running.source_lines import CodePath, cell_flags, file_codes

Place = tuple[int, int, int, int]
"""First line and column, last line and column of an expression; columns count characters from 0."""

PROBE = "__prepbench_probe__"
PARAMETERS = "__prepbench_parameters__"
_MOST_VALUES = 8


@dataclass
class Fact:
    """The recorded values of one expression.

    Attributes:
        kinds: names of types, e.g. ``"Tensor"``, ``"float"``, ``"ndarray"``.
        dtypes: the dtypes of tensors and arrays.
        dims: their numbers of dims.
        truths: the truth of numbers and of tensors with one value.
        values: the first values, to read settings from; never changed.
        lengths: of ranges, lists and tuples.
        given_truths: those on the user's samples.
        given: on the user's samples, lengths of ranges, and how often a condition was true before it was false.
    """

    kinds: set[str] = field(default_factory=set)
    dtypes: set[Any] = field(default_factory=set)
    dims: set[int] = field(default_factory=set)
    truths: set[bool] = field(default_factory=set)
    values: list[Any] = field(default_factory=list)
    lengths: set[int] = field(default_factory=set)
    given_truths: set[bool] = field(default_factory=set)
    given: set[int] = field(default_factory=set)

    @property
    def is_tensor(self) -> bool:
        """Whether it was always a tensor."""
        return bool(self.kinds) and self.kinds <= {"Tensor", "Parameter"}

    @property
    def is_number(self) -> bool:
        """Whether it was always a Python number."""
        return bool(self.kinds) and self.kinds <= {"int", "float", "bool", "float64", "float32", "int64", "bool_"}

    @property
    def is_array(self) -> bool:
        """Whether it was always a NumPy array."""
        return self.kinds == {"ndarray"}

    @property
    def holds_tensors(self) -> bool:
        """Whether it was always a list or tuple of tensors with one value each."""
        parts = [part for value in self.values for part in (value if isinstance(value, list | tuple) else [value])]
        return bool(parts) and all(isinstance(part, torch.Tensor) and part.numel() == 1 for part in parts)

    @property
    def is_square(self) -> bool:
        """Whether it was always a square matrix, or several of them."""
        shapes = [value.shape for value in self.values if isinstance(value, torch.Tensor)]
        return bool(shapes) and all(len(shape) > 1 and shape[-1] == shape[-2] for shape in shapes)

    @property
    def is_callable(self) -> bool:
        """Whether it was always a module or a function."""
        return bool(self.values) and all(callable(value) for value in self.values) and not self.is_tensor

    def is_saturated(self, value: Any) -> bool:
        """Return whether another tensor of several values would add no information; limits the recording in loops."""
        is_known = isinstance(value, torch.Tensor) and len(self.values) >= _MOST_VALUES and "Tensor" in self.kinds
        return is_known and value.dtype in self.dtypes and value.ndim in self.dims and value.numel() != 1

    def add(self, value: Any) -> None:
        kind = type(value)
        self.kinds.add("Tensor" if isinstance(value, torch.Tensor) else kind.__name__)
        if isinstance(value, torch.Tensor | np.ndarray):
            self.dtypes.add(value.dtype)
            self.dims.add(value.ndim)
            size = value.numel() if isinstance(value, torch.Tensor) else value.size
            if size == 1:
                self.truths.add(bool(value.item() if isinstance(value, np.ndarray) else value))
        elif isinstance(value, bool | int | float | None):
            self.truths.add(bool(value))
        if isinstance(value, range | list | tuple):
            self.lengths.add(len(value))
        if len(self.values) < _MOST_VALUES:
            self.values.append(value)


@dataclass
class Facts:
    """The facts of one function by place, and the arguments of the last call."""

    found: dict[Place, Fact] = field(default_factory=dict)
    parameters: dict[str, Fact] = field(default_factory=dict)
    taken: set[tuple[Place, bool]] = field(default_factory=set)
    is_given: bool = True
    _runs: dict[Place, int] = field(default_factory=dict)

    def probe(self, place: Place, value: Any) -> Any:
        """Record a value; instrumented code calls this for every expression."""
        fact = self.found.get(place)
        if fact is None:
            fact = self.found[place] = Fact()
        elif fact.is_saturated(value):
            return value
        with torch.no_grad():
            before = fact.truths
            fact.truths = set()
            with contextlib.suppress(RuntimeError, TypeError, ValueError):  # a value without a truth
                fact.add(value)
            self._count(place, fact, value)
            fact.truths |= before
        return value

    def probe_parameters(self, values: Mapping[str, Any]) -> None:
        """Record the arguments; instrumented code calls this at the start of each call."""
        for name, value in values.items():
            with torch.no_grad(), contextlib.suppress(RuntimeError, TypeError, ValueError):
                self.parameters.setdefault(name, Fact()).add(value)

    def _count(self, place: Place, fact: Fact, value: Any) -> None:
        self.taken.update((place, truth) for truth in fact.truths)
        if self.is_given:
            fact.given_truths |= fact.truths
        if isinstance(value, range) and self.is_given:
            fact.given.add(len(value))
        for truth in fact.truths:
            self._runs[place] = self._runs.get(place, 0) + 1
            if not truth:
                self._ended(place, -1)

    def _ended(self, place: Place, more: int = 0) -> None:
        if self.is_given:
            self.found[place].given.add(self._runs[place] + more)
        self._runs[place] = 0

    def ended(self) -> None:
        """Record the end of a call."""
        for place in self._runs:
            self._ended(place)
        self._runs.clear()


def instrumented_codes(source: SourceText, line: int) -> dict[CodePath, types.CodeType]:
    """Return the outermost function or method around a line, with a probe around every expression; by path."""
    tree = ast.parse(source.text)
    chosen = outermost_function(tree, line)
    if chosen is None:
        return {}
    instrument = _Instrument(source.text.splitlines())
    is_lambda = isinstance(chosen, ast.Lambda)
    chosen.body = instrument.visit(chosen.body) if is_lambda else [instrument.visit(part) for part in chosen.body]
    if not is_lambda:
        start = ast.parse(f"{PARAMETERS}({{**locals()}})").body[0]
        chosen.body.insert(1 if ast.get_docstring(chosen) is not None else 0, start)
    return file_codes(ast.fix_missing_locations(tree), source.name, cell_flags(source.file))


def outermost_function(tree: ast.AST, line: int) -> Any:
    """Return the outermost function around a line, which may be in a class."""
    for node in ast.iter_child_nodes(tree):
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0) or 0
        first = min([first, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        if not first <= line <= last:
            continue
        inner = None if isinstance(node, ast.FunctionDef | ast.Lambda) else outermost_function(node, line)
        if inner is not None or isinstance(node, ast.FunctionDef | ast.Lambda):
            return inner or node
    return None


def place_of(node: ast.expr, lines: Sequence[str]) -> Place:
    """Return the position of an expression in the lines of its file."""
    last = node.end_lineno or node.lineno
    return node.lineno, _column(lines, node.lineno, node.col_offset), last, _column(lines, last, node.end_col_offset)


def _column(lines: Sequence[str], line: int, offset: int | None) -> int:
    text = lines[line - 1]
    return (offset or 0) if text.isascii() else len(text.encode()[: offset or 0].decode())


class _Instrument(ast.NodeTransformer):
    """Inserts a probe around expressions that are read."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.pattern):  # takes literals and names alone
            return node
        if isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.Slice | ast.arguments | ast.NamedExpr):
            return node
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.body = [self.visit(statement) for statement in node.body]
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = self.visit(node.value) if node.value is not None else None
            return node
        if isinstance(node, ast.Subscript):
            node.slice = self._index(node.slice)
            node.value = self.visit(node.value)
            return self._probed(node) if isinstance(node.ctx, ast.Load) else node
        if isinstance(node, ast.Call):
            return self._call(node)
        self.generic_visit(node)
        return self._probed(node) if isinstance(node, ast.expr) else node

    def _index(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Tuple):
            node.elts = [self._index(part) for part in node.elts]
            return node
        if isinstance(node, ast.Slice):
            for name in ("lower", "upper", "step"):
                part = getattr(node, name)
                if part is not None:
                    setattr(node, name, self.visit(part))
            return node
        found: ast.expr = self.visit(node)
        return found

    def _call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):
            node.func.value = self.visit(node.func.value)
        elif not isinstance(node.func, ast.Name):
            node.func = self.visit(node.func)
        node.args = [self.visit(part) for part in node.args]
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return self._probed(node)

    def _probed(self, node: ast.expr) -> ast.expr:
        plain = isinstance(node, ast.Starred | ast.GeneratorExp | ast.Yield | ast.YieldFrom | ast.Await)
        if plain or (hasattr(node, "ctx") and not isinstance(node.ctx, ast.Load)):
            return node
        where = ast.Tuple([ast.Constant(number) for number in place_of(node, self._lines)], ast.Load())
        call = ast.Call(ast.Name(PROBE, ast.Load()), [where, node], [])
        return ast.copy_location(call, node)
