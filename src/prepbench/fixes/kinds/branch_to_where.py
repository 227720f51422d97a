"""A branch on a tensor becomes ``torch.where``.

Only ``if`` statements and conditional expressions whose condition is a tensor on the samples are changed. Where a
branch does more than compute values, nothing is proposed and the reason is given.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Set
from typing import Any

import torch

from prepbench.capture.failures.reasons import BRANCH, NUMBER
from prepbench.fixes.function_source import Edit, Place, place_of, probe_call
from prepbench.fixes.kinds.assignments import (
    add_assignment,
    assign,
    assign_together,
    assigned_names,
    check_only_assigns,
    ends_in_return,
    names_in,
    used_names,
    with_own_names,
)
from prepbench.fixes.kinds.kind import RewriteKind
from prepbench.fixes.kinds.where_expressions import condition_of, condition_parts, where
from prepbench.fixes.results import CannotRewrite

_Branch = ast.If | ast.IfExp


def _instrument(function: ast.FunctionDef) -> None:
    for node in ast.walk(function):
        if isinstance(node, _Branch):
            for part, replace in condition_parts(node):
                replace(probe_call(place_of(node), part))


def _instrument_conditions(function: ast.FunctionDef) -> None:
    for node in ast.walk(function):
        if isinstance(node, _Branch):
            node.test = probe_call(place_of(node), node.test)


def _edits(function: ast.FunctionDef, places: Set[Place]) -> list[Edit]:
    return _Rewriter(function, places).edits(function.body)


BRANCH_TO_WHERE = RewriteKind(
    name="a branch on a tensor becomes torch.where",
    right_if="each side only computes values, and neither raises where the other one would be taken",
    failures=frozenset({BRANCH, NUMBER}),
    instrument=_instrument,
    needs_change=lambda value: isinstance(value, torch.Tensor),
    instrument_conditions=_instrument_conditions,
    edits=_edits,
)

_Side = tuple[list[ast.stmt], ast.expr]
"""The statements of one side of a branch, and what it returns."""


class _Rewriter:
    """The changes of one function whose branches at some places are on tensors."""

    def __init__(self, function: ast.FunctionDef, places: Set[Place]) -> None:
        self._places = places
        self._names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        self._parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        self._used = {node.id for node in self._names} | self._parameters

    def edits(self, body: list[ast.stmt]) -> list[Edit]:
        """The changes in a block."""
        found: list[Edit] = []
        for index, statement in enumerate(body):
            if self._is_chosen(statement):
                assert isinstance(statement, ast.If)
                new, ends = self._replaced(statement, body[index + 1 :])
                last = body[-1] if ends else statement
                found.append(Edit(statement.lineno, last.end_lineno or last.lineno, new))
                if ends:
                    break
            elif any(self._is_chosen(node) for node in ast.walk(statement)):
                found += self._edits_inside(statement)
        return found

    def _edits_inside(self, statement: ast.stmt) -> list[Edit]:
        blocks = [block for name in ("body", "orelse") if (block := getattr(statement, name, None))]
        if isinstance(statement, ast.For | ast.While | ast.If | ast.With) and blocks:
            return [edit for block in blocks for edit in self.edits(block)]
        if blocks:
            raise CannotRewrite(f"the branch on line {statement.lineno} is inside {type(statement).__name__.lower()}.")
        return [Edit(statement.lineno, statement.end_lineno or statement.lineno, [self._expressions(statement)])]

    def _is_chosen(self, node: ast.AST) -> bool:
        return isinstance(node, _Branch) and place_of(node) in self._places

    def _expressions(self, node: Any) -> Any:
        return _ReplaceConditionals(self._places).visit(copy.deepcopy(node))

    def _replaced(self, node: ast.If, rest: list[ast.stmt]) -> tuple[list[ast.stmt], bool]:
        """What replaces an ``if``, and whether it ends the block, because one of its sides returns."""
        if ends_in_return(node.body) or ends_in_return(node.orelse):
            return self._returned(node, self._side(node.body, rest), self._side(node.orelse, rest)), True
        return self._assigned(node), False

    # -- a branch that returns

    def _side(self, body: list[ast.stmt], rest: list[ast.stmt]) -> _Side:
        """Statements and the returned expression of one side; ``rest`` follows unless the side returns."""
        statements = list(body) if ends_in_return(body) else [*body, *rest]
        last = statements[-1] if statements else None
        if isinstance(last, ast.If) and self._is_chosen(last) and last.orelse:
            new, _ = self._replaced(last, [])
            statements = [*statements[:-1], *new]
        if not ends_in_return(statements):
            raise CannotRewrite("one side of the branch returns a value and the other one nothing.")
        before, final = self._flat(statements)
        if final.value is None:
            raise CannotRewrite(f"line {final.lineno} returns nothing.")
        return before, self._expressions(final.value)

    def _flat(self, statements: list[ast.stmt]) -> tuple[list[ast.stmt], ast.Return]:
        """The statements of a side without branches on tensors, and its last one."""
        *before, final = statements
        flat: list[ast.stmt] = []
        for index, statement in enumerate(before):
            if isinstance(statement, ast.If) and self._is_chosen(statement):
                new, ends = self._replaced(statement, [*before[index + 1 :], final])
                flat += new
                if ends:
                    *flat, final = flat
                    break
            else:
                check_only_assigns(statement)
                flat.append(self._expressions(statement))
        assert isinstance(final, ast.Return)
        return flat, final

    def _returned(self, node: ast.If, yes: _Side, no: _Side) -> list[ast.stmt]:
        (yes_before, yes_value), (no_before, no_value) = yes, no
        names = assigned_names(yes_before) & (used_names(no_before) | used_names([ast.Expr(no_value)]))
        result: list[ast.stmt] = []
        condition: ast.expr = condition_of(node.test)
        if yes_before or no_before:
            # names that a side assigns may be part of the condition, so it is computed first
            condition = self._computed_first(condition, result)
        if names:
            yes_before, yes_value = with_own_names(yes_before, yes_value, names, "_if_true")
        return [*result, *yes_before, *no_before, ast.Return(where(condition, yes_value, no_value))]

    # -- a branch that assigns

    def _assigned(self, node: ast.If) -> list[ast.stmt]:
        """``if c: y = f(x)`` becomes ``y = torch.where(c, f(x), y)``."""
        yes, no = self._values(node.body), self._values(node.orelse)
        names = [name for name in dict.fromkeys([*yes, *no]) if self._is_used_outside(name, node)]
        for name in names:
            if not (name in yes and name in no):
                self._check_has_value(name, node)
        if not names:
            return [ast.Pass(lineno=node.lineno)]
        result: list[ast.stmt] = []
        condition: ast.expr = condition_of(node.test)
        if len(names) > 1:
            condition = self._computed_first(condition, result)
        unchanged = {name: ast.Name(name, ast.Load()) for name in names}
        values = [where(condition, yes.get(name, unchanged[name]), no.get(name, unchanged[name])) for name in names]
        return [*result, assign_together(names, values)]

    def _computed_first(self, condition: ast.expr, result: list[ast.stmt]) -> ast.expr:
        names = (f"condition_{number}" if number else "condition" for number in itertools.count())
        name = next(name for name in names if name not in self._used)
        self._used.add(name)
        result.append(assign(name, condition))
        return ast.Name(name, ast.Load())

    def _values(self, body: list[ast.stmt]) -> dict[str, ast.expr]:
        """What one side assigns, by name, in terms of the names before the branch."""
        found: dict[str, ast.expr] = {}
        for statement in body:
            if isinstance(statement, ast.If) and self._is_chosen(statement):
                for new in self._assigned(statement):
                    add_assignment(new, found)
            elif not isinstance(statement, ast.Pass):
                check_only_assigns(statement)
                add_assignment(self._expressions(statement), found)
        return found

    def _is_used_outside(self, name: str, node: ast.If) -> bool:
        end = node.end_lineno or node.lineno
        lines = [found.lineno for found in names_in(self._names, name, ast.Load)]
        return any(line < node.lineno or line > end for line in lines)

    def _check_has_value(self, name: str, node: ast.If) -> None:
        """A name that only one side assigns must have a value before the branch."""
        before = any(found.lineno < node.lineno for found in names_in(self._names, name, ast.Store))
        if not before and name not in self._parameters:
            raise CannotRewrite(f"{name!r} has a value only where the condition on line {node.lineno} takes one side.")


class _ReplaceConditionals(ast.NodeTransformer):
    """``a if c else b`` becomes ``torch.where(c, a, b)`` at the chosen places."""

    def __init__(self, places: Set[Place]) -> None:
        self._places = places

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        chosen = place_of(node) in self._places
        self.generic_visit(node)
        return where(condition_of(node.test), node.body, node.orelse) if chosen else node
