"""Sizes in shapes as short texts: long formulas get names, which a legend explains."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

from prepbench.document.model import Size


class SizeTexts:
    """The sizes of one document.

    A size is a number, the name of an input's size, a formula with one operator (``"(past + seq)"``), or a name for a
    longer formula, such as ``"H1"`` for ``(H - 1)//2 + 1``. Names count up in the order in which formulas come.

    Args:
        inputs: the meaning of the names of inputs' sizes, e.g. ``{"H": "x.shape[2]"}``.
    """

    def __init__(self, inputs: Mapping[str, str]) -> None:
        self._inputs = dict(inputs)
        self._names: dict[str, str] = {}  # by formula
        self._texts: dict[str, str] = {}  # by formula as torch writes it, with names

    def shape(self, sizes: Iterable[Any], names: Mapping[str, str]) -> str:
        """Return ``"B×3×32×32"``; ``"scalar"`` for a scalar.

        Args:
            sizes: numbers or symbolic sizes.
            names: for torch's symbols the names of inputs' sizes; others stay as torch wrote them.
        """
        return "×".join(self._text(size, names) for size in sizes) or "scalar"

    def legend(self) -> tuple[Size, ...]:
        """Return the meaning of each used name: inputs first."""
        used = {word for text in (*self._texts, *self._texts.values()) for word in re.findall(r"[A-Za-z_]\w*", text)}
        named = {name: meaning for name, meaning in self._inputs.items() if name in used}
        named |= {name: formula for formula, name in self._names.items()}
        return tuple(Size(name, meaning) for name, meaning in named.items())

    def _text(self, size: Any, names: Mapping[str, str]) -> str:
        raw = re.sub(r"\b[a-z]+\d+\b", lambda match: names.get(match[0], match[0]), str(size))
        if raw not in self._texts:
            self._texts[raw] = raw if re.fullmatch(r"\w+", raw) else self._formula(raw)
        return self._texts[raw]

    def _formula(self, raw: str) -> str:
        try:
            parsed = _Ordered().visit(ast.parse(raw, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError):
            return self._named(raw, re.findall(r"[A-Za-z_]\w*", raw))
        if _is_short(parsed):
            return f"({_written(parsed)})"
        if _written(parsed) not in self._names:
            parsed = _Ordered().visit(_WithNames(self._names).generic_visit(parsed))
        if _is_short(parsed):
            return f"({_written(parsed)})"
        functions = {id(node.func) for node in ast.walk(parsed) if isinstance(node, ast.Call)}
        used = [n.id for n in ast.walk(parsed) if isinstance(n, ast.Name) and id(n) not in functions]
        return self._named(_written(parsed), used)

    def _named(self, formula: str, symbols: Iterable[str]) -> str:
        """Return a name for a formula: that of its only size with a number, else ``N`` with a number."""
        if formula not in self._names:
            base = {self._origin(symbol) for symbol in symbols}
            stem = next(iter(base)) if len(base) == 1 else "N"
            stem += "_" * stem[-1].isdecimal()
            taken = {*self._names.values(), *self._inputs}
            numbered = (f"{stem}{number}" for number in range(1, len(taken) + 2))
            self._names[formula] = next(name for name in numbered if name not in taken)
        return self._names[formula]

    def _origin(self, symbol: str) -> str:
        """Return the input's size that a derived size is named after: ``"H"`` for ``"H1"``."""
        derived = set(self._names.values())
        return symbol.rstrip("0123456789").rstrip("_") or symbol if symbol in derived else symbol


class _WithNames(ast.NodeTransformer):
    """Replaces the formulas inside of a formula by their names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _written(node) not in self._names:
            self.generic_visit(node)
        name = self._names.get(_written(node))
        return ast.Name(name, ast.Load()) if name else node


class _Ordered(ast.NodeTransformer):
    """Puts the terms of sums and products into a canonical order, since torch's order varies between graphs."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Add | ast.Mult):
            return node
        in_sum = isinstance(node.op, ast.Add)
        parts = sorted(
            _parts(node, type(node.op)), key=lambda part: (isinstance(part, ast.Constant) == in_sum, _written(part))
        )
        whole = parts[0]
        for part in parts[1:]:
            whole = ast.BinOp(whole, node.op, part)
        return whole


def _parts(formula: ast.expr, operator: type[ast.operator]) -> list[ast.expr]:
    if isinstance(formula, ast.BinOp) and isinstance(formula.op, operator):
        return [*_parts(formula.left, operator), *_parts(formula.right, operator)]
    return [formula]


def _is_short(formula: ast.expr) -> bool:
    """Return whether the text has one operator, between names and numbers."""
    return isinstance(formula, ast.BinOp) and all(
        isinstance(side, ast.Name | ast.Constant) for side in (formula.left, formula.right)
    )


def _written(formula: ast.expr) -> str:
    return re.sub(r" (\*\*?|//) ", r"\1", ast.unparse(formula))
