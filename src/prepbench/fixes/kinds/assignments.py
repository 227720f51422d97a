"""Assignments as syntax trees: what statements assign and use, joined into expressions or given other names."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence

from prepbench.fixes.results import CannotRewrite


def check_only_assigns(statement: ast.stmt) -> None:
    """A statement on one side of a branch must only compute values, because ``torch.where`` computes both sides.

    Raises:
        CannotRewrite: it does something else.
    """
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AugAssign) else targets
    names = [name for target in targets for name in (target.elts if isinstance(target, ast.Tuple) else [target])]
    plain = isinstance(statement, ast.Assign | ast.AugAssign | ast.Pass)
    if not plain or not all(isinstance(name, ast.Name) for name in names):
        raise CannotRewrite(
            f"line {statement.lineno} ({ast.unparse(statement).splitlines()[0]}) does more than compute a value, and "
            "torch.where computes both sides."
        )


def ends_in_return(body: Sequence[ast.stmt]) -> bool:
    """Whether the last statement is a ``return``."""
    return bool(body) and isinstance(body[-1], ast.Return)


def assign(name: str, value: ast.expr) -> ast.stmt:
    """``name = value``."""
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=1)


def assign_together(names: Sequence[str], values: Sequence[ast.expr]) -> ast.stmt:
    """``a, b = x, y``: at once, because one value may use the name of another."""
    if len(names) == 1:
        return assign(names[0], values[0])
    targets = ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store())
    return ast.Assign([targets], ast.Tuple(list(values), ast.Load()), lineno=1)


def names_in(names: Iterable[ast.Name], name: str, context: type[ast.expr_context]) -> list[ast.Name]:
    """The places where a name is read (``ast.Load``) or assigned (``ast.Store``)."""
    return [node for node in names if node.id == name and isinstance(node.ctx, context)]


def assigned_names(body: Iterable[ast.stmt]) -> set[str]:
    """Every name that the statements assign."""
    return _names(body, ast.Store)


def used_names(body: Iterable[ast.stmt]) -> set[str]:
    """Every name that the statements read."""
    return _names(body, ast.Load)


def _names(body: Iterable[ast.stmt], context: type[ast.expr_context]) -> set[str]:
    nodes = [node for statement in body for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


def add_assignment(statement: ast.stmt, values: dict[str, ast.expr]) -> None:
    """Add what a statement assigns to ``values``, with the names in there replaced by their values.

    Raises:
        CannotRewrite: it does more than assign to one name.
    """
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        old = values.get(name, ast.Name(name, ast.Load()))
        values[name] = ast.BinOp(old, statement.op, _ReplaceNames(values).visit(copy.deepcopy(statement.value)))
        return
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        values[statement.targets[0].id] = _ReplaceNames(values).visit(copy.deepcopy(statement.value))
        return
    raise CannotRewrite(f"line {statement.lineno} does more than assign to a name.")


class _ReplaceNames(ast.NodeTransformer):
    """Puts values in the place of names."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self._values[node.id]) if node.id in self._values else node


def with_own_names(
    body: Iterable[ast.stmt], value: ast.expr, names: set[str], suffix: str
) -> tuple[list[ast.stmt], ast.expr]:
    """Rename what statements assign. Until a name is assigned, it still means the value from before the branch."""
    rename = _Rename(names, suffix)
    return [rename.statement(statement) for statement in body], rename.visit(copy.deepcopy(value))


class _Rename(ast.NodeTransformer):
    """Appends a suffix to names from where they are assigned."""

    def __init__(self, names: set[str], suffix: str) -> None:
        self._names, self._suffix = names, suffix
        self._done: set[str] = set()

    def statement(self, statement: ast.stmt) -> ast.stmt:
        copied = _spelled_out(copy.deepcopy(statement), self._done)
        if not isinstance(copied, ast.Assign):
            renamed: ast.stmt = self.visit(copied)
            return renamed
        copied.value = self.visit(copied.value)
        self._done |= assigned_names([copied]) & self._names
        copied.targets = [self.visit(target) for target in copied.targets]
        return copied

    def visit_Name(self, node: ast.Name) -> ast.AST:
        renamed = node.id in self._names and (isinstance(node.ctx, ast.Store) or node.id in self._done)
        return ast.Name(node.id + self._suffix, node.ctx) if renamed else node


def _spelled_out(statement: ast.stmt, known: set[str]) -> ast.stmt:
    """``x += y`` as ``x = x + y``, where the two are different names afterwards."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        name = statement.target.id
        if name not in known:
            return assign(name, ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value))
    return statement
